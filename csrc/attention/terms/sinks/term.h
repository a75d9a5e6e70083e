#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Attention sinks: a logit for each head that takes part in the softmax and has no value (gpt-oss; arXiv 2309.17453).
struct Sinks : Term {
  static bool used(const Call& c) { return c.has(kSinks); }
  static void check(const Call& c);
  static void add_sink(const reference::Operands& o, const reference::Rows& rows, OptionalTensor& sink);
  static void add_sink_gradient(const reference::Operands& o, const reference::Rows& rows, const Tensor& grad,
                                reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
