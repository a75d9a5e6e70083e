#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct DecayHead {
  /// Null, or for each key a sum: that of the query's own key less that of the key is added.
  const double* sums;
  /// Null, or for each key a count: where that of the query's own key differs from that of the key, NaN is added.
  const int64_t* undefined;

  bool used() const { return sums != nullptr; }
};

template <typename T>
struct DecayGradient {
  /// Null, or a sum for each key.
  double* sums;
};

}  // namespace posenc::attention_ops
