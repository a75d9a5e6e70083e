#pragma once

/// The attention ops on CPU, by the kernels; query, key and value hold elements.

#include "attention/call.h"

namespace posenc::attention_ops {

/// Whether the call has few queries over keys that can be read where they lie.
bool decodes(const Call& c);

/// Writes out (B, H, Tq, Dv), lse (B, H, Tq) and state (empty: not wanted) of a call of float (double for float64);
/// seed is dropout's.
template <typename T>
void run_forward(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state);
template <typename T>
void run_decode(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state);

/// The gradients that s.wanted names.
template <typename T>
std::vector<Tensor> run_backward(const Saved& s, const Call& c);

}  // namespace posenc::attention_ops
