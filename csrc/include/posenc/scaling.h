#pragma once

/// Frequencies of rotary position embeddings and of their context extensions.
///
/// Symbols: d rotary width, b base, theta_k = b^(-2k/d) for k = 0..d/2-1 in radians per token, s factor,
/// L0 original_max_positions in tokens, n length in tokens, rho_k = L0 theta_k / (2 pi) the turns that pair k makes
/// within the original length.
///
/// Every type is a plain value: required arguments in the constructor, the rest by chained setters, comparable and
/// printable.
///
///     auto yarn = posenc::scaling::Yarn(4.0, 8192).truncate(false);
///     auto [inv_freq, attention_scaling] = posenc::scaling::frequencies(128, 10000.0, yarn);
///
/// Errors: c10::ValueError (Python ValueError).

#include <posenc/export.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace posenc::scaling {

/// Position interpolation (arXiv 2306.15595): theta_k / s.
struct Linear {
  explicit Linear(double factor) : factor_(factor) {}
  friend bool operator==(const Linear&, const Linear&) = default;
  /// s > 0.
  TORCH_ARG(double, factor);
};

/// NTK-aware scaling with a fixed factor: base b s^(d/(d-2)), so the slowest pair is slowed by exactly s and the
/// fastest keeps its frequency. Needs d > 2.
struct NTK {
  explicit NTK(double factor) : factor_(factor) {}
  friend bool operator==(const NTK&, const NTK&) = default;
  /// s > 0.
  TORCH_ARG(double, factor);
};

/// NTK-aware scaling by the current length: base b (s n/L0 - (s-1))^(d/(d-2)) with n = max(length, L0). Without a
/// length, n = L0: no effect. Depends on the length, so keys that were rotated and cached at a shorter length do not
/// match queries of a longer one: use one fixed length for a whole generation. Needs d > 2.
///
/// Follows transformers, where L0 is max_position_embeddings; it keeps the base of the longest sequence seen, posenc
/// looks at the length of each call alone.
struct DynamicNTK {
  DynamicNTK(double factor, int64_t original_max_positions)
      : factor_(factor), original_max_positions_(original_max_positions) {}
  friend bool operator==(const DynamicNTK&, const DynamicNTK&) = default;
  /// s > 0.
  TORCH_ARG(double, factor);
  /// L0, at least 1.
  TORCH_ARG(int64_t, original_max_positions);
};

/// NTK-by-parts (YaRN, arXiv 2309.00071, eq. 17 to 19): (1 - g) theta_k / s + g theta_k with
/// g = clamp((rho_k - beta_slow) / (beta_fast - beta_slow), 0, 1). The paper's ramp, in turns, and no magnitude.
struct NTKByParts {
  NTKByParts(double factor, int64_t original_max_positions)
      : factor_(factor), original_max_positions_(original_max_positions) {}
  friend bool operator==(const NTKByParts&, const NTKByParts&) = default;
  /// s > 0.
  TORCH_ARG(double, factor);
  /// L0, at least 1.
  TORCH_ARG(int64_t, original_max_positions);
  /// Pairs that make this many turns or more keep their frequency.
  TORCH_ARG(double, beta_fast) = 32.0;
  /// Pairs that make this many turns or fewer are slowed by s. Equal to beta_fast: a step there.
  TORCH_ARG(double, beta_slow) = 1.0;
};

/// What YaRN's ramp is linear in.
enum class Ramp {
  kDims,   ///< the index of the pair, as in the authors' code, transformers and every published checkpoint
  kTurns,  ///< the turns rho_k, as in the paper's eq. 18
};

