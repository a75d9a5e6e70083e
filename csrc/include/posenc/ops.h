#pragma once

/// The ops of posenc as C++ functions. Each is one call through torch's dispatcher, the same that
/// `torch.ops.posenc.NAME` makes, so autograd, autocast, torch.compile and torch.func see it.
///
/// Shapes: B batch, H query heads, G key heads, T tokens, D head width, R rotary width (R <= D), A position axes.
/// x, q and k are (B, H, T, D) with any strides (pass `x.transpose(1, 2)` of a (B, T, H, D) tensor as it is); outputs
/// keep the order of the strides. Arithmetic is float32 for float32, bfloat16 and float16 and float64 for float64;
/// angles are formed and reduced in float64.
///
/// positions: integer or floating, (T) or (B, T) in tokens; several axes: (A, T) or (A, B, T). Repeated, unsorted and
///   negative positions are legal. Absent: offset + 0, 1, .., T-1, on every axis.
/// inv_freq: (R/2), radians per token, float64 or float32; with `axes` each pair turns by the axis that axes[k] names.
///   (A, R/2), or per head (A, H, R/2): the angle of a pair is the sum over axes of position times frequency.
///
/// Errors: c10::ValueError (Python ValueError) for shapes and values, c10::TypeError for dtypes.

#include <posenc/export.h>
#include <posenc/ops_attention.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace posenc {

/// Options of rotary(), rotary_qk() and rotary_qk_().
struct RotaryFuncOptions {
  /// Multiplies cos and sin (YaRN's magnitude).
  TORCH_ARG(double, attention_scaling) = 1.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + R/2).
  TORCH_ARG(bool, interleaved) = false;
  /// Rotates by the negated angle (the transpose; attention_scaling still multiplies).
  TORCH_ARG(bool, inverse) = false;
  /// For each of the R/2 pairs, the position axis that turns it.
  TORCH_ARG(std::optional<std::vector<int64_t>>, axes) = std::nullopt;
  /// false: angles are position * inv_freq rounded to float32, as in the tables of other libraries.
  TORCH_ARG(bool, exact) = true;
  /// First position where `positions` is absent.
  TORCH_ARG(c10::SymInt, offset) = 0;
  /// First position of each batch row, (B) integer, instead of `offset`.
  TORCH_ARG(std::optional<at::Tensor>, offsets) = std::nullopt;
};

/// Options of rotary_tables().
struct RotaryTablesFuncOptions {
  /// T, needed where `positions` is absent.
  TORCH_ARG(std::optional<c10::SymInt>, length) = std::nullopt;
  TORCH_ARG(c10::SymInt, offset) = 0;
  TORCH_ARG(std::optional<at::Tensor>, offsets) = std::nullopt;
  TORCH_ARG(double, attention_scaling) = 1.0;
  TORCH_ARG(std::optional<std::vector<int64_t>>, axes) = std::nullopt;
  TORCH_ARG(bool, exact) = true;
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  /// (R/2), float64 or float32, per token: multiplies the tables by exp(decay[k] * (position - centre)), as xPos needs.
  TORCH_ARG(std::optional<at::Tensor>, decay) = std::nullopt;
  /// Position, in tokens, at which `decay` multiplies by 1.
  TORCH_ARG(double, centre) = 0.0;
};

/// Rotary position embedding (RoFormer, arXiv 2104.09864, eq. 14), table-free: each pair (a, b) of x becomes
/// s (a cos t - b sin t, b cos t + a sin t) with t = position * inv_freq[k] and s = attention_scaling.
/// Columns R..D-1 pass through unchanged. Gradients to x, and to inv_freq and floating positions where asked.
///
///     auto freq = posenc::scaling::frequencies(64).inv_freq;
///     auto y = posenc::rotary(x, std::nullopt, freq);
POSENC_API at::Tensor rotary(const at::Tensor& x, const std::optional<at::Tensor>& positions,
                             const at::Tensor& inv_freq, const RotaryFuncOptions& options = {});

/// rotary() of q (B, H, T, D) and k (B, G, T, D) in one pass: angles, sines and cosines are formed once for both.
POSENC_API std::tuple<at::Tensor, at::Tensor> rotary_qk(const at::Tensor& q, const at::Tensor& k,
                                                        const std::optional<at::Tensor>& positions,
                                                        const at::Tensor& inv_freq,
                                                        const RotaryFuncOptions& options = {});

/// rotary_qk() in place, for inference: raises where grad mode is on and an input requires a gradient.
POSENC_API void rotary_qk_(at::Tensor q, at::Tensor k, const std::optional<at::Tensor>& positions,
                           const at::Tensor& inv_freq, const RotaryFuncOptions& options = {});

/// attention_scaling * (cos, sin) of position * inv_freq, each (T, R/2), (B, T, R/2) or, with frequencies per head,
/// (B or 1, H, T, R/2). Gradients to inv_freq and to floating positions.
POSENC_API std::tuple<at::Tensor, at::Tensor> rotary_tables(const std::optional<at::Tensor>& positions,
                                                            const at::Tensor& inv_freq,
                                                            const RotaryTablesFuncOptions& options = {});

/// Rotates x by given tables of half width, one entry per pair: (T, R/2), (B or 1, T, R/2) or (B or 1, H or 1, T, R/2).
/// Gradients to x, cos and sin.
POSENC_API at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                   bool interleaved = false, bool inverse = false);

/// apply_rotary() of q and k in one pass.
POSENC_API std::tuple<at::Tensor, at::Tensor> apply_rotary_qk(const at::Tensor& q, const at::Tensor& k,
                                                              const at::Tensor& cos, const at::Tensor& sin,
                                                              bool interleaved = false, bool inverse = false);

/// apply_rotary_qk() in place, for inference: raises where grad mode is on and an input requires a gradient.
POSENC_API void apply_rotary_qk_(at::Tensor q, at::Tensor k, const at::Tensor& cos, const at::Tensor& sin,
                                 bool interleaved = false, bool inverse = false);

/// Rows of a query or key projection, (num_heads * D, ..) or a bias (num_heads * D), reordered from one pair layout to
/// the other: `to` is "half" (from interleaved) or "interleaved" (from half). A model then rotates alike in either
/// layout. rotary_dim: R where only the first R columns of each head turn. Gradients to weight.
POSENC_API at::Tensor permute_rotary_weight(const at::Tensor& weight, int64_t num_heads, c10::string_view to = "half",
                                            std::optional<int64_t> rotary_dim = std::nullopt);

}  // namespace posenc
