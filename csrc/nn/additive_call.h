#pragma once

/// What the additive modules share.

#include "encodings/bias/ops.h"

#include <posenc/nn/additive.h>

namespace posenc::nn {

inline bias_ops::Span span_of(const ScoreCall& call) {
  return {call.query, call.key, call.q_positions, call.k_positions};
}

}  // namespace posenc::nn