/// YaRN (arXiv 2309.00071): NTK-by-parts and a magnitude on cos and sin.
///
/// Ramp::kDims: corr(r) = d ln(L0 / (2 pi r)) / (2 ln b); low = max(corr(beta_fast), 0) and
/// high = min(corr(beta_slow), d-1), floored and ceiled before that where `truncate`; high += 0.001 where they are
/// equal; g = 1 - clamp((k - low) / (high - low), 0, 1). Ramp::kTurns: g of NTKByParts.
///
/// Magnitude: attention_factor where given; else g(s, mscale) / g(s, mscale_all_dim) where both are given and not 0;
/// else g(s, 1); with g(s, m) = 0.1 m ln s + 1, and 1 for s <= 1. Follows transformers. Elsewhere attention_factor is a
/// multiplier of the computed magnitude, or mscale counts alone: pass the product as attention_factor. The correction
/// of the softmax scale is apart from it: softmax_scale().
struct POSENC_API Yarn {
  Yarn(double factor, int64_t original_max_positions)
      : factor_(factor), original_max_positions_(original_max_positions) {}
  friend bool operator==(const Yarn&, const Yarn&) = default;
  /// What multiplies the softmax scale in models that ask for it (DeepSeek-V2 and V3): g(s, mscale_all_dim)^2; 1 where
  /// mscale_all_dim is absent or 0. frequencies() does not contain it.
  double softmax_scale() const;
  /// s > 0.
  TORCH_ARG(double, factor);
  /// L0, at least 1.
  TORCH_ARG(int64_t, original_max_positions);
  /// Turns within L0 at and above which a pair keeps its frequency.
  TORCH_ARG(double, beta_fast) = 32.0;
  /// Turns within L0 at and below which a pair is slowed by s.
  TORCH_ARG(double, beta_slow) = 1.0;
  /// The magnitude itself, > 0, instead of the computed one.
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;
  /// Numerator of the magnitude; 0 counts as absent.
  TORCH_ARG(std::optional<double>, mscale) = std::nullopt;
  /// Denominator of the magnitude; 0 counts as absent.
  TORCH_ARG(std::optional<double>, mscale_all_dim) = std::nullopt;
  /// Rounds the ramp's bounds outwards to whole pairs (gpt-oss: false).
  TORCH_ARG(bool, truncate) = true;
  TORCH_ARG(Ramp, ramp) = Ramp::kDims;
};

/// LongRoPE (arXiv 2402.13753): theta_k / ext_k, with ext = long_factor where the length is above L0 and short_factor
/// at L0, below, and without a length. Depends on the length: see DynamicNTK about cached keys.
///
/// Magnitude: attention_factor where given; else sqrt(1 + ln s / ln L0) for s = factor > 1; else 1. Transformers takes
/// s = max_position_embeddings / L0 where a config gives no factor: pass that as factor.
struct LongRoPE {
  LongRoPE(std::vector<double> short_factor, std::vector<double> long_factor, int64_t original_max_positions)
      : short_factor_(std::move(short_factor)),
        long_factor_(std::move(long_factor)),
        original_max_positions_(original_max_positions) {}
  friend bool operator==(const LongRoPE&, const LongRoPE&) = default;
  /// (d/2) divisors > 0.
  TORCH_ARG(std::vector<double>, short_factor);
  /// (d/2) divisors > 0.
  TORCH_ARG(std::vector<double>, long_factor);
  /// L0, at least 1.
  TORCH_ARG(int64_t, original_max_positions);
  /// s > 0, for the magnitude alone.
  TORCH_ARG(std::optional<double>, factor) = std::nullopt;
  /// The magnitude itself, > 0.
  TORCH_ARG(std::optional<double>, attention_factor) = std::nullopt;
};

/// Llama 3.1's scaling. With lambda = 2 pi / theta_k: unchanged where lambda < L0 / high_freq_factor, theta_k / s where
/// lambda > L0 / low_freq_factor, else (1 - t) theta_k / s + t theta_k with
/// t = (L0 / lambda - low_freq_factor) / (high_freq_factor - low_freq_factor), and t = 0 where the two are equal.
struct Llama3 {
  Llama3(double factor, int64_t original_max_positions)
      : factor_(factor), original_max_positions_(original_max_positions) {}
  friend bool operator==(const Llama3&, const Llama3&) = default;
  /// s > 0.
  TORCH_ARG(double, factor);
  /// L0, at least 1.
  TORCH_ARG(int64_t, original_max_positions);
  /// Turns within L0 below which a pair is slowed by s.
  TORCH_ARG(double, low_freq_factor) = 1.0;
  /// Turns within L0 above which a pair keeps its frequency; at least low_freq_factor.
  TORCH_ARG(double, high_freq_factor) = 4.0;
};

