#pragma once

/// Vector helpers beyond at::vec, for kernel files only: each such file is compiled once per instruction set, so
/// everything here has internal linkage (an AVX-512 copy must never serve another level).

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace posenc::cpu {
namespace {

using Vf = at::vec::Vectorized<float>;
using Vd = at::vec::Vectorized<double>;
using Vi = at::vec::Vectorized<int32_t>;

static_assert(2 * Vd::size() == Vf::size() && Vi::size() == Vf::size());

#if defined(CPU_CAPABILITY_AVX2)
/// The first n of eight 32-bit lanes set, for masked loads and stores (at::vec goes through memory there).
inline __m256i lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

/// The first n elements at p; the other lanes are unspecified but finite.
template <typename T>
inline at::vec::Vectorized<T> load_partial(const T* p, int64_t n) {
#if defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm256_maskload_ps(p, lanes_below(n)));
  } else if constexpr (sizeof(T) == 2) {
    if (n % 2 == 0) {
      return at::vec::Vectorized<T>(_mm256_maskload_epi32(reinterpret_cast<const int*>(p), lanes_below(n / 2)));
    }
  }
#endif
  return at::vec::Vectorized<T>::loadu(p, n);
}

template <typename T>
inline void store_partial(T* p, const at::vec::Vectorized<T>& v, int64_t n) {
#if defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    _mm256_maskstore_ps(p, lanes_below(n), v);
    return;
  } else if constexpr (sizeof(T) == 2) {
    if (n % 2 == 0) {
      _mm256_maskstore_epi32(reinterpret_cast<int*>(p), lanes_below(n / 2), v);
      return;
    }
  }
#endif
  v.store(p, static_cast<int>(n));
}

/// Asks for the n elements at p, to come into the second-level cache. (GCC drops calls of a function that does nothing
/// else, so it must be inlined.)
template <typename T>
inline __attribute__((always_inline)) void prefetch(const T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(p + i, /*rw=*/0, /*locality=*/2);
  }
}

/// The same vector, which stays in its register: GCC would rather load it anew for each use, and loads are what
/// products of a register tile have least of.
template <typename T>
inline at::vec::Vectorized<T> held(const at::vec::Vectorized<T>& v) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    __m512 lanes = v;
    asm("" : "+v"(lanes));
    return lanes;
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    __m256 lanes = v;
    asm("" : "+x"(lanes));
    return lanes;
  }
#endif
  return v;
}

/// Two vectors of doubles rounded to one of floats, in lane order.
inline Vf narrow(const Vd& low, const Vd& high) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vf(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1));
#elif defined(CPU_CAPABILITY_AVX2)
  return Vf(_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)));
#else
  alignas(64) double wide[Vf::size()];
  alignas(64) float out[Vf::size()];
  low.store(wide);
  high.store(wide + Vd::size());
  for (int i = 0; i < Vf::size(); ++i) {
    out[i] = static_cast<float>(wide[i]);
  }
  return Vf::loadu(out);
#endif
}

/// Two vectors of doubles that hold integers below 2^31 in magnitude, as int32.
inline Vi narrow_integers(const Vd& low, const Vd& high) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vi(_mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvtpd_epi32(low)), _mm512_cvtpd_epi32(high), 1));
#elif defined(CPU_CAPABILITY_AVX2)
  return Vi(_mm256_set_m128i(_mm256_cvtpd_epi32(high), _mm256_cvtpd_epi32(low)));
#else
  alignas(64) double wide[Vf::size()];
  alignas(64) int32_t out[Vf::size()];
  low.store(wide);
  high.store(wide + Vd::size());
  for (int i = 0; i < Vf::size(); ++i) {
    out[i] = static_cast<int32_t>(wide[i]);
  }
  return Vi::loadu(out);
#endif
}

/// a * b - product, the rounding error of product = a * b, exact.
inline Vd product_error(const Vd& a, const Vd& b, const Vd& product) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  return at::vec::fmsub(a, b, product);
#else
  alignas(64) double x[Vd::size()], y[Vd::size()], p[Vd::size()];
  a.store(x);
  b.store(y);
  product.store(p);
  for (int i = 0; i < Vd::size(); ++i) {
    p[i] = std::fma(x[i], y[i], -p[i]);
  }
  return Vd::loadu(p);
#endif
}

inline Vf flip_sign(const Vf& v, const Vi& sign_bits) {
  return at::vec::cast<float>(at::vec::cast<int32_t>(v) ^ sign_bits);
}

/// Neighbours exchanged: lanes 1 0 3 2 ..
template <typename T>
inline at::vec::Vectorized<T> swap_neighbours(const at::vec::Vectorized<T>& v) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm512_permute_ps(v, 0xb1));
  } else {
    return Vd(_mm512_permute_pd(v, 0x55));
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm256_permute_ps(v, 0xb1));
  } else {
    return Vd(_mm256_permute_pd(v, 0x5));
  }
#else
  alignas(64) T lanes[at::vec::Vectorized<T>::size()];
  v.store(lanes);
  for (int i = 0; i < at::vec::Vectorized<T>::size(); i += 2) {
    std::swap(lanes[i], lanes[i + 1]);
  }
  return at::vec::Vectorized<T>::loadu(lanes);
#endif
}

