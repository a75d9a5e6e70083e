#pragma once

/// What the attention kernels need: plain pointers, sizes and strides, so that this header costs nothing to include and
/// serves every instruction set alike.
///
/// A job is a tile of queries of one head against all keys that it sees. T is float, or double for float64; operands of
/// 16 bits are widened as they are packed. Scores live in base 2 (times log2 e) and only for one tile of keys at a
/// time.

#include "attention/terms/heads.h"
#include "cpu/capability.h"

namespace posenc::attention_ops {

/// What the size of a job's workspace follows from.
template <typename T>
struct WorkspaceSpec {
  int64_t width, value_width;
  Heads<T> heads;
};

/// For each query of a head the largest score in base 2, or one near it, and the sum of 2^(score - that one). Where
/// scores are large, lse = largest + log2(total) rounds total away. largest null: not wanted, or not there.
template <typename T>
struct SoftmaxState {
  T *largest, *total;
};

template <typename T>
struct ForwardJob {
  int64_t width, value_width;
  Visibility visible;
  Heads<T> heads;
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
  int64_t width, value_width;
  Visibility visible;
  Heads<T> heads;
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
  HeadGradients<T> gradients;
};

/// Attention of few queries over part of the keys of the heads that share them. Keys of all kinds and values are read
/// once, where they lie (their columns adjacent), in their own type. Rows of queries are in the order head * queries +
/// query, `width` columns, times log2 e and a scale of their own.
template <typename T>
struct DecodeJob {
  int64_t width, value_width;
  Visibility visible;
  /// One for each head; what they read of queries and keys is in `rows`.
  const Heads<T>* head_terms;
  DecodeRows<T> rows;
  const Dropout* dropouts;
  int64_t heads, queries;
  int64_t first_key, last_key;
  PackedRows<T> query;
  ConstRows key, value;
  /// Null, or the job ends once a term has found what it looked for, and writes the first key that it attended to.
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
  int64_t (*workspace_float)(const WorkspaceSpec<float>& spec);
  int64_t (*workspace_double)(const WorkspaceSpec<double>& spec);
  void (*forward_float)(const ForwardJob<float>& job, float* workspace);
  void (*forward_double)(const ForwardJob<double>& job, double* workspace);

  /// Lanes of a vector.
  int64_t float_lanes, double_lanes;
  /// Copies rows as T, with zeros from `width` to `padded`, a multiple of the lanes.
  void (*pack_float)(const ConstRows& from, int64_t rows, int64_t width, int64_t padded, float* to);
  void (*pack_double)(const ConstRows& from, int64_t rows, int64_t width, int64_t padded, double* to);
  /// Writes factor * row, `width` elements, to a row of any type.
  void (*unpack_float)(const float* row, int64_t width, float factor, const MutableRows& to);
  void (*unpack_double)(const double* row, int64_t width, double factor, const MutableRows& to);
};

struct DecodeKernels {
  /// Elements of T that the workspace of a job with so many heads and queries holds.
  int64_t (*workspace_float)(const WorkspaceSpec<float>& spec, int64_t heads, int64_t queries);
  int64_t (*workspace_double)(const WorkspaceSpec<double>& spec, int64_t heads, int64_t queries);
  void (*decode_float)(const DecodeJob<float>& job, float* workspace);
  void (*decode_double)(const DecodeJob<double>& job, double* workspace);
};

struct BackwardKernels {
  int64_t (*workspace_float)(const WorkspaceSpec<float>& spec);
  int64_t (*workspace_double)(const WorkspaceSpec<double>& spec);
  void (*backward_float)(const BackwardJob<float>& job, float* workspace);
  void (*backward_double)(const BackwardJob<double>& job, double* workspace);
};

POSENC_DECLARE_KERNELS(ForwardKernels, attention_forward_kernels);
POSENC_DECLARE_KERNELS(DecodeKernels, attention_decode_kernels);
POSENC_DECLARE_KERNELS(BackwardKernels, attention_backward_kernels);

}  // namespace posenc::attention_ops
