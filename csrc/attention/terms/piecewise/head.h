#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

template <typename T>
struct PiecewiseHead {
  /// Whether the head has far operands. Begins at the first query of the job.
  bool far;
  ConstRows query;
  PackedRows<T> key;
  int64_t threshold;

  bool used() const { return far; }
};

template <typename T>
struct PiecewiseGradient {
  GradientRows<T> key;
  /// Written. Begins at the first query of the job.
  MutableRows query;
};

/// In decoding: rows of queries times scale * log2 e, and keys where they lie.
template <typename T>
struct PiecewiseRows {
  PackedRows<T> query;
  ConstRows key;
};

}  // namespace posenc::attention_ops
