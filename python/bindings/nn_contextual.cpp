#include "bindings.h"
#include "nn_score.h"

#include <posenc/nn.h>

#include <torch/python.h>

namespace py = pybind11;
using namespace posenc;
using at::Tensor;

namespace {

using OptionalTensor = std::optional<Tensor>;

nn::ShawRelativeOptions shaw_options(int64_t head_dim, int64_t max_distance, std::optional<int64_t> num_heads,
                                     bool values) {
  return nn::ShawRelativeOptions(head_dim, max_distance).num_heads(num_heads).values(values);
}

void bind_shaw_relative(py::module_& m) {
  auto bound = torch::python::bind_module<nn::ShawRelativeImpl>(m, "ShawRelative");
  bound.def(py::init([](int64_t head_dim, int64_t max_distance, std::optional<int64_t> num_heads, bool values) {
              return std::make_shared<nn::ShawRelativeImpl>(shaw_options(head_dim, max_distance, num_heads, values));
            }),
            py::arg("head_dim"), py::arg("max_distance"), py::kw_only(), py::arg("num_heads") = py::none(),
            py::arg("values") = true);
  bind_score_module<nn::ShawRelativeImpl>(bound, /*is_causal=*/false);

  // What the Python class needs without drawing tables in C++; a function, since bind_module's classes show no statics.
  m.def("shaw_relative_initial_bound",
        [](int64_t head_dim, int64_t max_distance, std::optional<int64_t> num_heads, bool values) {
          const auto options = shaw_options(head_dim, max_distance, num_heads, values);
          nn::check(options);
          return nn::initial_bound(options);
        });
}

void bind_rerope(py::module_& m) {
  auto bound = torch::python::bind_module<nn::ReRoPEImpl>(m, "ReRoPE");
  bound
      .def(py::init([](int64_t head_dim, int64_t window, std::optional<double> leak, double base, bool interleaved,
                       std::optional<int64_t> log_scale_length) {
             return std::make_shared<nn::ReRoPEImpl>(nn::ReRoPEOptions(head_dim, window)
                                                         .leak(leak)
                                                         .base(base)
                                                         .interleaved(interleaved)
                                                         .log_scale_length(log_scale_length));
           }),
           py::arg("head_dim"), py::arg("window") = 512, py::kw_only(), py::arg("leak") = py::none(),
           py::arg("base") = 10000.0, py::arg("interleaved") = false, py::arg("log_scale_length") = py::none())
      .def("inv_freq", &nn::ReRoPEImpl::inv_freq)
      .def("far_inv_freq", [](const nn::ReRoPEImpl& self) -> OptionalTensor {
        return self.far_inv_freq().defined() ? std::make_optional(self.far_inv_freq()) : std::nullopt;
      });
  bind_score_module<nn::ReRoPEImpl>(bound, /*is_causal=*/true);
}

void bind_self_extend(py::module_& m) {
  auto bound = torch::python::bind_module<nn::SelfExtendImpl>(m, "SelfExtend");
  bound
      .def(py::init([](int64_t head_dim, int64_t group, int64_t window, double base, bool interleaved) {
             return std::make_shared<nn::SelfExtendImpl>(
                 nn::SelfExtendOptions(head_dim).group(group).window(window).base(base).interleaved(interleaved));
           }),
           py::arg("head_dim"), py::kw_only(), py::arg("group") = 8, py::arg("window") = 1024,
           py::arg("base") = 10000.0, py::arg("interleaved") = false)
      .def("inv_freq", &nn::SelfExtendImpl::inv_freq);
  bind_score_module<nn::SelfExtendImpl>(bound, /*is_causal=*/true);
}

nn::CoPEGate gate_from_name(const std::string& name) {
  if (name == "logits") return nn::CoPEGate::kLogits;
  if (name == "key") return nn::CoPEGate::kKey;
  TORCH_CHECK_VALUE(name == "value", "CoPE: expected gate to be 'logits', 'key' or 'value', but got '", name, "'");
  return nn::CoPEGate::kValue;
}

nn::CoPEOptions cope_options(int64_t head_dim, int64_t max_positions, std::optional<int64_t> num_heads,
                             bool scale_position_logits, const std::string& gate, std::optional<double> gate_bias) {
  return nn::CoPEOptions(head_dim, max_positions)
      .num_heads(num_heads)
      .scale_position_logits(scale_position_logits)
      .gate(gate_from_name(gate))
      .gate_bias(gate_bias);
}

nn::AttendOptions counted_call(std::optional<double> scale, const OptionalTensor& gate_key,
                               const OptionalTensor& key_mask, std::optional<int64_t> window,
                               const OptionalTensor& segment_ids) {
  return nn::AttendOptions().scale(scale).gate_key(gate_key).key_mask(key_mask).window(window).segment_ids(segment_ids);
}

void bind_cope(py::module_& m) {
  auto bound = torch::python::bind_module<nn::CoPEImpl>(m, "CoPE");
  bound.def(py::init([](int64_t head_dim, int64_t max_positions, std::optional<int64_t> num_heads,
                        bool scale_position_logits, const std::string& gate, std::optional<double> gate_bias) {
              return std::make_shared<nn::CoPEImpl>(
                  cope_options(head_dim, max_positions, num_heads, scale_position_logits, gate, gate_bias));
            }),
            py::arg("head_dim"), py::arg("max_positions"), py::kw_only(), py::arg("num_heads") = py::none(),
            py::arg("scale_position_logits") = false, py::arg("gate") = "logits", py::arg("gate_bias") = py::none());
  bind_score_repr<nn::CoPEImpl>(bound);
  bound.def(
      "forward",
      [](nn::CoPEImpl& self, const Tensor& query, const Tensor& attn_logits) {
        const py::gil_scoped_release release;
        return self.forward(query, attn_logits);
      },
      py::arg("query"), py::arg("attn_logits"));
  bound.def(
      "attend",
      [](nn::CoPEImpl& self, const Tensor& query, const Tensor& key, const Tensor& value, std::optional<double> scale,
         const OptionalTensor& gate_key, const OptionalTensor& key_mask, std::optional<int64_t> window,
         const OptionalTensor& segment_ids, double dropout_p, bool return_lse) -> Attended {
        auto call = counted_call(scale, gate_key, key_mask, window, segment_ids);
        call.dropout_p(dropout_p);
        const py::gil_scoped_release release;
        if (return_lse) {
          return self.attend_with_lse(query, key, value, call);
        }
        return self.attend(query, key, value, call);
      },
      py::arg("query"), py::arg("key"), py::arg("value"), py::kw_only(), py::arg("scale") = py::none(),
      py::arg("gate_key") = py::none(), py::arg("key_mask") = py::none(), py::arg("window") = py::none(),
      py::arg("segment_ids") = py::none(), py::arg("dropout_p") = 0.0, py::arg("return_lse") = false);
  bound.def(
      "logits",
      [](nn::CoPEImpl& self, const Tensor& query, const Tensor& key, std::optional<double> scale,
         const OptionalTensor& gate_key, const OptionalTensor& key_mask, std::optional<int64_t> window,
         const OptionalTensor& segment_ids) {
        const auto call = counted_call(scale, gate_key, key_mask, window, segment_ids);
        const py::gil_scoped_release release;
        return self.logits(query, key, call);
      },
      py::arg("query"), py::arg("key"), py::kw_only(), py::arg("scale") = py::none(), py::arg("gate_key") = py::none(),
      py::arg("key_mask") = py::none(), py::arg("window") = py::none(), py::arg("segment_ids") = py::none());

  m.def("check_cope", [](int64_t head_dim, int64_t max_positions, std::optional<int64_t> num_heads,
                         const std::string& gate, std::optional<double> gate_bias) {
    nn::check(cope_options(head_dim, max_positions, num_heads, /*scale_position_logits=*/false, gate, gate_bias));
  });
}

nn::ForgettingBiasOptions forgetting_options(int64_t embed_dim, int64_t num_heads, const std::string& kind) {
  TORCH_CHECK_VALUE(kind == "fox" || kind == "cable", "ForgettingBias: expected kind to be 'fox' or 'cable', but got '",
                    kind, "'");
  return nn::ForgettingBiasOptions(embed_dim, num_heads)
      .kind(kind == "fox" ? nn::ForgettingKind::kFoX : nn::ForgettingKind::kCABLE);
}

nn::AttendOptions decayed_call(const OptionalTensor& log_decay, std::optional<double> scale,
                               const OptionalTensor& key_mask, std::optional<int64_t> window,
                               const OptionalTensor& segment_ids) {
  return nn::AttendOptions().log_decay(log_decay).scale(scale).key_mask(key_mask).window(window).segment_ids(
      segment_ids);
}

void bind_forgetting_bias(py::module_& m) {
  auto bound = torch::python::bind_module<nn::ForgettingBiasImpl>(m, "ForgettingBias");
  bound.def(py::init([](int64_t embed_dim, int64_t num_heads, const std::string& kind) {
              return std::make_shared<nn::ForgettingBiasImpl>(forgetting_options(embed_dim, num_heads, kind));
            }),
            py::arg("embed_dim"), py::arg("num_heads"), py::kw_only(), py::arg("kind") = "fox");
  bind_score_repr<nn::ForgettingBiasImpl>(bound);
  bound.def(
      "forward",
      [](nn::ForgettingBiasImpl& self, const Tensor& x) {
        const py::gil_scoped_release release;
        return self.forward(x);
      },
      py::arg("x"));
  bound.def(
      "attend",
      [](nn::ForgettingBiasImpl& self, const Tensor& query, const Tensor& key, const Tensor& value,
         const OptionalTensor& log_decay, std::optional<double> scale, const OptionalTensor& key_mask,
         std::optional<int64_t> window, const OptionalTensor& segment_ids, double dropout_p,
         bool return_lse) -> Attended {
        auto call = decayed_call(log_decay, scale, key_mask, window, segment_ids);
        call.dropout_p(dropout_p);
        const py::gil_scoped_release release;
        if (return_lse) {
          return self.attend_with_lse(query, key, value, call);
        }
        return self.attend(query, key, value, call);
      },
      py::arg("query"), py::arg("key"), py::arg("value"), py::kw_only(), py::arg("log_decay"),
      py::arg("scale") = py::none(), py::arg("key_mask") = py::none(), py::arg("window") = py::none(),
      py::arg("segment_ids") = py::none(), py::arg("dropout_p") = 0.0, py::arg("return_lse") = false);
  bound.def(
      "logits",
      [](nn::ForgettingBiasImpl& self, const Tensor& query, const Tensor& key, const OptionalTensor& log_decay,
         std::optional<double> scale, const OptionalTensor& key_mask, std::optional<int64_t> window,
         const OptionalTensor& segment_ids) {
        const auto call = decayed_call(log_decay, scale, key_mask, window, segment_ids);
        const py::gil_scoped_release release;
        return self.logits(query, key, call);
      },
      py::arg("query"), py::arg("key"), py::kw_only(), py::arg("log_decay"), py::arg("scale") = py::none(),
      py::arg("key_mask") = py::none(), py::arg("window") = py::none(), py::arg("segment_ids") = py::none());

  m.def("check_forgetting_bias", [](int64_t embed_dim, int64_t num_heads, const std::string& kind) {
    nn::check(forgetting_options(embed_dim, num_heads, kind));
  });
}

}  // namespace

void bind_nn_contextual(py::module_& m) {
  bind_shaw_relative(m);
  bind_rerope(m);
  bind_self_extend(m);
  bind_cope(m);
  bind_forgetting_bias(m);
}
