#pragma once

/// The functions that a set of kernel objects may have faster, in plain C++ over at::vec, for vectors of any width.
/// Baseline kernels use these; the files of other sets (avx2.h, avx512.h) define their own or take these by name.
/// Part of cpu/vec.h, which explains the pattern.

#include <cmath>
#include <cstring>
#include <utility>

namespace posenc::cpu {
namespace {
namespace generic {

/// The first n elements at p; the other lanes are unspecified but finite.
template <typename T>
inline Vec<T> load_partial(const T* p, int64_t n) {
  return Vec<T>::loadu(p, n);
}

template <typename T>
inline void store_partial(T* p, const Vec<T>& v, int64_t n) {
  v.store(p, static_cast<int>(n));
}

/// The same vector, kept in its register: GCC would rather load it anew for each use, and the ports that load are what
/// limits products of a register tile.
template <typename T>
inline Vec<T> keep_in_register(const Vec<T>& v) {
  return v;
}

/// Two vectors of doubles rounded to one of floats, in lane order.
inline Vf narrow(const Vd& low, const Vd& high) {
  alignas(64) double wide[Vf::size()];
  alignas(64) float out[Vf::size()];
  low.store(wide);
  high.store(wide + Vd::size());
  for (int i = 0; i < Vf::size(); ++i) {
    out[i] = static_cast<float>(wide[i]);
  }
  return Vf::loadu(out);
}

/// Two vectors of doubles that hold integers below 2^31 in magnitude, as int32.
inline Vi narrow_integers(const Vd& low, const Vd& high) {
  alignas(64) double wide[Vf::size()];
  alignas(64) int32_t out[Vf::size()];
  low.store(wide);
  high.store(wide + Vd::size());
  for (int i = 0; i < Vf::size(); ++i) {
    out[i] = static_cast<int32_t>(wide[i]);
  }
  return Vi::loadu(out);
}

/// a * b - product, the rounding error of product = a * b, exact.
inline Vd product_error(const Vd& a, const Vd& b, const Vd& product) {
  alignas(64) double x[Vd::size()], y[Vd::size()], p[Vd::size()];
  a.store(x);
  b.store(y);
  product.store(p);
  for (int i = 0; i < Vd::size(); ++i) {
    p[i] = std::fma(x[i], y[i], -p[i]);
  }
  return Vd::loadu(p);
}

/// Adjacent lanes exchanged: lanes 1 0 3 2 ..
template <typename T>
inline Vec<T> swap_neighbours(const Vec<T>& v) {
  alignas(64) T lanes[Vec<T>::size()];
  v.store(lanes);
  for (int i = 0; i < Vec<T>::size(); i += 2) {
    std::swap(lanes[i], lanes[i + 1]);
  }
  return Vec<T>::loadu(lanes);
}

/// Whether multiply_bf16x2() exists. It may be called at levels with has_bf16x2() only.
inline constexpr bool kHasBf16x2 = false;

/// sum + both products of the bfloat16 numbers in lanes of a and b. Subnormal ones count as 0.
inline Vf multiply_bf16x2(const Vf& /*a*/, const Vf& /*b*/, const Vf& sum) { return sum; }

/// Whether a lane of a or of b is NaN.
inline bool any_nan(const Vf& a, const Vf& b) { return (a == a).zero_mask() != 0 || (b == b).zero_mask() != 0; }

/// Whether a lane of a mask (all bits of a lane set, or none) is set.
template <typename T>
inline bool any_lane(const Vec<T>& mask) {
  return (mask == mask).zero_mask() != 0;  // a set lane is NaN
}

/// to[index] = v for the lanes of a mask, whose indices differ. The other lanes are stored as well where that is faster
/// than to tell them apart.
template <typename T>
inline void scatter(const Vec<T>& v, const Vec<at::vec::int_same_size_t<T>>& index, const Vec<T>& /*mask*/, T* to) {
  constexpr int kLanes = Vec<T>::size();
  alignas(64) T values[kLanes];
  alignas(64) at::vec::int_same_size_t<T> places[kLanes];
  v.store(values);
  index.store(places);
  for (int i = 0; i < kLanes; ++i) {
    to[places[i]] = values[i];
  }
}

/// The sum of all lanes.
template <typename T>
inline T sum_lanes(const Vec<T>& v) {
  alignas(64) T lanes[Vec<T>::size()];
  v.store(lanes);
  T sum = 0;
  for (const T x : lanes) {
    sum += x;
  }
  return sum;
}

/// The sums of the lanes of as many vectors as one has lanes: lane i is sum_lanes(v[i]), but for the order of sums.
template <typename T>
inline __attribute__((always_inline)) Vec<T> lane_sums(const Vec<T>* v) {
  alignas(64) T sums[Vec<T>::size()];
  for (int i = 0; i < Vec<T>::size(); ++i) {
    sums[i] = sum_lanes(v[i]);
  }
  return Vec<T>::loadu(sums);
}

/// The upper halves of 32-bit lanes, those of `even` in the even and those of `odd` in the odd 16-bit lanes.
inline Vi join_upper_halves(const Vi& even, const Vi& odd) {
  return ((even >> Vi(16)) & Vi(0xffff)) | (odd & Vi(static_cast<int32_t>(0xffff0000)));
}

}  // namespace generic
}  // namespace
}  // namespace posenc::cpu
