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
#include <type_traits>

namespace posenc::attention_ops {

using cpu::ElementType;

/// Queries and keys of a tile. Multiples of every register tile (matmul.h).
constexpr int64_t kTileQueries = 96, kTileKeys = 96;

/// Between natural logarithms and those of base 2.
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

/// Keys of a block of a DecodeJob.
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

/// Rows of T that a job adds gradients to, as wide as packed rows. data null: not wanted.
template <typename T>
struct GradientRows {
  T* data;
  int64_t row;

  /// The rows from `first` on.
  GradientRows from(int64_t first) const { return {data + first * row, row}; }
};

/// Biases that are added to scale * query . key.
template <typename T>
struct ScoreBias {
  /// -slope * |distance|
  double slope;
  /// Null, or 2 * radius + 1 entries over the clipped distance key - query.
  const T* table;
  int64_t radius;
  /// Null, or for each key a sum: that of the query's own key less that of the key is added.
  const double* decay_sums;
  /// Null, or beside these a count: where that of the query's own key differs from that of the key, NaN is added.
  const int64_t* undefined_decays;
  /// data null, or one row of keys for each query; -infinity, or the lowest number of its type, hides a key.
  ConstRows bias;
};

/// Tables by distance, row radius + clip(key - query, -radius, radius) of 2 * radius + 1, that are added to keys and to
/// values (arXiv 1803.02155, equations 3 and 4).
template <typename T>
struct RelativeTables {
  int64_t radius;
  /// data null: the head has no such tables.
  PackedRows<T> key;
  /// data null: none.
  PackedRows<T> value;
};

/// Fractions of positions count units of 2^-30, or 2^-50 in double: integers, so that sums of gates are exact, and the
/// backward pass, which takes the gates away again, finds the positions of the forward pass to the last bit.
template <typename T>
using Fraction = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;
template <typename T>
constexpr int kFractionBits = std::is_same_v<T, float> ? 30 : 50;

/// Where the counting of gates left off, for each query of a head.
template <typename T>
struct ContextualState {
  /// The first key whose position lies below the last entry of the table: further keys are at that entry.
  int32_t* first_key;
  /// The position of that key, as integer and fraction.
  int32_t* whole;
  Fraction<T>* fraction;
};

/// Positions counted by gates, from the query leftwards, and the logits that they look up (arXiv 2405.18719).
template <typename T>
struct ContextualTable {
  /// Row p: the embedding of position p. data null: the head has none.
  PackedRows<T> rows;
  int64_t entries;
  /// What query . row is multiplied by.
  double scale;
  /// Gates are sigmoid(gate_scale * query . gate_key + gate_bias), gate_scale that of the job.
  double gate_scale, gate_bias;
  /// data null: the keys themselves.
  PackedRows<T> gate_key;
  /// first_key null: not wanted. Written by the forward kernel, read by the backward kernel.
  ContextualState<T> state;
};

/// Other queries and keys, whose products are the scores of keys at least `threshold` positions before their query.
template <typename T>
struct FarOperands {
  /// data null: the head has none. Begins at the first query of the job.
  ConstRows query;
  PackedRows<T> key;
  int64_t threshold;
};

/// What the scores of a head are made of beside scale * query . key.
template <typename T>
struct Scores {
  ScoreBias<T> bias;
  RelativeTables<T> relative;
  ContextualTable<T> contextual;
  FarOperands<T> far;
};

/// Sums that a job adds the gradients of Scores to, each null where not wanted.
template <typename T>
struct ScoreGradients {
  /// 2 * radius + 1 entries; one number.
  double* table;
  double* slope;
  /// One for each key.
  double* decay_sums;
  /// Rows like those of bias, of type T.
  MutableRows bias;
  GradientRows<T> relative_key, relative_value;
  GradientRows<T> contextual, gate_key;
  double* gate_bias;
  GradientRows<T> far_key;
  /// Written. Begins at the first query of the job.
  MutableRows far_query;
};

/// What the size of a job's workspace follows from; 0 or false where a head has no such part.
struct Shape {
  int64_t width, value_width;
  int64_t relative_entries;
  bool relative_values;
  int64_t contextual_entries;
  bool gate_keys;
  bool far;
};

/// probability 0: none. The mask's rule stands in dropout.h.
struct Dropout {
  double probability;
  uint32_t low, high;
  /// batch row * heads + head.
  uint32_t head;
};

/// For each query of a head the largest score in base 2, or one near it, and the sum of 2^(score - that one). Where
/// scores are large, lse = largest + log2(total) rounds total away. largest null: not wanted, or not there.
template <typename T>
struct SoftmaxState {
  T *largest, *total;
};

template <typename T>
struct ForwardJob {
  Shape shape;
  Visibility visible;
  Scores<T> scores;
  Dropout dropout;
  double scale;
  /// The queries of the job. query and out begin at the first of them, everything else at the head's first.
  int64_t first_query, queries;
  ConstRows query;
  PackedRows<T> key, value;
  /// Rows of pairs of bfloat16, (width + 1) / 2 elements of T. data null: none; else key may be null.
  PackedRows<T> key_pairs;
  MutableRows out;
  /// Natural logarithms.
  T* lse;
  SoftmaxState<T> softmax;
};

template <typename T>
struct BackwardJob {
  Shape shape;
  Visibility visible;
  Scores<T> scores;
  Dropout dropout;
  double scale;
  /// The queries of the job. query, out, grad_out and grad_query begin at the first of them.
  int64_t first_query, queries;
  ConstRows query, out, grad_out;
  PackedRows<T> key, value;
  /// As in the forward pass.
  PackedRows<T> key_pairs, value_pairs;
  const T* lse;
  SoftmaxState<T> softmax;
  /// Null where lse has no gradient.
  const T* grad_lse;
  GradientRows<T> grad_key, grad_value;
  /// Written; data null: not wanted.
  MutableRows grad_query;
  ScoreGradients<T> grad_scores;
};

/// Attention of few queries over part of the keys of the heads that share them. Keys of all kinds and values are read
/// once, where they lie (their columns adjacent), in their own type. Rows of queries are in the order head * queries +
/// query, `width` columns, times log2 e and a scale of their own.
template <typename T>
struct DecodeJob {
  Shape shape;
  Visibility visible;
  /// One for each head. Gate keys and far operands are those below; contextual.state is not written.
  const Scores<T>* scores;
  const Dropout* dropouts;
  int64_t heads, queries;
  int64_t first_key, last_key;
  PackedRows<T> query;
  ConstRows key, value;
  /// data null: the heads have none.
  PackedRows<T> far_query;
  ConstRows far_key;
  /// Times contextual.scale. data null: the heads have no contextual positions.
  PackedRows<T> position_query;
  /// data null: gates come from the keys themselves.
  ConstRows gate_key;
  /// Whether the positions of all keys are known to be at the last entry of the table.
  bool saturated;
  /// Null, or the job ends where that has come about for all rows, and writes the first key that it attended to.
  int64_t* stop;
  /// By row: the largest score in base 2, the sum of 2^(score - largest), and the values summed with those weights,
  /// with room for a multiple of the lanes in a row.
  T* largest;
  T* total;
  T* sums;
  int64_t sums_row;
};

struct ForwardKernels {
  /// Elements of T that a job's workspace holds.
  int64_t (*workspace_float)(const Shape& shape);
  int64_t (*workspace_double)(const Shape& shape);
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
  /// Elements of T that the workspace of a job with so many rows of queries holds.
  int64_t (*workspace_float)(const Shape& shape, int64_t rows);
  int64_t (*workspace_double)(const Shape& shape, int64_t rows);
  void (*decode_float)(const DecodeJob<float>& job, float* workspace);
  void (*decode_double)(const DecodeJob<double>& job, double* workspace);
};

struct BackwardKernels {
  int64_t (*workspace_float)(const Shape& shape);
  int64_t (*workspace_double)(const Shape& shape);
  void (*backward_float)(const BackwardJob<float>& job, float* workspace);
  void (*backward_double)(const BackwardJob<double>& job, double* workspace);
};

POSENC_DECLARE_KERNELS(ForwardKernels, attention_forward_kernels);
POSENC_DECLARE_KERNELS(DecodeKernels, attention_decode_kernels);
POSENC_DECLARE_KERNELS(BackwardKernels, attention_backward_kernels);

}  // namespace posenc::attention_ops