/// A vector of bfloat16 as floats: its even and its odd lanes, which cost a shift and a mask and no shuffle.
inline void split_bfloat16(const at::vec::Vectorized<c10::BFloat16>& v, Vf& even, Vf& odd) {
  const Vi bits = Vi::loadu(&v);
  even = at::vec::cast<float>(bits << Vi(16));
  odd = at::vec::cast<float>(bits & Vi(static_cast<int32_t>(0xffff0000)));
}

/// Whether multiply_pairs() exists: it needs Capability::kAVX512BF16 beside.
#if defined(CPU_CAPABILITY_AVX512)
inline constexpr bool kMultipliesPairs = true;
#else
inline constexpr bool kMultipliesPairs = false;
#endif

/// sum + both products of the bfloat16 numbers in lanes of a and b. Subnormal ones count as 0.
inline Vf multiply_pairs(const Vf& a, const Vf& b, const Vf& sum) {
#if defined(CPU_CAPABILITY_AVX512)
  __m512 result = sum;
  // Not an intrinsic: these files are compiled for processors that lack the instruction.
  asm("vdpbf16ps %2, %1, %0" : "+v"(result) : "v"(static_cast<__m512>(a)), "v"(static_cast<__m512>(b)));
  return result;
#else
  static_cast<void>(a), static_cast<void>(b);
  return sum;
#endif
}

/// Whether a lane of a or of b is NaN.
inline bool any_nan(const Vf& a, const Vf& b) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
#else
  return (a == a).zero_mask() != 0 || (b == b).zero_mask() != 0;
#endif
}

/// Whether a lane of a mask (all bits of a lane set, or none) is set.
template <typename T>
inline bool any_lane(const at::vec::Vectorized<T>& mask) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_movepi32_mask(_mm512_castps_si512(mask)) != 0;
  } else {
    return _mm512_movepi64_mask(_mm512_castpd_si512(mask)) != 0;
  }
#elif defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_movemask_ps(mask) != 0;
  } else {
    return _mm256_movemask_pd(mask) != 0;
  }
#else
  return (mask == mask).zero_mask() != 0;  // a set lane is NaN
#endif
}

/// to[index] = v for the lanes of a mask, whose indices differ. The other lanes are stored as well where that is faster
/// than to tell them apart.
template <typename T>
inline void scatter(const at::vec::Vectorized<T>& v, const at::vec::Vectorized<at::vec::int_same_size_t<T>>& index,
                    [[maybe_unused]] const at::vec::Vectorized<T>& mask, T* to) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<T, float>) {
    _mm512_mask_i32scatter_ps(to, _mm512_movepi32_mask(_mm512_castps_si512(mask)), index, v, sizeof(T));
  } else {
    _mm512_mask_i64scatter_pd(to, _mm512_movepi64_mask(_mm512_castpd_si512(mask)), index, v, sizeof(T));
  }
#else
  constexpr int kLanes = at::vec::Vectorized<T>::size();
  alignas(64) T values[kLanes];
  alignas(64) at::vec::int_same_size_t<T> places[kLanes];
  v.store(values);
  index.store(places);
  for (int i = 0; i < kLanes; ++i) {
    to[places[i]] = values[i];
  }
#endif
}

/// The sum of all lanes.
inline float sum_lanes(const Vf& v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_reduce_add_ps(v);
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256 x = v;
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
  alignas(64) float lanes[Vf::size()];
  v.store(lanes);
  float sum = 0.0f;
  for (const float x : lanes) {
    sum += x;
  }
  return sum;
#endif
}

inline double sum_lanes(const Vd& v) {
  alignas(64) double lanes[Vd::size()];
  v.store(lanes);
  double sum = 0.0;
  for (const double x : lanes) {
    sum += x;
  }
  return sum;
}

/// The upper halves of 32-bit lanes, those of `even` in the even and those of `odd` in the odd 16-bit lanes.
inline Vi join_upper_halves(const Vi& even, const Vi& odd) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vi(_mm512_mask_mov_epi16(_mm512_srli_epi32(even, 16), 0xaaaaaaaa, odd));
#elif defined(CPU_CAPABILITY_AVX2)
  return Vi(_mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa));
#else
  return ((even >> Vi(16)) & Vi(0xffff)) | (odd & Vi(static_cast<int32_t>(0xffff0000)));
#endif
}

/// Two vectors as the even and odd lanes of one of bfloat16, rounded to nearest, ties to even; NaN stays NaN.
inline at::vec::Vectorized<c10::BFloat16> join_bfloat16(const Vf& even, const Vf& odd) {
  const auto round = [](const Vf& v) {
    const Vi bits = at::vec::cast<int32_t>(v);
    return bits + Vi(0x7fff) + ((bits >> Vi(16)) & Vi(1));
  };
  Vi low = round(even), high = round(odd);
  if (any_nan(even, odd)) {  // rounding up may have carried a NaN's mantissa into its sign
    const auto keep_nan = [](const Vi& rounded, const Vf& v) {
      return at::vec::cast<int32_t>(
          Vf::blendv(at::vec::cast<float>(Vi(0x7fc00000)), at::vec::cast<float>(rounded), v == v));
    };
    low = keep_nan(low, even);
    high = keep_nan(high, odd);
  }
  const Vi bits = join_upper_halves(low, high);
  return at::vec::Vectorized<c10::BFloat16>::loadu(&bits);
}

}  // namespace
}  // namespace posenc::cpu
