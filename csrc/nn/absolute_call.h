#pragma once

/// What the absolute modules share.

#include "encodings/absolute/ops.h"

#include <posenc/nn/sinusoidal.h>

namespace posenc::nn {

inline absolute_ops::Place place_of(const AbsoluteForwardOptions& call) {
  return {call.positions(), call.offset(), call.offsets()};
}

/// Frequencies of sinusoids for columns 0 .. dim - 1, float64 on the CPU.
at::Tensor sinusoid_frequencies(int64_t dim, double base, SinusoidalLayout layout);

}  // namespace posenc::nn
