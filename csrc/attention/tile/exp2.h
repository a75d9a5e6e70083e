#pragma once

/// Powers of two, for kernel files only.

#include "attention/tile/types.h"
#include "cpu/vec.h"

namespace posenc::attention_ops {
namespace {

using at::vec::fmadd;
using cpu::Vd;
using cpu::Vf;
using cpu::Vi;

/// 2^(x + low) for a `low` of less than 1/2, mostly too small to be added to x. The integer part of x goes into the
/// exponent; 2^r for the rest, |r| <= 1/2, is a polynomial of degree 6 with a constant of exactly 1 (else each
/// rescaling of a long row would drift): 8.2e-8 of relative error and 1e-9 in the mean, so that sums of thousands of
/// gates do not drift either. Below 2^-100 the result is 0 (smaller weights would make denormal products, twenty times
/// slower, and count for nothing next to the largest weight, 1); NaN stays NaN.
inline Vf exp2(const Vf& exponent, const Vf& low = Vf(0.0f)) {
  const Vf lowest(-100.0f), magic(12582912.0f);  // 1.5 * 2^23: the sum's last bits are the rounded integer
  const Vf x = at::vec::clamp_min(exponent, lowest);
  const Vf t = x + magic;
  const Vf r = x - (t - magic) + low;
  Vf p = fmadd(r, Vf(1.5461444854736328e-4f), Vf(1.3400427997112274e-3f));
  p = fmadd(p, r, Vf(9.618056938052177e-3f));
  p = fmadd(p, r, Vf(5.550327152013779e-2f));
  p = fmadd(p, r, Vf(0.24022650718688965f));
  p = fmadd(p, r, Vf(0.6931471824645996f));
  p = fmadd(p, r, Vf(1.0f));
  const Vf y = at::vec::cast<float>(at::vec::cast<int32_t>(p) + (at::vec::cast<int32_t>(t) << Vi(23)));
  return Vf::blendv(y, Vf(0.0f), exponent < lowest);
}

/// The same to double's accuracy: the series of 2^r up to r^13.
inline Vd exp2(const Vd& exponent, const Vd& low = Vd(0.0)) {
  using Vl = at::vec::Vectorized<int64_t>;
  const Vd lowest(-900.0), magic(6755399441055744.0);  // 1.5 * 2^52
  const Vd x = at::vec::clamp_min(exponent, lowest);
  const Vd t = x + magic;
  const Vd r = (x - (t - magic) + low) * Vd(kLn2);
  constexpr double kInverseFactorials[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  Vd p(kInverseFactorials[0]);
  for (int i = 1; i < 14; ++i) {
    p = fmadd(p, r, Vd(kInverseFactorials[i]));
  }
  const Vd y = at::vec::cast<double>(at::vec::cast<int64_t>(p) + (at::vec::cast<int64_t>(t) << Vl(52)));
  return Vd::blendv(y, Vd(0.0), exponent < lowest);
}

}  // namespace
}  // namespace posenc::attention_ops
