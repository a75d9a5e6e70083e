#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct MaskHead {
  /// Null, or whether query i may attend to key j at data[i * row + j * column].
  const bool* data;
  int64_t row, column;

  bool used() const { return data != nullptr; }
};

template <typename T>
struct MaskGradient {};

}  // namespace posenc::attention_ops
