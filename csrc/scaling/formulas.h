#pragma once

/// What the float64 and the float32 form of the frequencies share.

#include <posenc/scaling.h>

#include <numbers>
#include <utility>
#include <vector>

namespace posenc::scaling {

inline constexpr double kTwoPi = 2.0 * std::numbers::pi;

/// Raises unless frequencies() can serve these; the Meta kernel, where the length is symbolic, checks no more than
/// this.
void check_arguments(int64_t dim, double base, const Scaling& scaling);

/// theta_k of a scaled rotary embedding in float64: (dim/2) numbers. `dim` is even and positive.
std::vector<double> exact_frequencies(int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len);

/// The same in float32 by transformers' order of operations: (dim/2) tensor.
at::Tensor float32_frequencies(int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len);

/// b s^(d/(d-2)), NTK-aware scaling's base for a slow-down of the slowest pair by `stretch`.
double ntk_base(int64_t dim, double base, double stretch);

/// The pairs (low, high) between which the ramp of Yarn runs, by transformers' formulas.
std::pair<double, double> yarn_ramp_bounds(int64_t dim, double base, const Yarn& yarn);

/// The number of pairs that turn: int(fraction dim / 2), in the order in which transformers rounds.
int64_t turning_pairs(int64_t dim, double fraction);

/// The divisors that LongRoPE uses for a length.
const std::vector<double>& long_rope_factors(const LongRoPE& scaling, std::optional<int64_t> seq_len);

}  // namespace posenc::scaling
