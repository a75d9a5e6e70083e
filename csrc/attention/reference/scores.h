#pragma once

/// The scores of a block of queries, and their gradients: what tells the attention ops apart.

#include "attention/reference/reference.h"
#include "attention/results.h"

#include <ATen/ATen.h>

#include <limits>

namespace posenc::attention_ops::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A block of queries with what its scores need.
struct Block {
  c10::SymInt begin;
  c10::SymInt length;
  /// (B, H, length, D), in the computing dtype.
  Tensor query;
  OptionalTensor far_query;
  /// bool, broadcastable to (B, H, length, Tk).
  Tensor visible;
  /// k_position - q_position, int64, broadcastable to (B, 1, length, Tk); absent where positions are floating.
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

  const Tensor& operator[](Slot slot) const { return *wide_[slot]; }
  /// False only where all of an input is known to be finite.
  bool may_be_infinite(Slot slot) const { return may_be_infinite_[slot]; }

  Block block(const c10::SymInt& begin, const c10::SymInt& length) const;

  /// a (B, H, r, D) and keys b (B, G, Tk, D) -> a b^T (B, H, r, Tk). Entries of hidden keys may be anything.
  Tensor scores(const Tensor& a, Slot b) const;
  /// weights (B, H, r, Tk), 0 where hidden, and b (B, G, Tk, d) -> weights b (B, H, r, d).
  Tensor sum_keys(const Tensor& weights, Slot b, const Tensor& visible) const;
  /// weights (B, H, r, Tk), 0 where hidden, and rows x (B, H, r, d) -> weights^T x summed over each group (B, G, Tk,
  /// d).
  Tensor sum_queries(const Tensor& weights, const Tensor& x, const Tensor& visible) const;

 private:
  Tensor visible(const c10::SymInt& begin, const c10::SymInt& length, const Tensor& q, const Tensor& k) const;
  bool may_be_infinite(const Tensor& x) const;

  std::array<OptionalTensor, kSlots> wide_;
  std::array<bool, kSlots> may_be_infinite_;
};

/// Gradients in the computing dtype, as far as wanted.
class Gradients {
 public:
  explicit Gradients(const std::vector<int64_t>& wanted);

  bool wants(Slot slot) const { return wanted_[slot]; }
  /// Adds to the gradient of an input that all queries share.
  void add(Slot slot, const Tensor& gradient);
  /// Adds to the rows of the current block, in an input that has a row for each query.
  void add_rows(Slot slot, const Tensor& gradient);
  /// Ends a block of queries.
  void next_block();
  /// The gradient of an input (zeros where nothing was added), with its dtype and strides.
  Tensor result(const Operands& o, Slot slot) const;

 private:
  std::array<bool, kSlots> wanted_ = {};
  std::array<OptionalTensor, kSlots> sums_;
  std::array<OptionalTensor, kSlots> rows_;
  std::array<std::vector<Tensor>, kSlots> blocks_;
};

/// The scores (B, H, length, Tk) of a block; entries of hidden keys may be anything.
Tensor scores(const Operands& o, const Block& block);

/// Adds what the gradient of a block's scores, 0 where hidden, says to the gradients of the inputs.
void add_score_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients);

/// table (B|1, H, r, n), index int64 broadcastable to (B, 1, r, Tk) -> (B, H, r, Tk).
Tensor look_up(const Operands& o, const Tensor& table, const Tensor& index);
/// The transpose of look_up: x (B, H, r, Tk) summed into n bins (B, H, r, n).
Tensor sum_bins(const Operands& o, const Tensor& x, const Tensor& index, const c10::SymInt& n);
/// R + clip(distance, -R, R) for a table of 2R + 1 entries.
Tensor clipped(const Block& block, const c10::SymInt& entries);

// CoPE, in a file of its own.
Tensor cope_scores(const Operands& o, const Block& block);
void add_cope_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients);

}  // namespace posenc::attention_ops::reference
