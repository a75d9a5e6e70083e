#pragma once

/// Vector helpers beyond at::vec, for kernel files only.
///
/// Kernel files are compiled once per set of kernel objects (cpu/levels.h), each time with other compiler flags and
/// with CPU_CAPABILITY_<set> defined, from which at::vec chooses the width of its vectors and this file chooses one of
///
///     cpu/vec/generic.h    plain C++ over at::vec, correct at any width: what every function here means
///     cpu/vec/avx2.h       the same functions in intrinsics, where those are faster
///     cpu/vec/avx512.h
///
/// Everything in kernel files and in the headers that they include has internal linkage (an unnamed namespace): the
/// linker keeps one copy of a function that several objects share, and the copy made for AVX-512 must never run on a
/// processor without it. A test looks at the objects.
///
/// A further set, e.g. NEON: a row in cpu/levels.h, and cpu/vec/neon.h, chosen below. It may begin as generic.h's
/// functions alone (`using generic::NAME;` for each) and replace one after the other; tests run every function at every
/// level.

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cstdint>

namespace posenc::cpu {
namespace {

template <typename T>
using Vec = at::vec::Vectorized<T>;
using Vf = Vec<float>;
using Vd = Vec<double>;
using Vi = Vec<int32_t>;

static_assert(2 * Vd::size() == Vf::size() && Vi::size() == Vf::size());
static_assert(Vd::size() >= 2);  // 128 bits

}  // namespace
}  // namespace posenc::cpu

#include "cpu/vec/generic.h"
#if defined(CPU_CAPABILITY_AVX512)
#include "cpu/vec/avx512.h"
#elif defined(CPU_CAPABILITY_AVX2)
#include "cpu/vec/avx2.h"
#else
namespace posenc::cpu {
namespace {
using namespace generic;
}  // namespace
}  // namespace posenc::cpu
#endif

// What is the same in every set.

namespace posenc::cpu {
namespace {

/// Asks for the n elements at p, to come into the second-level cache. (GCC drops calls of a function that does nothing
/// else, so it must be inlined.)
template <typename T>
inline __attribute__((always_inline)) void prefetch(const T* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(p + i, /*rw=*/0, /*locality=*/2);
  }
}

inline Vf flip_sign(const Vf& v, const Vi& sign_bits) {
  return at::vec::cast<float>(at::vec::cast<int32_t>(v) ^ sign_bits);
}

/// A vector of bfloat16 as floats: its even and its odd lanes, which cost a shift and a mask and no shuffle.
inline void split_bfloat16(const Vec<c10::BFloat16>& v, Vf& even, Vf& odd) {
  const Vi bits = Vi::loadu(&v);
  even = at::vec::cast<float>(bits << Vi(16));
  odd = at::vec::cast<float>(bits & Vi(static_cast<int32_t>(0xffff0000)));
}

/// Two vectors as the even and odd lanes of one of bfloat16, rounded to nearest, ties to even; NaN stays NaN.
inline Vec<c10::BFloat16> join_bfloat16(const Vf& even, const Vf& odd) {
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
  return Vec<c10::BFloat16>::loadu(&bits);
}

}  // namespace
}  // namespace posenc::cpu
