#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Tables over distances that are added to keys and to values (Shaw et al., arXiv 1803.02155, eq. 3 and 4):
/// scale * query . rel_k[entry] joins the score, and the weights sum rel_v[entry]. With rel_query, that is multiplied
/// with rel_k instead (Transformer-XL, arXiv 1901.02860, eq. of section 3.3; Conformers).
struct Relative : Term {
  static const char* op(const Call& /*c*/) { return "relative_attention"; }
  static constexpr bool kNeedsDistance = true;
  static bool used(const Call& c) { return c.has(kRelK) || c.has(kRelV) || c.has(kRelQuery); }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_output(const reference::Operands& o, const reference::Block& block, const Tensor& weights,
                         Tensor& out);
  static void add_weight_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& weights,
                                   const Tensor& grad_out, Tensor& grad_weights, reference::GradientSums& sums);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
