// Compiled once per instruction set.
#include "rotary/kernel.h"

#include "cpu/vec.h"

#include <cstring>
#include <type_traits>

namespace posenc::rotary_ops {
namespace {

using at::vec::fmadd;
using at::vec::fmsub;
using at::vec::fnmadd;
using cpu::Vd;
using cpu::Vf;
using cpu::Vi;

template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Loads and stores of one step of a row: kPairs pairs (a, b) as kVectors vectors each, in the order of the tables.
/// `n` < kPairs marks the partial step at a row's end.
template <typename T, bool interleaved>
struct Step {
  using V = at::vec::Vectorized<Accumulate<T>>;
  using Packed = at::vec::Vectorized<T>;
  static constexpr bool kWide = std::is_same_v<T, float> || std::is_same_v<T, double>;
  static constexpr int kVectors = kWide || interleaved ? 1 : 2;
  static constexpr int64_t kPairs = kVectors * V::size();

  static Packed packed(const T* p, int64_t n) {
    return n >= Packed::size() ? Packed::loadu(p) : cpu::load_partial(p, n < 0 ? 0 : n);
  }
  static void put(T* p, const Packed& v, int64_t n) {
    if (n >= Packed::size()) {
      v.store(p);
    } else if (n > 0) {
      cpu::store_partial(p, v, n);
    }
  }

  static void load(const T* x, int64_t half, int64_t k, int64_t n, V* a, V* b) {
    if constexpr (kWide && interleaved) {
      const T* p = x + 2 * k;
      std::tie(a[0], b[0]) = at::vec::deinterleave2(packed(p, 2 * n), packed(p + V::size(), 2 * n - V::size()));
    } else if constexpr (kWide) {
      a[0] = packed(x + k, n);
      b[0] = packed(x + half + k, n);
    } else if constexpr (std::is_same_v<T, c10::BFloat16> && interleaved) {
      cpu::split_bfloat16(packed(x + 2 * k, 2 * n), a[0], b[0]);
    } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
      cpu::split_bfloat16(packed(x + k, n), a[0], a[1]);
      cpu::split_bfloat16(packed(x + half + k, n), b[0], b[1]);
    } else if constexpr (interleaved) {
      const auto [low, high] = at::vec::convert_to_float<T>(packed(x + 2 * k, 2 * n));
      std::tie(a[0], b[0]) = at::vec::deinterleave2(low, high);
    } else {
      std::tie(a[0], a[1]) = at::vec::convert_to_float<T>(packed(x + k, n));
      std::tie(b[0], b[1]) = at::vec::convert_to_float<T>(packed(x + half + k, n));
    }
  }

  static void store(T* y, int64_t half, int64_t k, int64_t n, const V* a, const V* b) {
    if constexpr (kWide && interleaved) {
      const auto [low, high] = at::vec::interleave2(a[0], b[0]);
      put(y + 2 * k, low, 2 * n);
      put(y + 2 * k + V::size(), high, 2 * n - V::size());
    } else if constexpr (kWide) {
      put(y + k, a[0], n);
      put(y + half + k, b[0], n);
    } else if constexpr (std::is_same_v<T, c10::BFloat16> && interleaved) {
      put(y + 2 * k, cpu::join_bfloat16(a[0], b[0]), 2 * n);
    } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
      put(y + k, cpu::join_bfloat16(a[0], a[1]), n);
      put(y + half + k, cpu::join_bfloat16(b[0], b[1]), n);
    } else if constexpr (interleaved) {
      const auto [low, high] = at::vec::interleave2(a[0], b[0]);
      put(y + 2 * k, at::vec::convert_from_float<T>(low, high), 2 * n);
    } else {
      put(y + k, at::vec::convert_from_float<T>(a[0], a[1]), n);
      put(y + half + k, at::vec::convert_from_float<T>(b[0], b[1]), n);
    }
  }

  /// (a, b) -> (a cos - b sin, b cos + a sin). Both elements of a pair are read before either is written.
  static void rotate(const T* x, T* y, int64_t half, int64_t k, int64_t n, const Accumulate<T>* cos,
                     const Accumulate<T>* sin) {
    V a[kVectors], b[kVectors], ya[kVectors], yb[kVectors];
    load(x, half, k, n, a, b);
    for (int v = 0; v < kVectors; ++v) {
      const V c = V::loadu(cos + k + v * V::size()), s = V::loadu(sin + k + v * V::size());
      ya[v] = fmsub(a[v], c, b[v] * s);
      yb[v] = fmadd(b[v], c, a[v] * s);
    }
    store(y, half, k, n, ya, yb);
  }
};

