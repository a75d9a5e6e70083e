#pragma once

#include "attention/tile/types.h"

#include <algorithm>

namespace posenc::attention_ops {

/// A cap that float32 holds and whose inverse it holds: one nearer to 0, or further away, caps alike.
inline double bounded_cap(double cap) { return std::clamp(cap, 1e-30, 1e30); }

template <typename T>
struct SoftcapHead {
  /// 0: none.
  double cap;
  /// Scores are capped after all terms, else their product before any.
  bool on_sum;

  bool used() const { return cap != 0.0; }
};

template <typename T>
struct SoftcapGradient {};

}  // namespace posenc::attention_ops
