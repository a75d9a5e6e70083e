#pragma once

/// CoPE's position logits from materialised attention logits, the form in which the paper lists it. The fused form is
/// posenc::cope_attention.

#include <ATen/core/Tensor.h>

#include <optional>

namespace posenc::cope_ops {

using at::Tensor;

/// query (B, H, Tq, D), attn_logits (B, H, Tq, Tk), pos_emb (1, D, P) or (H, D, P), gate_bias (H) ->
/// (B, H, Tq, Tk), in the dtype of attn_logits, by a call through the dispatcher.
///
/// Gates are sigmoid(attn_logits + gate_bias); the position of a key is the sum of the gates from it to the last key,
/// at most P-1; the result is query . pos_emb interpolated there, times 1 / sqrt(D) with scale_position_logits.
/// Arithmetic is float32 (float64 where query or attn_logits are), sums included. The clamp at P-1 passes no gradient.
Tensor position_logits(const Tensor& query, const Tensor& attn_logits, const Tensor& pos_emb,
                       const std::optional<Tensor>& gate_bias, bool scale_position_logits);

}  // namespace posenc::cope_ops
