#pragma once

/// One call of FIRE's attention, and the flat argument lists of its schemas, adapted once for all backends: a kernel is
/// a function of a FireCall and is registered as `&flat_fire<kernel>`.

#include "attention/call.h"
#include "encodings/bias/ops.h"

#include <array>

namespace posenc::bias_ops {

using attention_ops::OutAndLse;

/// The tensors that may have a gradient: query, key, value and the parameters, in the order of the schema.
inline constexpr int64_t kFireInputs = 9, kFirstParameter = 3;

struct FireCall {
  std::array<Tensor, kFireInputs> inputs;
  double eps;
  /// Everything but the inputs; its slots are empty.
  attention_ops::Call attention;

  FireParameters parameters() const { return {inputs[3], inputs[4], inputs[5], inputs[6], inputs[7], inputs[8]}; }
  Span span() const { return {inputs[0], inputs[1], attention.q_positions, attention.k_positions}; }
  /// The call of posenc::attention() that lacks the bias alone.
  attention_ops::Call without_bias() const {
    attention_ops::Call c = attention;
    c.inputs[attention_ops::kQuery] = inputs[0];
    c.inputs[attention_ops::kKey] = inputs[1];
    c.inputs[attention_ops::kValue] = inputs[2];
    return c;
  }
};

/// What the backward gets beside the op's own arguments.
struct FireSaved {
  Tensor grad_out = {};
  OptionalTensor grad_lse = {};
  Tensor out;
  Tensor lse;
  /// For each query the seed of its block's dropout, int64 (Tq).
  Tensor seeds;
  /// Inputs whose gradients are wanted, in the order of the result.
  std::vector<int64_t> wanted = {};
};

/// out in the computing dtype, lse, seeds.
using FireForward = std::tuple<Tensor, Tensor, Tensor>;

template <typename Result>
using FireSignature = Result(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&, const Tensor&, double, bool, std::optional<double>,
                             const OptionalTensor&, std::optional<int64_t>, const OptionalTensor&,
                             const OptionalTensor&, const OptionalTensor&, double);
using FireBackwardSignature = std::vector<Tensor>(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, at::IntArrayRef, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, const Tensor&, double, bool,
                                                  std::optional<double>, const OptionalTensor&, std::optional<int64_t>,
                                                  const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                                  double);

inline FireCall pack_fire(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& c,
                          const Tensor& threshold, const Tensor& weight_in, const Tensor& bias_in,
                          const Tensor& weight_out, const Tensor& bias_out, double eps, bool is_causal,
                          std::optional<double> scale, const OptionalTensor& key_mask, std::optional<int64_t> window,
                          const OptionalTensor& segment_ids, const OptionalTensor& q_positions,
                          const OptionalTensor& k_positions, double dropout_p) {
  return {{query, key, value, c, threshold, weight_in, bias_in, weight_out, bias_out},
          eps,
          {.op = "FIRE",
           .is_causal = is_causal,
           .scale = scale,
           .key_mask = key_mask,
           .window = window,
           .segment_ids = segment_ids,
           .q_positions = q_positions,
           .k_positions = k_positions,
           .dropout_p = dropout_p}};
}

/// function(query, .., dropout_p).
template <typename Function>
auto unpack_fire(const FireCall& f, const Function& function) {
  const auto& i = f.inputs;
  const attention_ops::Call& a = f.attention;
  return function(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], f.eps, a.is_causal, a.scale, a.key_mask,
                  a.window, a.segment_ids, a.q_positions, a.k_positions, a.dropout_p);
}

/// A kernel of the public form or of `_fire_attention_forward`, as the dispatcher calls it.
template <auto kernel, typename Result = std::invoke_result_t<decltype(kernel), const FireCall&>>
Result flat_fire(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& c, const Tensor& threshold,
                 const Tensor& weight_in, const Tensor& bias_in, const Tensor& weight_out, const Tensor& bias_out,
                 double eps, bool is_causal, std::optional<double> scale, const OptionalTensor& key_mask,
                 std::optional<int64_t> window, const OptionalTensor& segment_ids, const OptionalTensor& q_positions,
                 const OptionalTensor& k_positions, double dropout_p) {
  return kernel(pack_fire(query, key, value, c, threshold, weight_in, bias_in, weight_out, bias_out, eps, is_causal,
                          scale, key_mask, window, segment_ids, q_positions, k_positions, dropout_p));
}

template <auto kernel>
std::vector<Tensor> flat_fire_backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& out,
                                       const Tensor& lse, const Tensor& seeds, at::IntArrayRef wanted,
                                       const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& c,
                                       const Tensor& threshold, const Tensor& weight_in, const Tensor& bias_in,
                                       const Tensor& weight_out, const Tensor& bias_out, double eps, bool is_causal,
                                       std::optional<double> scale, const OptionalTensor& key_mask,
                                       std::optional<int64_t> window, const OptionalTensor& segment_ids,
                                       const OptionalTensor& q_positions, const OptionalTensor& k_positions,
                                       double dropout_p) {
  return kernel(FireSaved{grad_out, grad_lse, out, lse, seeds, wanted.vec()},
                pack_fire(query, key, value, c, threshold, weight_in, bias_in, weight_out, bias_out, eps, is_causal,
                          scale, key_mask, window, segment_ids, q_positions, k_positions, dropout_p));
}

// Calls through the dispatcher.

OutAndLse call_fire(const FireCall& f);
FireForward call_fire_forward(const FireCall& f);
std::vector<Tensor> call_fire_backward(const FireSaved& s, const FireCall& f);

/// All rules of a call.
void check_fire_call(const FireCall& f);

/// The gradients named by s.wanted, by blocks of queries. `differentiable`: with gradients of their own.
std::vector<Tensor> fire_gradients(const FireSaved& s, const FireCall& f, bool differentiable);

/// The whole bias at once: differentiable in any way, and transformable.
OutAndLse fire_at_once(const FireCall& f);

}  // namespace posenc::bias_ops
