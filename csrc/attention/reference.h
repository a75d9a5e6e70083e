#pragma once

/// What attention means, in plain ATen: any device, any dtype. Scores exist for a block of queries at a time.

#include "attention/reference/operands.h"

namespace posenc::attention_ops::reference {

Residuals forward(const Call& c, Mode mode);

/// What the public op returns: out with the dtype of query.
OutAndLse attention(const Call& c, Mode mode);

/// The gradients that are wanted, each with the dtype and strides of its input.
Gradients backward(const BackwardArgs& b, const Call& c, Mode mode);

/// The final scores (B, H, Tq, Tk), hidden keys -infinity; composite.
Tensor logits(const Call& c);

}  // namespace posenc::attention_ops::reference
