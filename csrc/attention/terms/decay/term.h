#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// A bias that sums a number for each token (forgetting attention, arXiv 2503.02130): that of log_decay[t] over the
/// tokens key < t <= query of the same segment.
struct Decay : Term {
  static bool used(const Call& c) { return c.has(kLogDecay); }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
