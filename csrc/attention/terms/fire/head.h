#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

/// Adds offset[s] + slope[s] x with x = warp(distance) / norm(query), where s knots are at most x. In base 2.
template <typename T>
struct FireHead {
  /// knots + 1 entries; null: the head has none.
  const T *offset, *slope;
  /// Rising.
  const T* knots;
  int64_t segments;
  /// warp(n) = log(1 + |rate * n|): null, or a table for n = 0 .. longest, which no query and key exceed.
  const T* warp;
  int64_t longest;
  double rate;
  /// 1 / norm, for each query.
  const T* inverse_norm;

  bool used() const { return slope != nullptr; }
};

/// Sums, each null where not wanted; those of scores in natural units.
template <typename T>
struct FireGradient {
  /// By segment: the sums of score gradients g, and of g x.
  double *offset, *slope;
  /// By query: sum of g slope[s] x.
  double* norm;
  /// Sum of g slope[s] warp'(distance) / norm.
  double* rate;
};

}  // namespace posenc::attention_ops
