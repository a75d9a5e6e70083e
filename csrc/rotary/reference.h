#pragma once

/// What the rotary ops mean, in plain ATen: any device, any dtype, differentiable and transformable to any order.

#include "rotary/signature.h"

namespace posenc::rotary_ops::reference {

Tensor rotary(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, const RotaryFuncOptions& o);
std::tuple<Tensor, Tensor> rotary_qk(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                     const Tensor& inv_freq, const RotaryFuncOptions& o);
std::tuple<Tensor, Tensor> rotary_tables(const OptionalTensor& positions, const Tensor& inv_freq,
                                         const RotaryTablesFuncOptions& o);
void rotary_qk_(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                const RotaryFuncOptions& o);
void apply_rotary_qk_(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool interleaved,
                      bool inverse);

/// exp(decay * (position - centre)), float64, for o.decay() present: (.., T, R/2).
Tensor decay_factor(const OptionalTensor& positions, const Tensor& inv_freq, const RotaryTablesFuncOptions& o);
Tensor apply_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse);
std::tuple<Tensor, Tensor> apply_rotary_qk(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                           bool interleaved, bool inverse);

/// Gradients of apply_rotary with respect to cos and sin, for an incoming gradient of its output.
std::tuple<Tensor, Tensor> table_gradients(const Tensor& grad, const Tensor& x, const Tensor& cos, const Tensor& sin,
                                           bool interleaved, bool inverse);

}  // namespace posenc::rotary_ops::reference
