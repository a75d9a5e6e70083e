#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Other queries and keys for keys at least `threshold` positions before their query (ReRoPE; Self-Extend, arXiv
/// 2401.01325).
struct Piecewise : Term {
  static const char* op(const Call& /*c*/) { return "piecewise_attention"; }
  static constexpr bool kNeedsDistance = true;
  static bool used(const Call& c) { return c.has(kFarQuery) || c.has(kFarKey) || c.threshold != 0; }
  static void check(const Call& c);
  static void replace_product(const reference::Operands& o, const reference::Block& block, Tensor& product);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