template <typename T, bool interleaved>
void rotate_row(const T* x, T* y, int64_t pairs, int64_t width, const Accumulate<T>* cos, const Accumulate<T>* sin) {
  using S = Step<T, interleaved>;
  int64_t k = 0;
  for (; k + S::kPairs <= pairs; k += S::kPairs) {
    S::rotate(x, y, pairs, k, S::kPairs, cos, sin);
  }
  if (k < pairs) {
    S::rotate(x, y, pairs, k, pairs - k, cos, sin);
  }
  if (x != y && 2 * pairs < width) {
    std::memcpy(y + 2 * pairs, x + 2 * pairs, (width - 2 * pairs) * sizeof(T));
  }
}

/// rotate_row for rows whose columns are not adjacent: through a packed copy.
template <typename T, bool interleaved>
void rotate_row_strided(const Rows& r, const T* x, T* y, const Accumulate<T>* cos, const Accumulate<T>* sin) {
  T* from = static_cast<T*>(r.scratch);
  T* to = from + r.width;
  for (int64_t i = 0; i < r.width; ++i) {
    from[i] = x[i * r.x_column];
  }
  rotate_row<T, interleaved>(from, to, r.pairs, r.width, cos, sin);
  for (int64_t i = 0; i < r.width; ++i) {
    y[i * r.y_column] = to[i];
  }
}

template <typename T, bool interleaved>
void rotate_rows(const Rows& r) {
  using A = Accumulate<T>;
  const bool packed = r.x_column == 1 && r.y_column == 1;
  const auto row = [&](int64_t head, int64_t token) {
    const T* x = static_cast<const T*>(r.x) + head * r.x_head + token * r.x_token;
    T* y = static_cast<T*>(r.y) + head * r.y_head + token * r.y_token;
    const A* cos = static_cast<const A*>(r.cos) + token * r.table_stride;
    const A* sin = static_cast<const A*>(r.sin) + token * r.table_stride;
    if (packed) {
      rotate_row<T, interleaved>(x, y, r.pairs, r.width, cos, sin);
    } else {
      rotate_row_strided<T, interleaved>(r, x, y, cos, sin);
    }
  };
  // The inner loop walks the memory that is written, in order: a stream of whole lines either way.
  if (r.y_head >= r.y_token) {
    for (int64_t head = 0; head < r.heads; ++head) {
      for (int64_t token = 0; token < r.tokens; ++token) {
        row(head, token);
      }
    }
  } else {
    for (int64_t token = 0; token < r.tokens; ++token) {
      for (int64_t head = 0; head < r.heads; ++head) {
        row(head, token);
      }
    }
  }
}

template <typename T>
void rotate_type(const Rows& r) {
  r.interleaved ? rotate_rows<T, true>(r) : rotate_rows<T, false>(r);
}

void rotate(const Rows& r) {
  switch (r.type) {
    case ElementType::kFloat:
      return rotate_type<float>(r);
    case ElementType::kDouble:
      return rotate_type<double>(r);
    case ElementType::kBFloat16:
      return rotate_type<c10::BFloat16>(r);
    case ElementType::kHalf:
      return rotate_type<c10::Half>(r);
  }
}

int64_t chunk(ElementType type, bool interleaved) {
  switch (type) {
    case ElementType::kFloat:
      return Vf::size();
    case ElementType::kDouble:
      return Vd::size();
    default:
      return interleaved ? Vf::size() : 2 * Vf::size();
  }
}

