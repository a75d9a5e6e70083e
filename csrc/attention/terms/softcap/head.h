#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

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
