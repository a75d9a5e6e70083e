#pragma once

/// Kernels of an op and of the internal ops behind it.

#include "attention/call.h"

#include <torch/library.h>

namespace posenc::attention_ops {

/// public_form: OutAndLse(const Call&). forward: Forward(const Call&). backward: std::vector<Tensor>(const Saved&,
/// const Call&).
template <typename Op, auto public_form, auto forward, auto backward>
void register_op(torch::Library& m) {
  m.impl(Op::name, &Flat<Op>::template forward<public_form>);
  m.impl(Op::forward_name, &Flat<Op>::template forward<forward>);
  m.impl(Op::backward_name, &Flat<Op>::template backward<backward>);
}

/// The same kernels for all ops.
template <auto public_form, auto forward, auto backward>
void register_ops(torch::Library& m) {
  register_op<Dot, public_form, forward, backward>(m);
  register_op<Relative, public_form, forward, backward>(m);
  register_op<Cope, public_form, forward, backward>(m);
  register_op<Piecewise, public_form, forward, backward>(m);
}

}  // namespace posenc::attention_ops
