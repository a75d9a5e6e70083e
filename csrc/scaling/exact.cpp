#include "formulas.h"

#include <algorithm>
#include <cmath>

namespace posenc::scaling {
namespace {

/// The ramp of NTK-by-parts (arXiv 2309.00071, eq. 18): the share of theta that stays unscaled, by turns in L0.
double kept_share(double theta, int64_t original_max_positions, double beta_fast, double beta_slow) {
  const double turns = static_cast<double>(original_max_positions) * theta / kTwoPi;
  if (beta_fast == beta_slow) return turns >= beta_fast ? 1.0 : 0.0;
  return std::clamp((turns - beta_slow) / (beta_fast - beta_slow), 0.0, 1.0);
}

double blend(double theta, double factor, double share) { return (1.0 - share) * theta / factor + share * theta; }

/// theta_k of one pair, given what plain RoPE would use.
struct ExactFormula {
  int64_t dim;
  double base;
  std::optional<int64_t> seq_len;

  using Thetas = std::vector<double>;

  Thetas plain(double with_base) const {
    Thetas theta(dim / 2);
    for (size_t k = 0; k < theta.size(); ++k) {
      theta[k] = std::pow(with_base, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
    }
    return theta;
  }

  /// Plain frequencies, each replaced by change(theta, k).
  template <class Change>
  Thetas changed(Change change) const {
    Thetas theta = plain(base);
    for (size_t k = 0; k < theta.size(); ++k) theta[k] = change(theta[k], static_cast<int64_t>(k));
    return theta;
  }

  Thetas operator()(const std::monostate&) const { return plain(base); }

  Thetas operator()(const Linear& s) const {
    return changed([&](double theta, int64_t) { return theta / s.factor(); });
  }

  Thetas operator()(const NTK& s) const { return plain(ntk_base(dim, base, s.factor())); }

  Thetas operator()(const DynamicNTK& s) const {
    const double original = static_cast<double>(s.original_max_positions());
    const double length = std::max(static_cast<double>(seq_len.value_or(0)), original);
    return plain(ntk_base(dim, base, 1.0 + s.factor() * (length - original) / original));
  }

  Thetas operator()(const NTKByParts& s) const {
    return changed([&](double theta, int64_t) {
      return blend(theta, s.factor(), kept_share(theta, s.original_max_positions(), s.beta_fast(), s.beta_slow()));
    });
  }

  Thetas operator()(const Yarn& s) const {
    if (s.ramp() == Ramp::kTurns) {
      return (*this)(
          NTKByParts(s.factor(), s.original_max_positions()).beta_fast(s.beta_fast()).beta_slow(s.beta_slow()));
    }
    const auto [low, high] = yarn_ramp_bounds(dim, base, s);
    return changed([&, low = low, high = high](double theta, int64_t k) {
      return blend(theta, s.factor(), 1.0 - std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0));
    });
  }

  Thetas operator()(const LongRoPE& s) const {
    const auto& factors = long_rope_factors(s, seq_len);
    return changed([&](double theta, int64_t k) { return theta / factors[k]; });
  }

  Thetas operator()(const Llama3& s) const {
    const double original = static_cast<double>(s.original_max_positions());
    const double low = s.low_freq_factor();
    const double high = s.high_freq_factor();
    return changed([&](double theta, int64_t) {
      const double turns = original * theta / kTwoPi;  // L0 / lambda
      if (turns > high) return theta;
      if (turns < low) return theta / s.factor();
      return blend(theta, s.factor(), high == low ? 0.0 : (turns - low) / (high - low));
    });
  }

  Thetas operator()(const Proportional& s) const {
    const int64_t turning = turning_pairs(dim, s.fraction());
    return changed([&](double theta, int64_t k) { return k < turning ? theta / s.factor() : 0.0; });
  }

  Thetas operator()(const PRoPE& s) const { return (*this)(Proportional(s.fraction())); }

  Thetas operator()(const TruncatedBasis& s) const {
    const double kept = kTwoPi / static_cast<double>(s.length());
    return changed([&](double theta, int64_t) { return theta >= kept ? theta : theta >= kept / 8 ? kept / 16 : 0.0; });
  }

  Thetas operator()(const PowerBasis& s) const {
    return changed([&](double theta, int64_t k) {
      return theta * std::pow(1.0 - 2.0 * static_cast<double>(k) / static_cast<double>(dim), s.power());
    });
  }
};

}  // namespace

std::vector<double> exact_frequencies(int64_t dim, double base, const Scaling& scaling,
                                      std::optional<int64_t> seq_len) {
  return std::visit(ExactFormula{dim, base, seq_len}, scaling);
}

double ntk_base(int64_t dim, double base, double stretch) {
  return base * std::pow(stretch, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

std::pair<double, double> yarn_ramp_bounds(int64_t dim, double base, const Yarn& yarn) {
  const auto pair_with_turns = [&](double turns) {
    return (static_cast<double>(dim) *
            std::log(static_cast<double>(yarn.original_max_positions()) / (turns * kTwoPi))) /
           (2.0 * std::log(base));
  };
  double low = pair_with_turns(yarn.beta_fast());
  double high = pair_with_turns(yarn.beta_slow());
  if (yarn.truncate()) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));  // d-1 and not d/2-1, as every implementation has it
  if (low == high) high += 0.001;
  return {low, high};
}

int64_t turning_pairs(int64_t dim, double fraction) {
  return static_cast<int64_t>(std::floor(fraction * static_cast<double>(dim) / 2.0));
}

const std::vector<double>& long_rope_factors(const LongRoPE& scaling, std::optional<int64_t> seq_len) {
  return seq_len.value_or(0) > scaling.original_max_positions() ? scaling.long_factor() : scaling.short_factor();
}

}  // namespace posenc::scaling
