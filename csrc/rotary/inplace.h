#pragma once

#include <ATen/core/Tensor.h>

namespace posenc::rotary_ops {

/// Raises unless rotating q and k in place writes every element once: neither overlaps itself nor the other.
void check_inplace(const char* op, const at::Tensor& q, const at::Tensor& k);

}  // namespace posenc::rotary_ops
