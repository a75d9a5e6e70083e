#pragma once

/// The attention ops on CPU, by the kernels; query, key and value are not empty.

#include "attention/call.h"

namespace posenc::attention_ops {

/// Whether the call has few queries over keys that can be read where they lie.
bool decodes(const Call& c);

/// Writes out (B, H, Tq, Dv), r.lse and, where they have elements, r.largest, r.total and r.counts. `seed` seeds the
/// dropout mask. T is float (double for float64).
template <typename T>
void run_forward(const Call& c, int64_t seed, const Tensor& out, const Residuals& r);
/// The same but r.counts.
template <typename T>
void run_decode(const Call& c, int64_t seed, const Tensor& out, const Residuals& r);

template <typename T>
Gradients run_backward(const BackwardArgs& b, const Call& c);

}  // namespace posenc::attention_ops
