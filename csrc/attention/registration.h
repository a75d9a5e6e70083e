#pragma once

/// One kernel for the four ops of a kind.

#include "attention/call.h"

#include <torch/library.h>

namespace posenc::attention_ops {

/// kernel: OutAndLse(const Call&).
template <auto kernel>
void register_public(torch::Library& m) {
  m.impl("attention", &Flat<Dot>::forward<kernel>);
  m.impl("relative_attention", &Flat<Relative>::forward<kernel>);
  m.impl("cope_attention", &Flat<Cope>::forward<kernel>);
  m.impl("piecewise_attention", &Flat<Piecewise>::forward<kernel>);
}

/// kernel: Forward(const Call&).
template <auto kernel>
void register_forward(torch::Library& m) {
  m.impl("_attention_forward", &Flat<Dot>::forward<kernel>);
  m.impl("_relative_attention_forward", &Flat<Relative>::forward<kernel>);
  m.impl("_cope_attention_forward", &Flat<Cope>::forward<kernel>);
  m.impl("_piecewise_attention_forward", &Flat<Piecewise>::forward<kernel>);
}

/// kernel: std::vector<Tensor>(const Saved&, const Call&).
template <auto kernel>
void register_backward(torch::Library& m) {
  m.impl("_attention_backward", &Flat<Dot>::backward<kernel>);
  m.impl("_relative_attention_backward", &Flat<Relative>::backward<kernel>);
  m.impl("_cope_attention_backward", &Flat<Cope>::backward<kernel>);
  m.impl("_piecewise_attention_backward", &Flat<Piecewise>::backward<kernel>);
}

}  // namespace posenc::attention_ops
