// Compiled once per instruction set.
#include "rotary/cpu/kernel.h"

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

constexpr bool is_wide(auto element) {
  return std::is_same_v<decltype(element), float> || std::is_same_v<decltype(element), double>;
}

/// The first n elements at p; all of a vector where n reaches that far, none where n is not positive.
template <typename T>
at::vec::Vectorized<T> load(const T* p, int64_t n) {
  using Packed = at::vec::Vectorized<T>;
  return n >= Packed::size() ? Packed::loadu(p) : cpu::load_partial(p, n < 0 ? 0 : n);
}

template <typename T>
void store(T* p, const at::vec::Vectorized<T>& v, int64_t n) {
  if (n >= at::vec::Vectorized<T>::size()) {
    v.store(p);
  } else if (n > 0) {
    cpu::store_partial(p, v, n);
  }
}

/// One step along a row in which the elements a and b of a pair are in different vectors: kPairs pairs, as kVectors
/// vectors of each, in the order of the tables. `n` < kPairs marks the partial step at a row's end.
template <typename T, bool interleaved>
struct SplitStep {
  using V = at::vec::Vectorized<Accumulate<T>>;
  static constexpr int kVectors = is_wide(T{}) || interleaved ? 1 : 2;
  static constexpr int64_t kPairs = kVectors * V::size();
  static constexpr int64_t kEntries = kPairs;

  static void read(const T* x, int64_t half, int64_t k, int64_t n, V* a, V* b) {
    if constexpr (is_wide(T{})) {
      a[0] = load(x + k, n);
      b[0] = load(x + half + k, n);
    } else if constexpr (interleaved) {
      cpu::split_bfloat16(load(x + 2 * k, 2 * n), a[0], b[0]);
    } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
      cpu::split_bfloat16(load(x + k, n), a[0], a[1]);
      cpu::split_bfloat16(load(x + half + k, n), b[0], b[1]);
    } else {
      std::tie(a[0], a[1]) = at::vec::convert_to_float<T>(load(x + k, n));
      std::tie(b[0], b[1]) = at::vec::convert_to_float<T>(load(x + half + k, n));
    }
  }

  static void write(T* y, int64_t half, int64_t k, int64_t n, const V* a, const V* b) {
    if constexpr (is_wide(T{})) {
      store(y + k, a[0], n);
      store(y + half + k, b[0], n);
    } else if constexpr (interleaved) {
      store(y + 2 * k, cpu::join_bfloat16(a[0], b[0]), 2 * n);
    } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
      store(y + k, cpu::join_bfloat16(a[0], a[1]), n);
      store(y + half + k, cpu::join_bfloat16(b[0], b[1]), n);
    } else {
      store(y + k, at::vec::convert_from_float<T>(a[0], a[1]), n);
      store(y + half + k, at::vec::convert_from_float<T>(b[0], b[1]), n);
    }
  }

  /// (a, b) -> (a cos - b sin, b cos + a sin). Both elements of a pair are read before either is written.
  static void rotate(const T* x, T* y, int64_t half, int64_t k, int64_t n, const Accumulate<T>* cos,
                     const Accumulate<T>* sin) {
    V a[kVectors], b[kVectors], ya[kVectors], yb[kVectors];
    read(x, half, k, n, a, b);
    for (int v = 0; v < kVectors; ++v) {
      const V c = V::loadu(cos + k + v * V::size()), s = V::loadu(sin + k + v * V::size());
      ya[v] = fmsub(a[v], c, b[v] * s);
      yb[v] = fmadd(b[v], c, a[v] * s);
    }
    write(y, half, k, n, ya, yb);
  }
};

/// One step along a row of interleaved pairs that turn where they lie, by doubled tables.
template <typename T>
struct DoubledStep {
  using V = at::vec::Vectorized<Accumulate<T>>;
  static constexpr int64_t kEntries = at::vec::Vectorized<T>::size();
  static constexpr int64_t kPairs = kEntries / 2;
  static_assert(kPairs > 0 && 2 * kPairs == kEntries);

