#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct BiasHead {
  /// data null, or one row of keys for each query; entries up to hiding_bound() (bound.h) hide a key.
  ConstRows rows;

  bool used() const { return rows.data != nullptr; }
};

template <typename T>
struct BiasGradient {
  /// Rows like those of the bias, of type T. data null: not wanted.
  MutableRows rows;
};

}  // namespace posenc::attention_ops
