#pragma once

/// What the attention kernels need: plain pointers, sizes and strides, so that this header costs nothing to include and
/// serves every instruction set alike.
///
/// A job is a tile of queries of one head against all keys that it sees. T is float, or double for float64; operands of
/// 16 bits are widened as they are packed. Scores live in base 2 (times log2 e) and only for one tile of keys at a
/// time.

#include "cpu/capability.h"
#include "cpu/element.h"

#include <cstdint>

namespace posenc::attention_ops {

using cpu::ElementType;

/// Queries and keys of a tile. Multiples of every register tile (matmul.h).
constexpr int64_t kTileQueries = 96, kTileKeys = 96;

/// Between natural logarithms and those of base 2.
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

/// Keys of a block of a DecodeJob.
constexpr int64_t kDecodeKeys = 64;

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
};

/// Which keys a query sees, for one batch row.
struct Visibility {
  int64_t queries, keys;
  bool causal;
  /// 0: no window.
  int64_t window;
  /// Position of query i less that of key 0, where positions count up by one on both sides (q_positions null).
  int64_t offset;
  /// Else: positions by index; exact integers or times.
  const double* q_positions;
  const double* k_positions;
  /// Null, or for each key whether it may be attended.
  const bool* key_mask;
  /// Null, or the segment of each key; query i is of that of key keys - queries + i.
  const int64_t* segments;
};

/// What is added to scale * query . key, for one head.
template <typename T>
struct ScoreBias {
  /// -slope * |distance|
  double slope;
  /// Null, or 2 * radius + 1 entries over the clipped distance key - query.
  const T* table;
  int64_t radius;
  /// data null, or one row of keys for each query; -infinity, or the lowest number of its type, hides a key.
  ConstRows bias;
};

/// probability 0: none. The mask's rule stands in dropout.h.
struct Dropout {
  double probability;
  uint32_t low, high;
  /// batch row * heads + head.
  uint32_t head;
};

template <typename T>
struct ForwardJob {
  Visibility visible;
  ScoreBias<T> bias;
  Dropout dropout;
  double scale;
  int64_t width, value_width;
  /// The queries of the job. query and out begin at the first of them, everything else at the head's first.
  int64_t first_query, queries;
  ConstRows query;
  PackedRows<T> key, value;
  MutableRows out;
  /// Natural logarithms.
  T* lse;
};

template <typename T>
struct BackwardJob {
  Visibility visible;
  ScoreBias<T> bias;
  Dropout dropout;
  double scale;
  int64_t width, value_width;
  /// The queries of the job. query, out, grad_out and grad_query begin at the first of them.
  int64_t first_query, queries;
  ConstRows query, out, grad_out;
  PackedRows<T> key, value;
  const T* lse;
  /// Null where lse has no gradient.
  const T* grad_lse;
  /// Each null where not wanted. Rows of T that the job adds to, as wide as packed rows.
  T* grad_key;
  T* grad_value;
  int64_t grad_key_row, grad_value_row;
  /// Written.
  MutableRows grad_query;
  /// Sums that the job adds to: 2 * radius + 1 entries, one number.
  double* grad_table;
  double* grad_slope;
  /// data null, or rows like bias that the job adds to, of type T.
  MutableRows grad_bias;
};

/// Attention of few queries over part of the keys of the heads that share them. Keys and values are read once, where
/// they lie (their columns adjacent), in their own type.
template <typename T>
struct DecodeJob {
  Visibility visible;
  /// One for each head.
  const ScoreBias<T>* biases;
  const Dropout* dropouts;
  int64_t heads, queries, width, value_width;
  int64_t first_key, last_key;
  /// Row head * queries + query: scale * log2 e * query, `width` columns, zeros up to a multiple of the lanes.
  PackedRows<T> query;
  ConstRows key, value;
  /// By row: the largest score in base 2, the sum of 2^(score - largest), and the values summed with those weights,
  /// with room for a multiple of the lanes in a row.
  T* largest;
  T* total;
  T* sums;
  int64_t sums_row;
};

struct ForwardKernels {
  /// Elements of T that a job's workspace holds.
  int64_t (*workspace_float)(int64_t width, int64_t value_width);
  int64_t (*workspace_double)(int64_t width, int64_t value_width);
  void (*forward_float)(const ForwardJob<float>& job, float* workspace);
  void (*forward_double)(const ForwardJob<double>& job, double* workspace);

  /// Lanes of a vector.
  int64_t float_lanes, double_lanes;
  /// Copies rows as T, zeros behind `width` up to `padded`, a multiple of the lanes.
  void (*pack_float)(const ConstRows& from, int64_t rows, int64_t width, int64_t padded, float* to);
  void (*pack_double)(const ConstRows& from, int64_t rows, int64_t width, int64_t padded, double* to);
  /// Writes factor * row, `width` elements, to a row of any type.
  void (*unpack_float)(const float* row, int64_t width, float factor, const MutableRows& to);
  void (*unpack_double)(const double* row, int64_t width, double factor, const MutableRows& to);
};

struct DecodeKernels {
  int64_t (*workspace_float)(int64_t rows);
  int64_t (*workspace_double)(int64_t rows);
  void (*decode_float)(const DecodeJob<float>& job, float* workspace);
  void (*decode_double)(const DecodeJob<double>& job, double* workspace);
};

struct BackwardKernels {
  int64_t (*workspace_float)(int64_t width, int64_t value_width);
  int64_t (*workspace_double)(int64_t width, int64_t value_width);
  void (*backward_float)(const BackwardJob<float>& job, float* workspace);
  void (*backward_double)(const BackwardJob<double>& job, double* workspace);
};

POSENC_DECLARE_KERNELS(ForwardKernels, attention_forward_kernels);
POSENC_DECLARE_KERNELS(DecodeKernels, attention_decode_kernels);
POSENC_DECLARE_KERNELS(BackwardKernels, attention_backward_kernels);

}  // namespace posenc::attention_ops
