#pragma once

/// The plain data that kernels work on: rows of tensors as pointers and strides, and the rules of visibility. This
/// header costs nothing to include and serves every instruction set alike.

#include "cpu/element.h"

#include <cstdint>

namespace posenc::attention_ops {

using cpu::ElementType;

/// Queries and keys of a tile. Multiples of every register tile (gemm.h).
constexpr int64_t kTileQueries = 96, kTileKeys = 96;

/// Between natural logarithms and those of base 2.
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

/// Keys of a block in decoding.
constexpr int64_t kDecodeKeys = 128;

/// Rows of a tensor, strides in elements.
struct ConstRows {
  const void* data;
  int64_t row, column;
  ElementType type;
};
struct MutableRows {
  void* data;
  int64_t row, column;
  ElementType type;
};

/// Rows of T, each contiguous and readable up to a multiple of the vector length (zeros beyond the width).
template <typename T>
struct PackedRows {
  const T* data;
  int64_t row;

  /// The rows from `first` on.
  PackedRows from(int64_t first) const { return {data + first * row, row}; }
};

/// Which keys a query sees, for one batch row.
struct Visibility {
  int64_t queries, keys;
  bool causal;
  /// Whether windows end in `before` and `after`: sees keys with query - key < before and key - query < after.
  bool bounded_before, bounded_after;
  int64_t before, after;
  /// The same for times.
  double before_time, after_time;
  /// Position of query i less that of key 0, where positions count up by one on both sides.
  int64_t offset;
  /// Else the positions one by one: integers, or times. The other two are null.
  const int64_t *q_positions, *k_positions;
  const double *q_times, *k_times;
  /// Null, or for each key whether it may be attended.
  const bool* key_mask;
  /// Null, or the segments of queries and keys.
  const int64_t *q_segments, *k_segments;
  /// Null, or the block of each key, below 0 for none, and that of each query: tokens of one block see each other
  /// whatever positions say.
  const int64_t *q_blocks, *k_blocks;

  bool bounded() const { return bounded_before || bounded_after; }
  bool by_index() const { return q_positions == nullptr && q_times == nullptr; }
};

/// Rows of T that a job adds gradients to, as wide as packed rows. data null: not wanted.
template <typename T>
struct GradientRows {
  T* data;
  int64_t row;

  /// The rows from `first` on.
  GradientRows from(int64_t first) const { return {data + first * row, row}; }
};

/// probability 0: none. The mask's rule stands in dropout.h.
struct Dropout {
  double probability;
  uint32_t low, high;
  /// batch row * heads + head.
  uint32_t head;
};

}  // namespace posenc::attention_ops
