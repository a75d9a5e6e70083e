#pragma once

#include "attention/tile/types.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace posenc::attention_ops {

template <typename T>
struct SinksHead {
  /// Null, or the natural logit of query i at logits[i * of_query].
  const double* logits;
  int64_t of_query;

  bool used() const { return logits != nullptr; }
  /// In base 2. Where T is coarser than a softmax resolves it is the number of T nearby, as that is what the forward
  /// pass can leave for the backward pass.
  double at(int64_t query) const {
    constexpr double kCoarse = 1e6, kMost = std::numeric_limits<T>::max();
    const double logit = logits[query * of_query] * kLog2E;
    if (!std::isfinite(logit) || std::abs(logit) < kCoarse) {
      return logit;
    }
    return static_cast<double>(static_cast<T>(std::clamp(logit, -kMost, kMost)));
  }
};

template <typename T>
struct SinksGradient {
  /// Null, or the sum of query i at sums[i * of_query].
  double* sums;
  int64_t of_query;
};

}  // namespace posenc::attention_ops
