#pragma once

/// The plain ATen form of attention works on a block of queries at a time. This is what its terms are written with: the
/// inputs in the computing dtype, products that keep hidden numbers out, and sums of gradients.

#include "attention/results.h"

#include <ATen/ATen.h>

#include <limits>

namespace posenc::attention_ops::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// How the plain form runs.
enum class Mode {
  /// On real tensors, without waiting for their values.
  kDevice,
  /// Differentiable and transformable: nothing is read or written in place.
  kComposite,
};

/// Queries begin .. begin + length - 1.
struct Rows {
  c10::SymInt begin;
  c10::SymInt length;
};

/// A block of queries with what its scores need.
struct Block {
  Rows rows;
  /// (B, H, length, D), in the computing dtype.
  Tensor query;
  /// bool, broadcastable to (B, H, length, Tk).
  Tensor visible;
  /// k_position - q_position, int64, broadcastable to (B, 1, length, Tk); absent where positions are floating.
  /// Differences that int64 cannot hold are its largest or smallest number.
  OptionalTensor distance;
};

/// The inputs of a call in the computing dtype, and matrix products over them that keep what a query does not see from
/// it: 0 times NaN is NaN, so a hidden key that is not finite must not enter a sum, not even with weight 0.
class Operands {
 public:
  Operands(const Call& c, Mode mode);

  const Call& call;
  const Mode mode;
  const at::ScalarType dtype;
  const c10::SymInt batch, heads, groups, keys;

  const Tensor& operator[](Input input) const { return *wide_[input]; }

  /// Rows of an input (B, H, Tq, ..) for the queries of a block.
  Tensor rows_of(Input input, const Rows& rows) const {
    return wide_[input]->narrow_symint(2, rows.begin, rows.length);
  }
  /// The place among the keys of the block's first query, as queries are the last tokens.
  c10::SymInt own_key(const Rows& rows) const { return keys - call.query().sym_size(2) + rows.begin; }

  /// a (B, H, r, D) and keys b (B, G, Tk, D) -> a b^T (B, H, r, Tk). Entries of hidden keys may be anything.
  Tensor scores(const Tensor& a, Input b) const;
  /// weights (B, H, r, Tk), 0 where hidden, and b (B, G, Tk, d) -> weights b (B, H, r, d).
  Tensor sum_keys(const Tensor& weights, Input b, const Tensor& visible) const;
  /// weights (B, H, r, Tk), 0 where hidden, and rows x (B, H, r, d) -> weights^T x summed over each group (B, G, Tk,
  /// d).
  Tensor sum_queries(const Tensor& weights, const Tensor& x, const Tensor& visible) const;

 private:
  std::array<OptionalTensor, kInputs> wide_;
};

/// Sums of gradients in the computing dtype, as far as wanted.
class GradientSums {
 public:
  explicit GradientSums(const Wanted& wanted) : wanted_(wanted) {}

  bool wants(Input input) const { return wanted_[input]; }
  /// Adds to the gradient of an input that all queries share.
  void add(Input input, const Tensor& gradient);
  /// Adds to the rows of the current block, in an input that has a row for each query.
  void add_rows(Input input, const Tensor& gradient);
  /// Ends a block of queries.
  void next_block();
  /// The gradient of an input (zeros where nothing was added), with its dtype and strides.
  Tensor result(const Operands& o, Input input) const;

 private:
  Wanted wanted_;
  std::array<OptionalTensor, kInputs> sums_;
  std::array<OptionalTensor, kInputs> rows_;
  std::array<std::vector<Tensor>, kInputs> blocks_;
};

/// The gradient of the product query . key, 0 where it is not used, and where it is.
struct ProductGradient {
  Tensor gradient;
  Tensor visible;
};

/// Adds the gradients of `query` (rows of a block) and of `key` from those of scale * query . key.
void add_product_gradients(const Operands& o, const Tensor& query, Input query_input, Input key_input,
                           const ProductGradient& product, GradientSums& sums);

/// table (B|1, H, r, n), index int64 broadcastable to (B, 1, r, Tk) -> (B, H, r, Tk).
Tensor look_up(const Operands& o, const Tensor& table, const Tensor& index);
/// The transpose of look_up: x (B, H, r, Tk) summed into n bins (B, H, r, n).
Tensor sum_bins(const Operands& o, const Tensor& x, const Tensor& index, const c10::SymInt& n);
/// The rows of a block in x, which is broadcastable to (B, H, Tq, Tk), and whether x has a row for each query.
Tensor block_rows(const Tensor& x, const Rows& rows);
bool has_row_for_each_query(const Tensor& x);
/// R + clip(distance, -R, R) for a table of 2R + 1 entries.
Tensor clipped(const Tensor& distance, const c10::SymInt& entries);
Tensor clipped(const Block& block, const c10::SymInt& entries);
/// a - b of int64, the largest or smallest number where int64 cannot hold it.
Tensor difference(const Tensor& a, const Tensor& b);
/// The dtype of long sums. MPS has no float64.
at::ScalarType wide_type(const Operands& o);

}  // namespace posenc::attention_ops::reference
