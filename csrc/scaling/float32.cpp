#include "formulas.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace posenc::scaling {
namespace {

using at::Tensor;

at::TensorOptions on_cpu(at::ScalarType dtype) { return at::TensorOptions().dtype(dtype).device(at::kCPU); }

/// Each step rounds to float32, so every formula here keeps the order of operations of transformers'
/// modeling_rope_utils: `1 / t` is reciprocal(t) there and here, `c - t` is rsub, and so on.
struct Float32Formula {
  int64_t dim;
  double base;
  std::optional<int64_t> seq_len;

  /// 2k/d for the first `pairs` pairs.
  Tensor exponents(int64_t pairs) const {
    return at::arange(0, 2 * pairs, 2, on_cpu(at::kLong)).to(at::kFloat).div(dim);
  }

  /// base^(2k/d), the wavelength over 2 pi.
  Tensor periods(double with_base) const { return at::pow(at::Scalar(with_base), exponents(dim / 2)); }

  Tensor plain(double with_base) const { return periods(with_base).reciprocal(); }

  Tensor operator()(const std::monostate&) const { return plain(base); }

  Tensor operator()(const Linear& s) const { return plain(base).div(s.factor()); }

  Tensor operator()(const NTK& s) const { return plain(ntk_base(dim, base, s.factor())); }

  Tensor operator()(const DynamicNTK& s) const {
    const double factor = s.factor();
    const int64_t original = s.original_max_positions();
    const double exponent = static_cast<double>(dim) / static_cast<double>(dim - 2);
    const int64_t length = std::max(seq_len.value_or(0), original);
    if (length == original) {
      // At initialisation the length is a Python integer there, and the base float64. For some factors
      // s - (s - 1) is not 1, which belongs to parity.
      const double n = static_cast<double>(length);
      return plain(base * std::pow(factor * n / static_cast<double>(original) - (factor - 1.0), exponent));
    }
    // In a model's forward the length is the tensor max(position_ids) + 1, so the base is a float32 tensor.
    const Tensor scaled = at::scalar_tensor(length, on_cpu(at::kFloat)).mul(factor).div(original).sub(factor - 1.0);
    return at::pow(at::pow(scaled, exponent).mul(base), exponents(dim / 2)).reciprocal();
  }

  Tensor operator()(const NTKByParts& s) const {
    const Tensor theta = plain(base);
    const Tensor turns = theta.mul(static_cast<double>(s.original_max_positions()) / kTwoPi);
    const Tensor share = s.beta_fast() == s.beta_slow()
                             ? turns.ge(s.beta_fast()).to(at::kFloat)
                             : at::clamp(turns.sub(s.beta_slow()).div(s.beta_fast() - s.beta_slow()), 0, 1);
    return theta.div(s.factor()).mul(at::rsub(share, 1)).add(theta.mul(share));
  }

  Tensor operator()(const Yarn& s) const {
    if (s.ramp() == Ramp::kTurns) {
      return (*this)(
          NTKByParts(s.factor(), s.original_max_positions()).beta_fast(s.beta_fast()).beta_slow(s.beta_slow()));
    }
    const auto [low, high] = yarn_ramp_bounds(dim, base, s);
    const Tensor period = periods(base);
    const Tensor ramp = at::clamp(at::arange(dim / 2, on_cpu(at::kFloat)).sub(low).div(high - low), 0, 1);
    const Tensor share = at::rsub(ramp, 1);
    const Tensor interpolated = period.mul(s.factor()).reciprocal();
    const Tensor extrapolated = period.reciprocal();
    return interpolated.mul(at::rsub(share, 1)).add(extrapolated.mul(share));
  }

  Tensor operator()(const LongRoPE& s) const {
    const Tensor factors = at::tensor(long_rope_factors(s, seq_len), on_cpu(at::kDouble)).to(at::kFloat);
    return factors.mul(periods(base)).reciprocal();
  }

  Tensor operator()(const Llama3& s) const {
    const double original = static_cast<double>(s.original_max_positions());
    const double low = s.low_freq_factor();
    const double high = s.high_freq_factor();
    const Tensor theta = plain(base);
    const Tensor wavelength = theta.reciprocal().mul(kTwoPi);
    const Tensor below = wavelength.gt(original / low);
    const Tensor above = wavelength.lt(original / high);
    const Tensor scaled = at::where(below, theta.div(s.factor()), theta);
    const Tensor smooth =
        low == high ? at::zeros_like(theta) : wavelength.reciprocal().mul(original).sub(low).div(high - low);
    const Tensor blended = at::rsub(smooth, 1).mul(scaled).div(s.factor()).add(smooth.mul(scaled));
    return at::where(above.logical_or(below), scaled, blended);
  }

  Tensor operator()(const Proportional& s) const {
    const int64_t turning = turning_pairs(dim, s.fraction());
    const Tensor theta = at::pow(at::Scalar(base), exponents(turning)).reciprocal();
    return at::cat({theta, at::zeros({dim / 2 - turning}, on_cpu(at::kFloat))}).div(s.factor());
  }

  Tensor operator()(const PRoPE& s) const { return (*this)(Proportional(s.fraction())); }

  Tensor operator()(const TruncatedBasis& s) const {
    const double kept = kTwoPi / static_cast<double>(s.length());
    const Tensor theta = plain(base);
    const Tensor slow = at::where(theta.ge(kept / 8), at::scalar_tensor(kept / 16, on_cpu(at::kFloat)),
                                  at::scalar_tensor(0.0, on_cpu(at::kFloat)));
    return at::where(theta.ge(kept), theta, slow);
  }

  Tensor operator()(const PowerBasis& s) const {
    return plain(base).mul(at::rsub(exponents(dim / 2), 1).pow(s.power()));
  }
};

}  // namespace

Tensor float32_frequencies(int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len) {
  return std::visit(Float32Formula{dim, base, seq_len}, scaling);
}

}  // namespace posenc::scaling
