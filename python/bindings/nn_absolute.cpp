#include "bindings.h"

#include <posenc/nn.h>

#include <torch/python.h>

#include <sstream>

namespace py = pybind11;
using namespace posenc;
using at::Tensor;

namespace {

/// The tensor first: one of a single element also converts to an int.
using Offset = std::variant<Tensor, int64_t>;

/// repr, and forward(x, positions=None, *, offset=0), alike in all absolute modules.
template <typename Module, typename Class>
void bind_absolute_module(Class& bound) {
  // Assigned, since def() would add an overload behind the one of bind_module.
  bound.attr("__repr__") = py::cpp_function(
      [](const Module& self) {
        std::ostringstream stream;
        self.pretty_print(stream);
        return stream.str();
      },
      py::is_method(bound));
  bound.def(
      "forward",
      [](Module& self, const Tensor& x, const std::optional<Tensor>& positions, const Offset& offset) {
        auto call = nn::AbsoluteForwardOptions().positions(positions);
        if (const auto* rows = std::get_if<Tensor>(&offset)) {
          call.offsets(*rows);
        } else {
          call.offset(std::get<int64_t>(offset));
        }
        py::gil_scoped_release release;
        return self.forward(x, call);
      },
      py::arg("x"), py::arg("positions") = py::none(), py::kw_only(), py::arg("offset") = int64_t{0});
}

nn::SinusoidalLayout layout_from_name(const std::string& name) {
  if (name == "interleaved") return nn::SinusoidalLayout::kInterleaved;
  if (name == "concatenated") return nn::SinusoidalLayout::kConcatenated;
  TORCH_CHECK_VALUE(name == "tensor2tensor",
                    "Sinusoidal: expected layout to be 'interleaved', 'concatenated' or 'tensor2tensor', but got '",
                    name, "'");
  return nn::SinusoidalLayout::kTensor2Tensor;
}

}  // namespace

void bind_nn_absolute(py::module_& m) {
  auto sinusoidal = torch::python::bind_module<nn::SinusoidalImpl>(m, "Sinusoidal");
  sinusoidal
      .def(py::init([](int64_t dim, double base, const std::string& layout) {
             return std::make_shared<nn::SinusoidalImpl>(
                 nn::SinusoidalOptions(dim).base(base).layout(layout_from_name(layout)));
           }),
           py::arg("dim"), py::kw_only(), py::arg("base") = 10000.0, py::arg("layout") = "interleaved")
      .def("inv_freq", &nn::SinusoidalImpl::inv_freq);
  bind_absolute_module<nn::SinusoidalImpl>(sinusoidal);

  auto learned = torch::python::bind_module<nn::LearnedAbsoluteImpl>(m, "LearnedAbsolute");
  learned.def(py::init([](int64_t max_positions, int64_t dim) {
                return std::make_shared<nn::LearnedAbsoluteImpl>(max_positions, dim);
              }),
              py::arg("max_positions"), py::arg("dim"));
  bind_absolute_module<nn::LearnedAbsoluteImpl>(learned);

  // What the Python class needs without drawing a table in C++; functions, since bind_module's classes show no statics.
  m.def("check_learned_absolute",
        [](int64_t max_positions, int64_t dim) { nn::check(nn::LearnedAbsoluteOptions(max_positions, dim)); });
  m.attr("LEARNED_ABSOLUTE_INITIAL_STD") = nn::LearnedAbsoluteImpl::kInitialStd;

  auto cape = torch::python::bind_module<nn::CAPEImpl>(m, "CAPE");
  cape.def(py::init([](int64_t dim, double max_global_shift, double max_local_shift, double max_global_scaling,
                       double base, bool centre) {
             return std::make_shared<nn::CAPEImpl>(nn::CAPEOptions(dim)
                                                       .max_global_shift(max_global_shift)
                                                       .max_local_shift(max_local_shift)
                                                       .max_global_scaling(max_global_scaling)
                                                       .base(base)
                                                       .centre(centre));
           }),
           py::arg("dim"), py::kw_only(), py::arg("max_global_shift") = 5.0, py::arg("max_local_shift") = 0.5,
           py::arg("max_global_scaling") = 1.03, py::arg("base") = 10000.0, py::arg("centre") = false)
      .def("inv_freq", &nn::CAPEImpl::inv_freq);
  bind_absolute_module<nn::CAPEImpl>(cape);
}
