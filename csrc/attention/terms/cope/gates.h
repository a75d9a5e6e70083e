#pragma once

/// Contextual positions (CoPE, arXiv 2405.18719), for kernel files only: the position of a key is the sum of gates from
/// it to the query, and its logit an interpolation between two entries of a table.
///
/// A position is kept as an integer and a fraction in [0, 1) of fixed point, so that sums over thousands of keys lose
/// nothing and floor costs nothing. Once the position of a query's keys is at the last entry (the query has saturated),
/// all keys before share that entry's logit. Their tiles do without it: it is subtracted from the query's running
/// maximum instead. The keys from there to the query are its band. The forward pass walks the band from the query to
/// its first key and leaves where the counting stopped; the backward pass starts there and takes the gates away again.

#include "attention/terms/heads.h"
#include "attention/tile/exp2.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

/// Gates from scores as kernels have them: times a factor scale * log2 e that T has rounded. The error of the factor
/// and of the bias is the same for all keys, so it would accumulate in the sum of gates; it is corrected here.
template <typename T>
class Gates {
 public:
  explicit Gates(const CopeHead<T>& table) {
    const double factor = table.gate_scale * kLog2E, rounded = static_cast<double>(static_cast<T>(factor));
    const double bias = table.gate_bias * kLog2E;
    bias_ = static_cast<T>(bias);
    const double lost_factor = rounded == 0.0 ? 0.0 : factor / rounded - 1.0;
    const double lost = static_cast<double>(bias_) * lost_factor - (bias - static_cast<double>(bias_));
    lost_factor_ = static_cast<T>(lost_factor);
    lost_ = static_cast<T>(std::abs(lost) < 0.5 ? lost : 0.0);  // beyond, gates are 0 or 1, whatever was lost
  }

  Vec<T> operator()(const Vec<T>& score) const {
    const Vec<T> one(T(1)), bound(T(100));
    const Vec<T> x = at::vec::clamp_min(at::vec::clamp_max((score + Vec<T>(bias_)).neg(), bound), bound.neg());
    return one / (one + exp2(x, fmadd(x, Vec<T>(lost_factor_), Vec<T>(lost_))));
  }

 private:
  T bias_, lost_factor_, lost_;
};

template <typename T>
using Fractions = Vec<Fraction<T>>;

/// The fraction that is 1.
template <typename T>
constexpr Fraction<T> kWhole = Fraction<T>{1} << kFractionBits<T>;

/// Gates as fractions, rounded to nearest; NaN as 0.
template <typename T>
Fractions<T> to_fractions(const Vec<T>& gate) {
  const Vec<T> number = at::vec::clamp_min(Vec<T>(T(0)), gate);
  return at::vec::convert_to_int_of_same_size(fmadd(number, Vec<T>(static_cast<T>(kWhole<T>)), Vec<T>(T(0.5))));
}

template <typename T>
Vec<T> from_fractions(const Fractions<T>& fraction) {
  return at::vec::convert_to_fp_of_same_size<T>(fraction) * Vec<T>(T(1) / static_cast<T>(kWhole<T>));
}

}  // namespace
}  // namespace posenc::attention_ops
