#pragma once

#include "attention/tile/types.h"

#include <type_traits>

namespace posenc::attention_ops {

/// Fractions of positions count units of 2^-30, or 2^-50 in double: integers, so that sums of gates are exact, and the
/// backward pass, which takes the gates away again, finds the positions of the forward pass to the last bit.
template <typename T>
using Fraction = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;
template <typename T>
constexpr int kFractionBits = std::is_same_v<T, float> ? 30 : 50;

/// Where the counting of gates left off, for each query of a head.
template <typename T>
struct GateCounts {
  /// The first key whose position lies below the last entry of the table: keys before it are at that entry.
  Fraction<T>* first_key;
  /// The position of that key, as integer and fraction.
  Fraction<T>* whole;
  Fraction<T>* fraction;
};

/// Positions counted by gates from the query to keys before it, and the logits that they look up.
template <typename T>
struct CopeHead {
  /// Row p: the embedding of position p. data null: the head has none.
  PackedRows<T> table;
  int64_t entries;
  /// What query . row is multiplied by.
  double scale;
  /// Gates are sigmoid(gate_scale * query . gate_key + gate_bias), gate_scale that of the job.
  double gate_scale, gate_bias;
  /// Whether gates have keys of their own, and those keys; else they come from the keys themselves.
  bool has_gate_keys;
  PackedRows<T> gate_key;
  /// Whether other terms change scores that gates come from.
  bool copies_product;
  /// Whether the product is capped, so that the gradients of gates do not join that of the score; and the sum, so that
  /// no part of a score may be left out.
  bool caps_product, caps_sum;
  /// first_key null: not wanted. Written by the forward kernel, read by the backward kernel.
  GateCounts<T> counts;

  bool used() const { return table.data != nullptr; }
};

template <typename T>
struct CopeGradient {
  GradientRows<T> table, gate_key;
  /// Null: not wanted.
  double* gate_bias;
};

/// In decoding: rows of queries times scale * log2 e, and gate keys where they lie (data null: none).
template <typename T>
struct CopeRows {
  PackedRows<T> query;
  ConstRows gate_key;
  /// Whether the positions of all keys are known to be at the last entry of the table.
  bool saturated;
};

}  // namespace posenc::attention_ops
