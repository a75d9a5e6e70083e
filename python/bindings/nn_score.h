#pragma once

/// What the bindings of score modules that take positions share.

#include <posenc/nn.h>

#include <torch/python.h>

#include <sstream>

using Attended = std::variant<at::Tensor, std::tuple<at::Tensor, at::Tensor>>;

template <typename Module, typename Class>
void bind_score_repr(Class& bound) {
  // Assigned, since def() would add an overload behind the one of bind_module.
  bound.attr("__repr__") = pybind11::cpp_function(
      [](const Module& self) {
        std::ostringstream stream;
        self.pretty_print(stream);
        return stream.str();
      },
      pybind11::is_method(bound));
}

/// repr, attend and logits, with the op's default of is_causal.
template <typename Module, typename Class>
void bind_score_module(Class& bound, bool is_causal) {
  namespace py = pybind11;
  using at::Tensor;
  using OptionalTensor = std::optional<Tensor>;
  const auto call_of = [](bool is_causal, std::optional<double> scale, const OptionalTensor& key_mask,
                          std::optional<int64_t> window, const OptionalTensor& segment_ids,
                          const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
    return posenc::nn::AttendOptions()
        .is_causal(is_causal)
        .scale(scale)
        .key_mask(key_mask)
        .window(window)
        .segment_ids(segment_ids)
        .q_positions(q_positions)
        .k_positions(k_positions);
  };
  bind_score_repr<Module>(bound);
  bound.def(
      "attend",
      [call_of](Module& self, const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                std::optional<double> scale, const OptionalTensor& key_mask, std::optional<int64_t> window,
                const OptionalTensor& segment_ids, const OptionalTensor& q_positions, const OptionalTensor& k_positions,
                double dropout_p, bool return_lse) -> Attended {
        auto call = call_of(is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions);
        call.dropout_p(dropout_p);
        const py::gil_scoped_release release;
        if (return_lse) {
          return self.attend_with_lse(query, key, value, call);
        }
        return self.attend(query, key, value, call);
      },
      py::arg("query"), py::arg("key"), py::arg("value"), py::kw_only(), py::arg("is_causal") = is_causal,
      py::arg("scale") = py::none(), py::arg("key_mask") = py::none(), py::arg("window") = py::none(),
      py::arg("segment_ids") = py::none(), py::arg("q_positions") = py::none(), py::arg("k_positions") = py::none(),
      py::arg("dropout_p") = 0.0, py::arg("return_lse") = false);
  bound.def(
      "logits",
      [call_of](Module& self, const Tensor& query, const Tensor& key, bool is_causal, std::optional<double> scale,
                const OptionalTensor& key_mask, std::optional<int64_t> window, const OptionalTensor& segment_ids,
                const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
        const auto call = call_of(is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions);
        const py::gil_scoped_release release;
        return self.logits(query, key, call);
      },
      py::arg("query"), py::arg("key"), py::kw_only(), py::arg("is_causal") = is_causal, py::arg("scale") = py::none(),
      py::arg("key_mask") = py::none(), py::arg("window") = py::none(), py::arg("segment_ids") = py::none(),
      py::arg("q_positions") = py::none(), py::arg("k_positions") = py::none());
}
