#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

/// Tables by distance, row radius + clip(key - query, -radius, radius) of 2 * radius + 1.
template <typename T>
struct RelativeHead {
  int64_t radius;
  /// Whether a query of its own is multiplied with `key`, and its rows, `width` wide; they begin at the first query of
  /// the job.
  bool has_query;
  ConstRows query;
  int64_t width;
  /// data null: the head has no such tables.
  PackedRows<T> key;
  /// data null: none.
  PackedRows<T> value;

  bool used() const { return key.data != nullptr; }
  bool has_values() const { return value.data != nullptr; }
  int64_t entries() const { return used() ? 2 * radius + 1 : 0; }
};

template <typename T>
struct RelativeGradient {
  GradientRows<T> key, value;
  /// Written. Begins at the first query of the job.
  MutableRows query;
};

/// In decoding: rows of queries of its own, times scale * log2 e.
template <typename T>
struct RelativeRows {
  PackedRows<T> query;
};

}  // namespace posenc::attention_ops
