#pragma once

/// The internal attention ops as C++ functions: calls through the dispatcher.

#include <posenc/ops.h>

namespace posenc::attention_ops {

/// The final scores (B, H, Tq, Tk) of the op of the same name, float32 (float64 for float64), hidden keys -infinity:
/// softmax(logits) value is what the op returns. options.dropout_p counts as 0.
at::Tensor attention_logits(const at::Tensor& query, const at::Tensor& key, const AttentionFuncOptions& options);
at::Tensor relative_attention_logits(const at::Tensor& query, const at::Tensor& key,
                                     const std::optional<at::Tensor>& rel_k,
                                     const RelativeAttentionFuncOptions& options);
at::Tensor cope_attention_logits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& pos_emb,
                                 const CopeAttentionFuncOptions& options);
at::Tensor piecewise_attention_logits(const at::Tensor& q_near, const at::Tensor& k_near, const at::Tensor& q_far,
                                      const at::Tensor& k_far, int64_t threshold,
                                      const PiecewiseAttentionFuncOptions& options);

/// What FIRE adds (terms/fire/term.h).
struct FireTerms {
  at::Tensor rate, norm, knots, offset, slope;
};

/// attention_with_lse() and attention_logits() with FIRE's bias in addition to the terms of the options.
std::tuple<at::Tensor, at::Tensor> fire_attention(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value, const FireTerms& fire,
                                                  const AttentionFuncOptions& options);
at::Tensor fire_logits(const at::Tensor& query, const at::Tensor& key, const FireTerms& fire,
                       const AttentionFuncOptions& options);

}  // namespace posenc::attention_ops