  /// (a, b) * (cos, cos) + (b, a) * (-sin, sin), rounded as SplitStep rounds.
  static V turn(const V& v, const Accumulate<T>* cos, const Accumulate<T>* sin) {
    return fmadd(v, V::loadu(cos), cpu::swap_neighbours(v) * V::loadu(sin));
  }

  static void rotate(const T* x, T* y, int64_t /*half*/, int64_t k, int64_t n, const Accumulate<T>* cos,
                     const Accumulate<T>* sin) {
    const auto packed = load(x + 2 * k, 2 * n);
    cos += 2 * k;
    sin += 2 * k;
    if constexpr (is_wide(T{})) {
      store(y + 2 * k, turn(packed, cos, sin), 2 * n);
    } else {
      const auto [low, high] = at::vec::convert_to_float<T>(packed);
      const V low_turned = turn(low, cos, sin), high_turned = turn(high, cos + V::size(), sin + V::size());
      store(y + 2 * k, at::vec::convert_from_float<T>(low_turned, high_turned), 2 * n);
    }
  }
};

template <typename T, bool interleaved>
using Step =
    std::conditional_t<interleaved && !std::is_same_v<T, c10::BFloat16>, DoubledStep<T>, SplitStep<T, interleaved>>;

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

/// Asks for the rows that are read and written at the same place of the next head, or, after the last one, of the next
/// block of tokens: a head's block is short, and where it ends the processor's own prefetching begins anew.
template <typename T>
inline __attribute__((always_inline)) void prefetch_next(const Rows& r, int64_t head, int64_t token) {
  const bool last = head + 1 == r.heads;
  const int64_t next_head = last ? 0 : head + 1, next_token = last ? token + r.tokens : token;
  cpu::prefetch(static_cast<const T*>(r.x) + next_head * r.x_head + next_token * r.x_token, r.width);
  cpu::prefetch(static_cast<const T*>(r.y) + next_head * r.y_head + next_token * r.y_token, r.width);
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
    const bool jumps = packed && r.x_head > r.tokens * r.x_token;
    for (int64_t head = 0; head < r.heads; ++head) {
      for (int64_t token = 0; token < r.tokens; ++token) {
        if (jumps) {
          prefetch_next<T>(r, head, token);
        }
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

template <typename T>
int64_t entries(bool interleaved) {
  return interleaved ? Step<T, true>::kEntries : Step<T, false>::kEntries;
}

int64_t chunk(ElementType type, bool interleaved) {
  switch (type) {
    case ElementType::kFloat:
      return entries<float>(interleaved);
    case ElementType::kDouble:
      return entries<double>(interleaved);
    case ElementType::kBFloat16:
      return entries<c10::BFloat16>(interleaved);
    default:
      return entries<c10::Half>(interleaved);
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

/// position * frequency along one axis.
Vd product(const Frequencies& f, double position, const Vd& w) {
  const Vd p = Vd(position) * w;
  return f.one_axis_each ? Vd::blendv(p, Vd(0.0), w == Vd(0.0)) : p;
}

Vd angle(const Frequencies& f, const double* positions, int64_t k) {
  Vd sum = product(f, positions[0], Vd::loadu(f.freq + k));
  for (int64_t axis = 1; axis < f.axes; ++axis) {
    sum = sum + product(f, positions[axis], Vd::loadu(f.freq + axis * f.stride + k));
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
      const Vd w = Vd::loadu(f.freq + axis * f.stride + k);
      const Vd term = product(f, positions[axis], w), sum = a + term, part = sum - a;
      const Vd rounding = cpu::product_error(Vd(positions[axis]), w, term) + ((a - (sum - part)) + (term - part));
      e = e + (f.one_axis_each ? Vd::blendv(rounding, Vd(0.0), w == Vd(0.0)) : rounding);
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
