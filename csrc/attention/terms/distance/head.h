#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct DistanceHead {
  /// -slope * |distance|. One of a call that has slopes may be 0, and has a gradient even so.
  bool has_slope;
  double slope;
  /// Null, or 2 * radius + 1 entries over the clipped distance key - query.
  const T* table;
  int64_t radius;

  bool used() const { return has_slope || table != nullptr; }
};

/// Sums, each null where not wanted.
template <typename T>
struct DistanceGradient {
  /// 2 * radius + 1 entries; one number.
  double *table, *slope;
};

}  // namespace posenc::attention_ops
