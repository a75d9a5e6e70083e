#pragma once

#include "attention/terms/term.h"

namespace posenc::attention_ops {

/// A mask that the caller holds, true where a query may attend to a key.
struct Mask : Term {
  static bool used(const Call& c) { return c.attn_mask.has_value(); }
  static void check(const Call& c);
  static void hide(const reference::Operands& o, const reference::Rows& rows, Tensor& visible);
};

}  // namespace posenc::attention_ops
