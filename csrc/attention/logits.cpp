/// The scores of the attention ops, materialised: composites of ATen ops, for inspection.

#include "attention/checks.h"
#include "attention/reference/reference.h"
#include "common/registration.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace posenc::attention_ops {
namespace {

/// A call without a value, as the checks and the scores allow.
Tensor logits(Call c) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c.inputs[kValue] = std::nullopt;
  check(c);
  return reference::logits(c);
}

Tensor attention_logits_composite(const Tensor& query, const Tensor& key, bool is_causal, std::optional<double> scale,
                                  const OptionalTensor& key_mask, std::optional<int64_t> window,
                                  const OptionalTensor& segment_ids, const OptionalTensor& q_positions,
                                  const OptionalTensor& k_positions, const OptionalTensor& alibi_slopes,
                                  const OptionalTensor& distance_bias, const OptionalTensor& bias,
                                  const OptionalTensor& log_decay) {
  return logits(Dot::pack(query, key, key, is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions,
                          alibi_slopes, distance_bias, bias, log_decay, 0.0));
}

Tensor relative_attention_logits_composite(const Tensor& query, const Tensor& key, const Tensor& rel_k, bool is_causal,
                                           std::optional<double> scale, const OptionalTensor& key_mask,
                                           std::optional<int64_t> window, const OptionalTensor& segment_ids,
                                           const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
  return logits(Relative::pack(query, key, key, rel_k, std::nullopt, is_causal, scale, key_mask, window, segment_ids,
                               q_positions, k_positions, 0.0));
}

Tensor cope_attention_logits_composite(const Tensor& query, const Tensor& key, const Tensor& pos_emb,
                                       const OptionalTensor& gate_key, const OptionalTensor& gate_bias,
                                       std::optional<double> scale, bool scale_position_logits,
                                       const OptionalTensor& key_mask, std::optional<int64_t> window,
                                       const OptionalTensor& segment_ids) {
  return logits(Cope::pack(query, key, key, pos_emb, gate_key, gate_bias, scale, scale_position_logits, key_mask,
                           window, segment_ids, 0.0));
}

Tensor piecewise_attention_logits_composite(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far,
                                            const Tensor& k_far, int64_t threshold, bool is_causal,
                                            std::optional<double> scale, const OptionalTensor& key_mask,
                                            std::optional<int64_t> window, const OptionalTensor& segment_ids,
                                            const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
  return logits(Piecewise::pack(q_near, k_near, q_far, k_far, k_near, threshold, is_causal, scale, key_mask, window,
                                segment_ids, q_positions, k_positions, 0.0));
}

void register_logits(torch::Library& m) {
  m.impl("_attention_logits", &attention_logits_composite);
  m.impl("_relative_attention_logits", &relative_attention_logits_composite);
  m.impl("_cope_attention_logits", &cope_attention_logits_composite);
  m.impl("_piecewise_attention_logits", &piecewise_attention_logits_composite);
}

POSENC_LIBRARY_IMPL(CompositeImplicitAutograd, m) { register_logits(m); }

// Else vmap would call composite ops of other libraries than ATen once for every sample.
POSENC_LIBRARY_IMPL(FuncTorchBatched, m) { register_logits(m); }

}  // namespace
}  // namespace posenc::attention_ops
