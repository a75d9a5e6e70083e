#pragma once

/// The operands of a product of a tile, for kernel files only.

#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

/// Queries and keys whose products go into scores, and where their gradients are summed.
template <typename T>
struct Operands {
  /// scale * log2 e * queries as score_product() takes them.
  const T* query;
  /// All keys of the head.
  PackedRows<T> key;
  /// Both as pairs of bfloat16, whose products lack the factor `scale`. data null: there are none.
  const T* query_pairs;
  PackedRows<T> key_pairs;
  T scale;
  /// Backward: scale * queries, and whether one of them is not finite; sums of the queries' gradients (null: not
  /// wanted), rows of the padded width, still without the factor scale.
  const T* query_rows;
  bool query_is_nonfinite;
  T* grad_query;
  GradientRows<T> grad_key;
};

/// scores = key . query for the keys of a tile. largest: as in score_product().
template <typename T>
void product_of(const Operands<T>& o, const Tile& t, int64_t width, T* scores, T* largest) {
  if (o.key_pairs.data != nullptr) {
    pair_product(o.key_pairs.from(t.first_key), o.query_pairs, t.keys, t.lanes, width, t.diagonal, scores, largest,
                 o.scale);
  } else {
    score_product(o.key.from(t.first_key), o.query, t.keys, t.lanes, width, t.diagonal, scores, largest);
  }
}

}  // namespace
}  // namespace posenc::attention_ops
