#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// FIRE (arXiv 2310.04418): a function of x = log(1 + |rate * distance|) / norm(query) that is linear between knots. An
/// MLP of one hidden layer with ReLU is such a function of its scalar input, so a score costs one multiply-add.
///
/// - fire_rate (1), fire_norm (1 or B, Tq, 1).
/// - fire_knots (S), rising, float64 or float32.
/// - fire_offset, fire_slope (H, S + 1): adds offset[s] + slope[s] x, where s knots are <= x.
struct Fire : Term {
  static constexpr bool kNeedsDistance = true;
  static bool used(const Call& c) {
    return c.has(kFireRate) || c.has(kFireNorm) || c.has(kFireOffset) || c.has(kFireSlope) || c.fire_knots;
  }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
