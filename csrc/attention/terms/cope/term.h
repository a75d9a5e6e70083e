#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Contextual positions (CoPE, arXiv 2405.18719, eq. 3 to 5): the position of a key is the sum of the gates from the
/// key to the query, and its logit an interpolation between two entries of query . pos_emb.
struct Cope : Term {
  static const char* op(const Call& /*c*/) { return "cope_attention"; }
  static bool used(const Call& c) {
    return c.has(kPosEmb) || c.has(kGateKey) || c.has(kGateBias) || c.scale_position_logits;
  }
  static void check(const Call& c);
  static void add_scores(const reference::Operands& o, const reference::Block& block, Tensor& scores);
  static void add_gradients(const reference::Operands& o, const reference::Block& block, const Tensor& grad,
                            reference::ProductGradient& product, reference::GradientSums& sums);
};

}  // namespace posenc::attention_ops
