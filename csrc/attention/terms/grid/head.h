#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

/// One of two axes.
template <typename T>
struct GridAxis {
  /// Coordinates of all queries and keys.
  const int64_t *query, *key;
  /// The coordinates that keys have, rising, and for each key which of them is its own. In no batch row are there more
  /// than `room` of them.
  const int64_t* value;
  const int32_t* place;
  int64_t room;
  /// Rows of a table over clip(key - query, -radius, radius), from that for `first` - radius on, `entries` of them: all
  /// that occur. data null: the head has none.
  PackedRows<T> table;
  int64_t radius, first, entries;
  /// The same of the bias.
  int64_t bias_radius;
};

/// Adds scale * query . (y.table[dy] + x.table[dx]), and bias[dy, dx].
template <typename T>
struct GridHead {
  GridAxis<T> y, x;
  /// Multiplies products with the tables; whether those of query and key have the same factor.
  double scale;
  bool is_score_scale;
  /// Row bias_radius + clip(key - query) along y; in a row, entry bias_radius - clip(key - query) along x, so that
  /// those of neighbouring queries follow each other. In base 2. Null: the head has none.
  const T* bias;

  bool used() const { return has_tables() || bias != nullptr; }
  bool has_tables() const { return y.table.data != nullptr; }
  int64_t bias_row() const { return 2 * x.bias_radius + 1; }
};

template <typename T>
struct GridGradient {
  /// Rows from `first` on.
  GradientRows<T> y, x;
  /// Sums in the order of GridHead::bias. Null: not wanted.
  double* bias;
};

/// In decoding: rows of queries times the tables' scale * log2 e.
template <typename T>
struct GridRows {
  PackedRows<T> query;
};

}  // namespace posenc::attention_ops
