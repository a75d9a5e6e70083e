#include "bindings.h"
#include "nn_score.h"

namespace py = pybind11;
using namespace posenc;
using at::Tensor;

namespace {

template <typename Module, typename Class>
void bind_additive_module(Class& bound) {
  bind_score_module<Module>(bound, /*is_causal=*/false);
  bound.def(
      "bias",
      [](Module& self, int64_t q_len, std::optional<int64_t> k_len) {
        const py::gil_scoped_release release;
        return self.bias(q_len, k_len);
      },
      py::arg("q_len"), py::arg("k_len") = py::none());
}

nn::KerpleKind kind_from_name(const std::string& name) {
  if (name == "log") return nn::KerpleKind::kLog;
  TORCH_CHECK_VALUE(name == "power", "Kerple: expected kind to be 'log' or 'power', but got '", name, "'");
  return nn::KerpleKind::kPower;
}

nn::T5RelativeBiasOptions t5_options(int64_t num_heads, int64_t num_buckets, int64_t max_distance, bool bidirectional,
                                     std::optional<double> scale) {
  return nn::T5RelativeBiasOptions(num_heads)
      .num_buckets(num_buckets)
      .max_distance(max_distance)
      .bidirectional(bidirectional)
      .scale(scale);
}

nn::FIREOptions fire_options(int64_t num_heads, int64_t hidden_dim, double c, double threshold, double eps) {
  return nn::FIREOptions(num_heads).hidden_dim(hidden_dim).c(c).threshold(threshold).eps(eps);
}

}  // namespace

void bind_nn_additive(py::module_& m) {
  auto alibi = torch::python::bind_module<nn::ALiBiImpl>(m, "ALiBi");
  alibi
      .def(py::init([](int64_t num_heads, std::optional<std::vector<double>> slopes, bool learnable) {
             return std::make_shared<nn::ALiBiImpl>(
                 nn::ALiBiOptions(num_heads).slopes(std::move(slopes)).learnable(learnable));
           }),
           py::arg("num_heads"), py::kw_only(), py::arg("slopes") = py::none(), py::arg("learnable") = false)
      .def("initial_slopes", &nn::ALiBiImpl::initial_slopes);
  bind_additive_module<nn::ALiBiImpl>(alibi);

  auto t5 = torch::python::bind_module<nn::T5RelativeBiasImpl>(m, "T5RelativeBias");
  t5.def(py::init([](int64_t num_heads, int64_t num_buckets, int64_t max_distance, bool bidirectional,
                     std::optional<double> scale) {
           return std::make_shared<nn::T5RelativeBiasImpl>(
               t5_options(num_heads, num_buckets, max_distance, bidirectional, scale));
         }),
         py::arg("num_heads"), py::kw_only(), py::arg("num_buckets") = 32, py::arg("max_distance") = 128,
         py::arg("bidirectional") = false, py::arg("scale") = 1.0);
  bind_additive_module<nn::T5RelativeBiasImpl>(t5);

  auto kerple = torch::python::bind_module<nn::KerpleImpl>(m, "Kerple");
  kerple.def(py::init([](int64_t num_heads, const std::string& kind) {
               return std::make_shared<nn::KerpleImpl>(nn::KerpleOptions(num_heads).kind(kind_from_name(kind)));
             }),
             py::arg("num_heads"), py::kw_only(), py::arg("kind") = "log");
  bind_additive_module<nn::KerpleImpl>(kerple);

  auto sandwich = torch::python::bind_module<nn::SandwichImpl>(m, "Sandwich");
  sandwich
      .def(py::init([](int64_t num_heads, int64_t dim) {
             return std::make_shared<nn::SandwichImpl>(nn::SandwichOptions(num_heads).dim(dim));
           }),
           py::arg("num_heads"), py::kw_only(), py::arg("dim") = 128)
      .def("inv_freq", &nn::SandwichImpl::inv_freq);
  bind_additive_module<nn::SandwichImpl>(sandwich);

  auto fire = torch::python::bind_module<nn::FIREImpl>(m, "FIRE");
  fire.def(py::init([](int64_t num_heads, int64_t hidden_dim, double c, double threshold, double eps) {
             return std::make_shared<nn::FIREImpl>(fire_options(num_heads, hidden_dim, c, threshold, eps));
           }),
           py::arg("num_heads"), py::kw_only(), py::arg("hidden_dim") = 32, py::arg("c") = 0.1,
           py::arg("threshold") = 512.0, py::arg("eps") = 1e-6);
  bind_additive_module<nn::FIREImpl>(fire);

  // What the Python classes need without drawing parameters in C++; functions, since bind_module's classes show no
  // statics.
  m.def(
      "t5_relative_bias_initial_std",
      [](int64_t num_heads, int64_t num_buckets, int64_t max_distance, bool bidirectional,
         std::optional<double> scale) {
        const auto options = t5_options(num_heads, num_buckets, max_distance, bidirectional, scale);
        nn::check(options);
        return nn::initial_std(options);
      },
      py::arg("num_heads"), py::kw_only(), py::arg("num_buckets"), py::arg("max_distance"), py::arg("bidirectional"),
      py::arg("scale"));
  m.def(
      "check_kerple",
      [](int64_t num_heads, const std::string& kind) {
        nn::check(nn::KerpleOptions(num_heads).kind(kind_from_name(kind)));
      },
      py::arg("num_heads"), py::kw_only(), py::arg("kind"));
  m.def(
      "check_fire",
      [](int64_t num_heads, int64_t hidden_dim, double c, double threshold, double eps) {
        nn::check(fire_options(num_heads, hidden_dim, c, threshold, eps));
      },
      py::arg("num_heads"), py::kw_only(), py::arg("hidden_dim"), py::arg("c"), py::arg("threshold"), py::arg("eps"));
}