/// Proportional RoPE (Gemma 4's global layers): the floor(fraction d / 2) fastest pairs get theta_k / s, with the
/// exponent over the whole width d, the others stand still (frequency 0). Pairs span the whole width, so this is not
/// partial rotary, which narrows d.
struct Proportional {
  explicit Proportional(double fraction) : fraction_(fraction) {}
  friend bool operator==(const Proportional&, const Proportional&) = default;
  /// Part of the pairs that turn, 0 to 1.
  TORCH_ARG(double, fraction);
  /// s > 0.
  TORCH_ARG(double, factor) = 1.0;
};

/// p-RoPE (arXiv 2410.06205): the floor(fraction d / 2) fastest pairs keep theta_k, the others stand still. Fraction 1
/// is RoPE, 0 no position at all; the paper favours 0.75.
struct PRoPE {
  explicit PRoPE(double fraction) : fraction_(fraction) {}
  friend bool operator==(const PRoPE&, const PRoPE&) = default;
  /// Part of the pairs that turn, 0 to 1.
  TORCH_ARG(double, fraction);
};

/// Giraffe's truncated basis (arXiv 2308.10882). With c = 2 pi / length: theta_k where theta_k >= c; c/16 where
/// c/8 <= theta_k < c; else 0.
struct TruncatedBasis {
  explicit TruncatedBasis(int64_t length) : length_(length) {}
  friend bool operator==(const TruncatedBasis&, const TruncatedBasis&) = default;
  /// Tokens in which the slowest kept pair makes a full turn, at least 1.
  TORCH_ARG(int64_t, length);
};

/// Giraffe's power basis (arXiv 2308.10882): theta_k (1 - 2k/d)^power.
struct PowerBasis {
  explicit PowerBasis(double power) : power_(power) {}
  friend bool operator==(const PowerBasis&, const PowerBasis&) = default;
  /// At least 0; 0 is plain RoPE.
  TORCH_ARG(double, power);
};

/// Any of them; std::monostate is plain RoPE.
using Scaling = std::variant<std::monostate, Linear, NTK, DynamicNTK, NTKByParts, Yarn, LongRoPE, Llama3, Proportional,
                             PRoPE, TruncatedBasis, PowerBasis>;

/// Frequencies of one rotary embedding.
struct Frequencies {
  /// (d/2) radians per token, on the CPU; float64, or float32 where exact is false.
  at::Tensor inv_freq;
  /// Multiplies cos and sin, so attention logits grow by its square.
  double attention_scaling;
};

/// Frequencies of a rotary embedding `dim` columns wide (even, at least 0), for sequences of `seq_len` tokens where
/// the scaling depends on that (absent: the original length).
///
/// exact: the formulas in float64. Otherwise float32 in transformers' order of operations, bit for bit; scalings that
/// transformers lacks then take the same formula in float32. In DynamicNTK a seq_len above the original length is
/// treated as its models do, with the base in float32.
POSENC_API Frequencies frequencies(int64_t dim, double base = 10000.0, const Scaling& scaling = {},
                                   std::optional<int64_t> seq_len = std::nullopt, bool exact = true);

/// What multiplies cos and sin; independent of the length.
POSENC_API double attention_scaling(const Scaling& scaling);

/// Whether the frequencies are a function of the sequence length (DynamicNTK, LongRoPE).
POSENC_API bool depends_on_length(const Scaling& scaling);

/// Raises unless every field is in its range. frequencies() and the Python constructors call this.
POSENC_API void validate(const Scaling& scaling);

/// E.g. `Yarn(factor=4, original_max_positions=8192)`: required fields, and options that are not at their defaults.
/// python_literals writes False, None and quotes as Python does.
POSENC_API std::string to_string(const Scaling& scaling, bool python_literals = false);
POSENC_API std::ostream& operator<<(std::ostream& stream, const Scaling& scaling);

/// A scaling as numbers, for the schema of scaled_inv_freq(). Good within one version of this library.
POSENC_API std::vector<double> encode(const Scaling& scaling);
POSENC_API Scaling decode(c10::ArrayRef<double> numbers);

/// frequencies(..).inv_freq as a dispatcher op, `posenc::scaled_inv_freq`, so that a graph can hold it for a length
/// that is symbolic. The result lies on the device of `like`, which is read for nothing else.
POSENC_API at::Tensor scaled_inv_freq(const at::Tensor& like, const Scaling& scaling, int64_t dim, double base,
                                      c10::SymInt seq_len, bool exact = true);

}  // namespace posenc::scaling
