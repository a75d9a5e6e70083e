#pragma once

/// Rotations as plain float64 loops, written from the papers' formulas; like reference.h, without a call of posenc.

#include "reference.h"

namespace reference {

/// RoFormer (arXiv 2104.09864), eq. 34: x (B, H, T, D) rotated at positions (T) or (B, T); inv_freq (R/2). Columns from
/// R on stay.
inline Tensor rotate(const Tensor& x, const Tensor& positions, const Tensor& inv_freq, double scaling = 1.0,
                     bool interleaved = false, bool inverse = false) {
  const Tensor in = wide(x), out = in.clone(), p = wide(positions), f = wide(inv_freq);
  const int64_t pairs = f.size(0);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t t = 0; t < x.size(2); ++t) {
        const double* from = at(in, {b, h, t, 0});
        double* to = at(out, {b, h, t, 0});
        for (int64_t k = 0; k < pairs; ++k) {
          const int64_t i = interleaved ? 2 * k : k, j = interleaved ? 2 * k + 1 : k + pairs;
          const double angle = *at(p, {b, t}) * *at(f, {k}) * (inverse ? -1 : 1);
          const double c = scaling * std::cos(angle), s = scaling * std::sin(angle);
          to[i] = from[i] * c - from[j] * s;
          to[j] = from[j] * c + from[i] * s;
        }
      }
    }
  }
  return out;
}

/// b^(-2k/d), k = 0 .. d/2 - 1.
inline Tensor inv_freq(int64_t dim, double base = 10000.0) {
  const Tensor f = at::zeros({dim / 2}, at::kDouble);
  for (int64_t k = 0; k < dim / 2; ++k) {
    *at(f, {k}) = std::pow(base, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
  }
  return f;
}

}  // namespace reference
