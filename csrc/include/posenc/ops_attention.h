#pragma once

/// Attention whose scores carry a positional encoding, without ever holding a Tq x Tk tensor.
///
/// Shapes: B batch, H query heads, G key and value heads (H a multiple of G), Tq queries, Tk keys, D head width, Dv
/// value width. query is (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv), with any strides and one dtype of
/// float32, float64, bfloat16 and float16; tables and biases may be wider. Arithmetic is float32 (float64 for float64).
///
/// Each returns out (B, H, Tq, Dv), in the order of query's strides; with `_with_lse` also lse (B, H, Tq), float32
/// (float64 for float64), the natural logarithm of the sum of exp of the final scores. Both are differentiable, in
/// every tensor argument of floating type but positions. A query that sees no key gives 0, lse -infinity and zero
/// gradients; a NaN or infinity at a key reaches no query that does not see that key.
///
/// Arguments, the same for all: see posenc/attention_arguments.h. is_causal goes by position: query i sees key j where
/// k_position[j] <= q_position[i]. All terms may be combined but those of CoPE with piecewise ones.
///
/// Errors: c10::ValueError (Python ValueError) for shapes and values, c10::TypeError for dtypes.

#include <posenc/attention_arguments.h>
#include <posenc/export.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace posenc {

#define POSENC_INPUT(slot, name) TORCH_ARG(std::optional<at::Tensor>, name) = std::nullopt;
#define POSENC_TENSOR(name) TORCH_ARG(std::optional<at::Tensor>, name) = std::nullopt;
#define POSENC_OPTION(type, name, value) TORCH_ARG(type, name) = value;
#define POSENC_ATTENTION_KEYWORDS            \
  POSENC_ATTENTION_TERM_INPUTS(POSENC_INPUT) \
  POSENC_ATTENTION_TENSORS(POSENC_TENSOR)    \
  POSENC_ATTENTION_OPTIONS(POSENC_OPTION)

/// Options of attention(): the keywords of posenc/attention_arguments.h, tables included.
struct AttentionFuncOptions {
  TORCH_ARG(bool, is_causal) = false;
  POSENC_ATTENTION_KEYWORDS
  POSENC_ATTENTION_TABLES(POSENC_INPUT)
  POSENC_ATTENTION_TABLE_OPTIONS(POSENC_OPTION)
};

/// Options of relative_attention().
struct RelativeAttentionFuncOptions {
  TORCH_ARG(bool, is_causal) = false;
  /// (B, H, Tq, r): multiplied with rel_k, which is r wide then, in the place of query, and by scale (Transformer-XL,
  /// Conformers).
  TORCH_ARG(std::optional<at::Tensor>, rel_query) = std::nullopt;
  /// (2R+1, D) or (H, 2R+1, D): adds scale * key . rel_q[r] (DeBERTa, arXiv 2006.03654).
  TORCH_ARG(std::optional<at::Tensor>, rel_q) = std::nullopt;
  /// L and R, both or neither: tables have L + R + 1 rows, for distances k_position - q_position from -L to R. Absent:
  /// 2R + 1 rows.
  TORCH_ARG(std::optional<int64_t>, max_distance_left) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, max_distance_right) = std::nullopt;
  /// What distances beyond get: "clip", the row of the end, or "zero", nothing.
  TORCH_ARG(std::string, beyond) = "clip";
  POSENC_ATTENTION_KEYWORDS
};

/// Options of cope_attention(), which is always causal.
struct CopeAttentionFuncOptions {
  POSENC_ATTENTION_KEYWORDS
};

/// Options of piecewise_attention().
struct PiecewiseAttentionFuncOptions {
  TORCH_ARG(bool, is_causal) = true;
  POSENC_ATTENTION_KEYWORDS
};

#undef POSENC_INPUT
#undef POSENC_TENSOR
#undef POSENC_OPTION
#undef POSENC_ATTENTION_KEYWORDS

/// softmax(scale * query . key + terms) value. Terms: ALiBi (arXiv 2108.12409) by slopes; T5 (arXiv 1910.10683), KERPLE
/// and Sandwich by a table over distances; forgetting attention (arXiv 2503.02130) and CABLE (arXiv 2503.08067) by a
/// decay for each token; Swin (arXiv 2103.14030) by a table on two axes, and SAM (arXiv 2304.02643) by grid_rel_y and
/// grid_rel_x; any other bias, materialised; and the tables of the three functions below.
///
///     auto out = posenc::attention(q, k, v, posenc::AttentionFuncOptions().is_causal(true).alibi_slopes(slopes));
POSENC_API at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                const AttentionFuncOptions& options = {});
POSENC_API std::tuple<at::Tensor, at::Tensor> attention_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                                 const at::Tensor& value,
                                                                 const AttentionFuncOptions& options = {});

/// Attention with relative position embeddings (Shaw et al., arXiv 1803.02155, eq. 3 and 4). rel_k is (2R+1, D) or
/// (H, 2R+1, D), rel_v (2R+1, Dv) or (H, 2R+1, Dv); with r = R + clip(k_position - q_position, -R, R) scores are
/// scale * query . (key + rel_k[r]) and weights sum value + rel_v[r]. At least one of rel_k and the option rel_q.
POSENC_API at::Tensor relative_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                         const std::optional<at::Tensor>& rel_k,
                                         const std::optional<at::Tensor>& rel_v = std::nullopt,
                                         const RelativeAttentionFuncOptions& options = {});
POSENC_API std::tuple<at::Tensor, at::Tensor> relative_attention_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& rel_k,
    const std::optional<at::Tensor>& rel_v = std::nullopt, const RelativeAttentionFuncOptions& options = {});

/// Contextual position encoding (CoPE, arXiv 2405.18719, eq. 3 to 5), always causal, by index. pos_emb is (1, D, P) or
/// (H, D, P). The gate of (i, j) is sigmoid(scale * query_i . gate_key_j + gate_bias); the position of key j is the sum
/// of the gates from j up to i, at most P-1; the score is scale * query . key plus query . pos_emb interpolated at the
/// position. Keys that a query does not see are not counted. The clamp at P-1 passes no gradient.
POSENC_API at::Tensor cope_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                     const at::Tensor& pos_emb, const CopeAttentionFuncOptions& options = {});
POSENC_API std::tuple<at::Tensor, at::Tensor> cope_attention_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                                      const at::Tensor& value,
                                                                      const at::Tensor& pos_emb,
                                                                      const CopeAttentionFuncOptions& options = {});

/// Attention with one score nearby and another further on, as ReRoPE and Self-Extend (arXiv 2401.01325) need: the score
/// is scale * q_near . k_near where q_position - k_position < threshold, else scale * q_far . k_far.
POSENC_API at::Tensor piecewise_attention(const at::Tensor& q_near, const at::Tensor& k_near, const at::Tensor& q_far,
                                          const at::Tensor& k_far, const at::Tensor& value, int64_t threshold,
                                          const PiecewiseAttentionFuncOptions& options = {});
POSENC_API std::tuple<at::Tensor, at::Tensor> piecewise_attention_with_lse(
    const at::Tensor& q_near, const at::Tensor& k_near, const at::Tensor& q_far, const at::Tensor& k_far,
    const at::Tensor& value, int64_t threshold, const PiecewiseAttentionFuncOptions& options = {});

}  // namespace posenc
