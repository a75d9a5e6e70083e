#pragma once

/// Queries and keys of ReRoPE and Self-Extend, rotated for the nearby and for the far score of
/// posenc::piecewise_attention, as calls through the dispatcher: a compiled graph can hold them, and C++ and Python
/// share one formula.
///
/// query (B, H, Tq, D) and key (B, G, Tk, D) come unrotated, inv_freq is (D/2). Near is RoPE at the tokens' positions.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace posenc::piecewise_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// (T) or (B, T), integer, in tokens. Absent: 0 .. Tk-1 for keys and the last Tq of them for queries, which are
/// negative where Tq > Tk.
struct Positions {
  OptionalTensor query;
  OptionalTensor key;
};

/// ReRoPE: q_near, k_near, and q_far at the constant position `window`; the far key is `key` itself. With
/// log_scale_length L0 queries are multiplied by max(1, ln(position + 1) / ln L0) first.
std::tuple<Tensor, Tensor, Tensor> rerope_qk(const Tensor& query, const Tensor& key, const Tensor& inv_freq,
                                             const Positions& positions, int64_t window, bool interleaved,
                                             std::optional<int64_t> log_scale_length);

/// Leaky ReRoPE: q_near, k_near, q_far at position + window (leak - 1), and k_far; the far ones turn by far_inv_freq,
/// which is inv_freq / leak.
std::tuple<Tensor, Tensor, Tensor, Tensor> leaky_rerope_qk(const Tensor& query, const Tensor& key,
                                                           const Tensor& inv_freq, const Tensor& far_inv_freq,
                                                           const Positions& positions, int64_t window, double leak,
                                                           bool interleaved, std::optional<int64_t> log_scale_length);

/// Self-Extend: q_near, k_near, q_far at floor(position / group) + window - window / group, and k_far at
/// floor(position / group).
std::tuple<Tensor, Tensor, Tensor, Tensor> self_extend_qk(const Tensor& query, const Tensor& key,
                                                          const Tensor& inv_freq, const Positions& positions,
                                                          int64_t group, int64_t window, bool interleaved);

}  // namespace posenc::piecewise_ops
