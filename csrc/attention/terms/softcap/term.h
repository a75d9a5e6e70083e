#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// Scores c tanh(score / c): of the product alone (Gemma 2, Grok), or of the sum of all terms (Gemma 4's audio).
struct Softcap : Term {
  static bool used(const Call& c) { return c.softcap.has_value() || c.softcap_on != "content"; }
  static void check(const Call& c);
  static void cap_product(const reference::Operands& o, Tensor& product);
  static void cap_scores(const reference::Operands& o, Tensor& scores);
  static void uncap_scores(const reference::Operands& o, const Tensor& scores, Tensor& grad);
  static void uncap_product(const reference::Operands& o, const Tensor& product, Tensor& grad);
};

}  // namespace posenc::attention_ops
