#pragma once

/// What the attention ops mean, in plain ATen: any device, any dtype. Scores exist for a block of queries at a time.

#include "attention/call.h"

namespace posenc::attention_ops::reference {

/// How a reference form runs.
enum class Mode {
  /// On real tensors whose values may be read.
  kEager,
  /// On real tensors of another device than the CPU, without waiting for values.
  kDevice,
  /// Differentiable and transformable: nothing is read or written in place.
  kComposite,
};

/// As `_NAME_forward`: out in the computing dtype.
Forward forward(const Call& c, Mode mode);

/// The gradients named by s.wanted, each with the dtype and strides of its input.
std::vector<Tensor> backward(const Saved& s, const Call& c, Mode mode);

/// The final scores (B, H, Tq, Tk), hidden keys -infinity; composite.
Tensor logits(const Call& c);

}  // namespace posenc::attention_ops::reference
