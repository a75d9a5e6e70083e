#include "bindings.h"

#include <posenc/nn.h>

#include <torch/python.h>

#include <sstream>

namespace py = pybind11;
using namespace posenc;
using at::Tensor;

namespace {

using Offset = std::variant<Tensor, int64_t>;  // in this order: a tensor of one element converts to int64_t too
using Rotated = std::variant<Tensor, std::tuple<Tensor, Tensor>>;

nn::RotaryForwardOptions call_options(const std::optional<Tensor>& positions, const Offset& offset,
                                      std::optional<int64_t> seq_len) {
  auto call = nn::RotaryForwardOptions().positions(positions).seq_len(seq_len);
  if (const auto* rows = std::get_if<Tensor>(&offset)) {
    call.offsets(*rows);
  } else {
    call.offset(std::get<int64_t>(offset));
  }
  return call;
}

/// repr, and forward(q, k=None, positions=None, *, offset=0, seq_len=None), alike in all rotary modules.
template <typename Module, typename Class>
void bind_rotary_module(Class& bound) {
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
      [](Module& self, const Tensor& q, const std::optional<Tensor>& k, const std::optional<Tensor>& positions,
         const Offset& offset, std::optional<int64_t> seq_len) -> Rotated {
        const auto call = call_options(positions, offset, seq_len);
        py::gil_scoped_release release;
        if (k) {
          return self.forward_qk(q, *k, call);
        }
        return self.forward(q, call);
      },
      py::arg("q"), py::arg("k") = py::none(), py::arg("positions") = py::none(), py::kw_only(),
      py::arg("offset") = int64_t{0}, py::arg("seq_len") = py::none());
}

template <typename Module>
std::tuple<Tensor, double> frequencies(const Module& self, std::optional<int64_t> seq_len) {
  const auto f = self.frequencies(seq_len);
  return {f.inv_freq, f.attention_scaling};
}

void bind_rotary(py::module_& m) {
  auto bound = torch::python::bind_module<nn::RotaryImpl>(m, "Rotary");
  bound
      .def(py::init([](int64_t head_dim, std::optional<int64_t> rotary_dim, double base, bool interleaved,
                       const scaling::Scaling& scaling, bool exact, std::optional<int64_t> seq_len, bool learnable) {
             return std::make_shared<nn::RotaryImpl>(nn::RotaryOptions(head_dim)
                                                         .rotary_dim(rotary_dim)
                                                         .base(base)
                                                         .interleaved(interleaved)
                                                         .scaling(scaling)
                                                         .exact(exact)
                                                         .seq_len(seq_len)
                                                         .learnable(learnable));
           }),
           py::arg("head_dim"), py::kw_only(), py::arg("rotary_dim") = py::none(), py::arg("base") = 10000.0,
           py::arg("interleaved") = false, py::arg("scaling") = py::none(), py::arg("exact") = true,
           py::arg("seq_len") = py::none(), py::arg("learnable") = false)
      .def("frequencies", &frequencies<nn::RotaryImpl>, py::arg("seq_len") = py::none());
  bind_rotary_module<nn::RotaryImpl>(bound);
}

void bind_xpos(py::module_& m) {
  auto bound = torch::python::bind_module<nn::XPosImpl>(m, "XPos");
  bound
      .def(py::init([](int64_t head_dim, double base, double scale_base, double centre, bool interleaved) {
             return std::make_shared<nn::XPosImpl>(
                 nn::XPosOptions(head_dim).base(base).scale_base(scale_base).centre(centre).interleaved(interleaved));
           }),
           py::arg("head_dim"), py::kw_only(), py::arg("base") = 10000.0, py::arg("scale_base") = 512.0,
           py::arg("centre") = 0.0, py::arg("interleaved") = true)
      .def("constants", &nn::XPosImpl::constants);
  bind_rotary_module<nn::XPosImpl>(bound);
}

void bind_axial_rotary(py::module_& m) {
  auto bound = torch::python::bind_module<nn::AxialRotaryImpl>(m, "AxialRotary");
  bound
      .def(py::init([](int64_t head_dim, int64_t num_axes, double base, bool interleaved, bool learnable,
                       std::optional<int64_t> num_heads) {
             return std::make_shared<nn::AxialRotaryImpl>(nn::AxialRotaryOptions(head_dim)
                                                              .num_axes(num_axes)
                                                              .base(base)
                                                              .interleaved(interleaved)
                                                              .learnable(learnable)
                                                              .num_heads(num_heads));
           }),
           py::arg("head_dim"), py::kw_only(), py::arg("num_axes") = 2, py::arg("base") = 100.0,
           py::arg("interleaved") = true, py::arg("learnable") = false, py::arg("num_heads") = py::none())
      .def("initial_inv_freq", &nn::AxialRotaryImpl::initial_inv_freq)
      .def("axes", &nn::AxialRotaryImpl::axes);
  bind_rotary_module<nn::AxialRotaryImpl>(bound);
}

void bind_multimodal_rotary(py::module_& m) {
  auto bound = torch::python::bind_module<nn::MultimodalRotaryImpl>(m, "MultimodalRotary");
  bound
      .def(
          py::init([](int64_t head_dim, std::vector<int64_t> sections, std::optional<int64_t> rotary_dim, double base,
                      bool interleaved, bool interleaved_sections, const scaling::Scaling& scaling, bool exact,
                      std::optional<int64_t> seq_len) {
            return std::make_shared<nn::MultimodalRotaryImpl>(nn::MultimodalRotaryOptions(head_dim, std::move(sections))
                                                                  .rotary_dim(rotary_dim)
                                                                  .base(base)
                                                                  .interleaved(interleaved)
                                                                  .interleaved_sections(interleaved_sections)
                                                                  .scaling(scaling)
                                                                  .exact(exact)
                                                                  .seq_len(seq_len));
          }),
          py::arg("head_dim"), py::arg("sections"), py::kw_only(), py::arg("rotary_dim") = py::none(),
          py::arg("base") = 10000.0, py::arg("interleaved") = false, py::arg("interleaved_sections") = false,
          py::arg("scaling") = py::none(), py::arg("exact") = true, py::arg("seq_len") = py::none())
      .def("frequencies", &frequencies<nn::MultimodalRotaryImpl>, py::arg("seq_len") = py::none())
      .def("axes", &nn::MultimodalRotaryImpl::axes);
  bind_rotary_module<nn::MultimodalRotaryImpl>(bound);
}

}  // namespace

void bind_nn(py::module_& m) {
  bind_rotary(m);
  bind_xpos(m);
  bind_axial_rotary(m);
  bind_multimodal_rotary(m);
  bind_nn_absolute(m);
  bind_nn_additive(m);
  bind_nn_block(m);
  bind_nn_contextual(m);
}
