#pragma once

/// What the additive modules share.

#include "encodings/bias/ops.h"

#include <posenc/nn/additive.h>

#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

namespace posenc::nn {

inline bias_ops::Span span_of(const ScoreCall& call) {
  return {call.query, call.key, call.q_positions, call.k_positions};
}

/// Memory of a parameter, in the default dtype.
inline at::Tensor unset_parameter(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions(c10::get_default_dtype_as_scalartype()));
}

}  // namespace posenc::nn
