#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// A table over distances that is multiplied with keys (DeBERTa's position-to-content, arXiv 2006.03654, eq. 4):
/// scale * key . rel_q[entry] joins the score.
struct RelativeKeys : Term {
  static const char* op(const Call& /*c*/) { return "relative_attention"; }
  static constexpr bool kNeedsDistance = true;
  static bool used(const Call& c) { return c.has(kRelQ); }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
