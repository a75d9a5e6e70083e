#pragma once

#include "attention/tile/types.h"

namespace posenc::attention_ops {

/// A table over distances that is multiplied with keys. Entries stand in the order of query - key: what neighbouring
/// queries need of a key are neighbours then.
template <typename T>
struct RelativeKeysHead {
  int64_t radius;
  /// Entries before it belong to no query that sees a key: `product` lacks them.
  int64_t first;
  /// (2 * radius + 1, width), times scale * log2 e; row radius + clip(query - key, -radius, radius). data null: none.
  PackedRows<T> table;
  int64_t width;
  /// For each key its product with all entries, in rows from product_row(); null in decoding.
  const T* product;

  bool used() const { return table.data != nullptr; }
  int64_t entries() const { return 2 * radius + 1; }
};

template <typename T>
struct RelativeKeysGradient {
  /// The sums of the products' gradients, in such rows; null: not wanted.
  T* product;
};

/// A row of products has before its first entry and after its last one that entry again, once for each further lane of
/// a tile, so that a vector of queries reads neighbours wherever their distances are clipped.
constexpr int64_t kRepeatedEntries = kTileQueries;
constexpr int64_t product_row(int64_t radius) { return 2 * radius + 1 + 2 * kRepeatedEntries; }

}  // namespace posenc::attention_ops