/// Sines and cosines, in float32, of float64 angles below kMaxVectorAngle: t = n pi/2 + r with |r| <= pi/4, the
/// reduction in float64 (pi/2 as 33 + 53 bits, so that n times the first part is exact up to 2^20 and one rounding of a
/// fused multiply-add beyond), then the minimax polynomials of Cephes for sinf and cosf.
void sincos(const Vd& low, const Vd& high, Vf& sin, Vf& cos) {
  const Vd two_over_pi(0.63661977236758134308);
  const Vd half_pi_high(1.57079632673412561417), half_pi_low(6.07710050650619224932e-11);
  const Vd n_low = (low * two_over_pi).round(), n_high = (high * two_over_pi).round();
  const Vf r = cpu::narrow(fnmadd(n_low, half_pi_low, fnmadd(n_low, half_pi_high, low)),
                           fnmadd(n_high, half_pi_low, fnmadd(n_high, half_pi_high, high)));
  const Vi quadrant = cpu::narrow_integers(n_low, n_high);
  const Vf r2 = r * r;
  const Vf sin_tail = fmadd(fmadd(Vf(-1.9515295891e-4f), r2, Vf(8.3321608736e-3f)), r2, Vf(-1.6666654611e-1f));
  const Vf sin_r = fmadd(sin_tail * r2, r, r);
  const Vf cos_tail =
      fmadd(fmadd(Vf(2.443315711809948e-5f), r2, Vf(-1.388731625493765e-3f)), r2, Vf(4.166664568298827e-2f));
  const Vf cos_r = fmadd(cos_tail, r2 * r2, fnmadd(Vf(0.5f), r2, Vf(1.0f)));
  const Vf swap = at::vec::cast<float>((quadrant << Vi(31)) >> Vi(31));
  sin = cpu::flip_sign(Vf::blendv(sin_r, cos_r, swap), (quadrant & Vi(2)) << Vi(30));
  cos = cpu::flip_sign(Vf::blendv(cos_r, sin_r, swap), ((quadrant + Vi(1)) & Vi(2)) << Vi(30));
}

Vd angle(const Frequencies& f, const double* positions, int64_t k) {
  Vd sum = Vd(positions[0]) * Vd::loadu(f.freq + k);
  for (int64_t axis = 1; axis < f.axes; ++axis) {
    sum = fmadd(Vd(positions[axis]), Vd::loadu(f.freq + axis * f.stride + k), sum);
  }
  return sum;
}

void angles_float(const Frequencies& f, const double* positions, double scale, double sign, float* cos, float* sin) {
  const Vf cos_factor(static_cast<float>(scale)), sin_factor(static_cast<float>(scale * sign));
  for (int64_t k = 0; k < f.pairs; k += Vf::size()) {
    Vf s, c;
    sincos(angle(f, positions, k), angle(f, positions, k + Vd::size()), s, c);
    (c * cos_factor).store(cos + k);
    (s * sin_factor).store(sin + k);
  }
}

/// The angle as an unevaluated sum a + e (each product and sum keeps its rounding error), so that 1e-12 holds beyond
/// the first thousands of positions too; sin(a + e) = sin a + e cos a to first order.
void angles_double(const Frequencies& f, const double* positions, double scale, double sign, double* cos, double* sin) {
  const Vd cos_factor(scale), sin_factor(scale * sign);
  for (int64_t k = 0; k < f.pairs; k += Vd::size()) {
    Vd a(0.0), e(0.0);
    for (int64_t axis = 0; axis < f.axes; ++axis) {
      const Vd p(positions[axis]), w = Vd::loadu(f.freq + axis * f.stride + k);
      const Vd product = p * w, sum = a + product, part = sum - a;
      e = e + fmsub(p, w, product) + ((a - (sum - part)) + (product - part));
      a = sum;
    }
    const Vd s = a.sin(), c = a.cos();
    (fnmadd(e, s, c) * cos_factor).store(cos + k);
    (fmadd(e, c, s) * sin_factor).store(sin + k);
  }
}

void split_even_odd(const float* from, float* to, int64_t n) {
  for (int64_t k = 0; k < n; k += 2 * Vf::size()) {
    const auto [even, odd] = at::vec::deinterleave2(Vf::loadu(from + k), Vf::loadu(from + k + Vf::size()));
    even.store(to + k);
    odd.store(to + k + Vf::size());
  }
}

constexpr Kernels kKernels{Vf::size(), &chunk, &rotate, &angles_float, &angles_double, &split_even_odd};

}  // namespace

POSENC_DEFINE_KERNELS(Kernels, rotary_kernels, kKernels)

}  // namespace posenc::rotary_ops
