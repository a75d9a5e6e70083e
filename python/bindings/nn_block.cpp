#include "bindings.h"

#include <posenc/nn.h>

#include <torch/python.h>

#include <sstream>

namespace py = pybind11;
using namespace posenc;
using at::Tensor;

namespace {

nn::AttentionOptions attention_options(int64_t embed_dim, int64_t num_heads, std::optional<int64_t> num_kv_heads,
                                       std::optional<int64_t> head_dim, double dropout, double output_dropout,
                                       std::optional<int64_t> window) {
  return nn::AttentionOptions(embed_dim, num_heads)
      .num_kv_heads(num_kv_heads)
      .head_dim(head_dim)
      .dropout(dropout)
      .output_dropout(output_dropout)
      .window(window);
}

/// C++ modules, as bind_module wraps them or bare.
std::vector<std::shared_ptr<torch::nn::Module>> to_modules(const py::iterable& encodings) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const py::handle encoding : encodings) {
    const py::object bare = py::getattr(encoding, "cpp_module", encoding);
    modules.push_back(bare.cast<std::shared_ptr<torch::nn::Module>>());
  }
  return modules;
}

void bind_kv_cache(py::module_& m) {
  py::class_<nn::KVCache>(m, "KVCache")
      .def(py::init([](int64_t batch_size, int64_t num_kv_heads, int64_t max_length, int64_t head_dim,
                       at::ScalarType dtype, at::Device device) {
             return nn::KVCache(
                 nn::KVCacheOptions(batch_size, num_kv_heads, max_length, head_dim).dtype(dtype).device(device));
           }),
           py::arg("batch_size"), py::arg("num_kv_heads"), py::arg("max_length"), py::arg("head_dim"), py::kw_only(),
           py::arg("dtype") = at::kFloat, py::arg("device") = at::Device(at::kCPU))
      .def("append", &nn::KVCache::append, py::arg("k"), py::arg("v"), py::kw_only(), py::arg("gate_key") = py::none(),
           py::arg("positions") = py::none(), py::arg("log_decay") = py::none())
      .def_property_readonly("length", &nn::KVCache::length)
      .def_property_readonly("gate_keys", &nn::KVCache::gate_keys)
      .def_property_readonly("log_decay", &nn::KVCache::log_decay)
      .def_property_readonly("positions", &nn::KVCache::positions)
      .def("reset", &nn::KVCache::reset)
      .def("crop", &nn::KVCache::crop, py::arg("length"));
}

void bind_attention(py::module_& m) {
  auto bound = torch::python::bind_module<nn::AttentionImpl>(m, "Attention");
  bound.def(
      py::init([](int64_t embed_dim, int64_t num_heads, std::optional<int64_t> num_kv_heads,
                  std::optional<int64_t> head_dim, const py::iterable& encodings, double dropout, double output_dropout,
                  bool bias, std::optional<bool> output_bias, bool is_causal, std::optional<int64_t> window) {
        return std::make_shared<nn::AttentionImpl>(
            attention_options(embed_dim, num_heads, num_kv_heads, head_dim, dropout, output_dropout, window)
                .encodings(to_modules(encodings))
                .bias(bias)
                .output_bias(output_bias)
                .is_causal(is_causal));
      }),
      py::arg("embed_dim"), py::arg("num_heads"), py::kw_only(), py::arg("num_kv_heads") = py::none(),
      py::arg("head_dim") = py::none(), py::arg("encodings") = py::tuple(), py::arg("dropout") = 0.0,
      py::arg("output_dropout") = 0.0, py::arg("bias") = false, py::arg("output_bias") = py::none(),
      py::arg("is_causal") = true, py::arg("window") = py::none());
  bound.attr("__repr__") = py::cpp_function(
      [](const nn::AttentionImpl& self) {
        std::ostringstream stream;
        self.pretty_print(stream);
        return stream.str();
      },
      py::is_method(bound));
  bound.def(
      "forward",
      [](nn::AttentionImpl& self, const Tensor& x, const std::optional<Tensor>& positions,
         const std::optional<Tensor>& key_mask, const std::optional<Tensor>& segment_ids, nn::KVCache* cache) {
        const auto call =
            nn::AttentionForwardOptions().positions(positions).key_mask(key_mask).segment_ids(segment_ids).cache(cache);
        py::gil_scoped_release release;
        return self.forward(x, call);
      },
      py::arg("x"), py::kw_only(), py::arg("positions") = py::none(), py::arg("key_mask") = py::none(),
      py::arg("segment_ids") = py::none(), py::arg("cache") = static_cast<nn::KVCache*>(nullptr));
  // What the Python class needs without drawing projections in C++.
  m.def("check_attention",
        [](int64_t embed_dim, int64_t num_heads, std::optional<int64_t> num_kv_heads, std::optional<int64_t> head_dim,
           double dropout, double output_dropout, std::optional<int64_t> window) {
          nn::check(attention_options(embed_dim, num_heads, num_kv_heads, head_dim, dropout, output_dropout, window));
        });
}

}  // namespace

void bind_nn_block(py::module_& m) {
  bind_kv_cache(m);
  bind_attention(m);
}
