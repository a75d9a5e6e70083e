#pragma once

/// What the rotary kernels need: plain pointers, sizes and strides, so that this header costs nothing to include and
/// serves every instruction set alike.

#include "cpu/capability.h"
#include "cpu/element.h"

#include <cstdint>

namespace posenc::rotary_ops {

using cpu::ElementType;

/// Rows of one tensor to rotate: `heads` x `tokens` rows of `width` elements, of which the first 2 * `pairs` turn.
/// Strides count elements. x == y rotates in place.
struct Rows {
  const void* x;
  void* y;
  int64_t heads, tokens, width, pairs;
  int64_t x_head, x_token, x_column;
  int64_t y_head, y_token, y_column;
  ElementType type;
  bool interleaved;
  /// Cosines and sines, one row a token: double for kDouble, else float, in the order that pair_order() says and
  /// readable up to a multiple of Kernels::chunk entries.
  const void* cos;
  const void* sin;
  int64_t table_stride;
  /// Room for two rows of `width` elements; used where a column stride is not 1.
  void* scratch;
};

/// Frequencies of one head: angle of pair k at positions p is the sum over axes of p[axis] * freq[axis * stride + k].
struct Frequencies {
  const double* freq;
  int64_t axes, stride, pairs;
  /// Every pair turns by one axis; the zeros in the rows of the others stand for no product (which would be NaN where a
  /// position is infinite), not for a product with zero.
  bool one_axis_each;
};

struct Kernels {
  /// Float lanes of a vector.
  int64_t lanes;

  /// Table entries that one step reads.
  int64_t (*chunk)(ElementType type, bool interleaved);

  void (*rotate)(const Rows& rows);

  /// scale * cos and scale * sign * sin of one token's angles, which must stay below kMaxVectorAngle in magnitude
  /// (float only). pairs is a multiple of `lanes`.
  void (*angles_float)(const Frequencies& f, const double* positions, double scale, double sign, float* cos,
                       float* sin);
  void (*angles_double)(const Frequencies& f, const double* positions, double scale, double sign, double* cos,
                        double* sin);

  /// Copies n floats so that each 2 * lanes of them hold first those of even, then those of odd place; n is a multiple
  /// of 2 * lanes.
  void (*split_even_odd)(const float* from, float* to, int64_t n);
};

/// Beyond this the two-constant reduction of the float kernel would lose its 1e-7.
constexpr double kMaxVectorAngle = 1e9;

/// How a row of cosines and one of sines hold the pairs.
enum class PairOrder {
  /// One entry a pair.
  kPlain,
  /// One entry a pair, in steps of two vectors: first the pairs of even, then those of odd place. bfloat16 in half
  /// layout, whose even and odd lanes cost no shuffle.
  kEvenOdd,
  /// Two entries a pair, (cos, cos) and (-sin, sin). Interleaved pairs, which then turn where they lie:
  /// (a, b) -> (a, b) * (cos, cos) + (b, a) * (-sin, sin).
  kDoubled,
};

constexpr PairOrder pair_order(ElementType type, bool interleaved) {
  if (type == ElementType::kBFloat16) {
    return interleaved ? PairOrder::kPlain : PairOrder::kEvenOdd;
  }
  return interleaved ? PairOrder::kDoubled : PairOrder::kPlain;
}

POSENC_DECLARE_KERNELS(Kernels, rotary_kernels);

}  // namespace posenc::rotary_ops
