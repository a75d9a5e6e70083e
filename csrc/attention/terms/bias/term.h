#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// A bias that the caller holds, one number for each query and key.
struct Bias : Term {
  static bool used(const Call& c) { return c.has(kBias); }
  static void check(const Call& c);
  static void hide(const reference::Operands& o, const reference::Rows& rows, Tensor& visible);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
