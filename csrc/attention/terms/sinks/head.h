#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct SinksHead {
  /// Null, or the natural logit of query i at logits[i * of_query].
  const double* logits;
  int64_t of_query;

  bool used() const { return logits != nullptr; }
  /// In base 2.
  double at(int64_t query) const { return logits[query * of_query] * kLog2E; }
};

template <typename T>
struct SinksGradient {
  /// Null, or the sum of query i at sums[i * of_query].
  double* sums;
  int64_t of_query;
};

}  // namespace posenc::attention_ops
