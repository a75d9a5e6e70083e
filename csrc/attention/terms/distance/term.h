#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Functions of the distance: -slope * |k_position - q_position|, and a table over clipped distances.
struct Distance : Term {
  static constexpr bool kNeedsDistance = true;
  static bool used(const Call& c) { return c.has(kSlopes) || c.has(kDistanceBias); }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
