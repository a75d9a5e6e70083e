#pragma once

/// What modules with parameters share.

#include "common/plain_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

namespace posenc::nn {

/// Memory of a parameter, in the default dtype.
inline at::Tensor unset_parameter(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions(c10::get_default_dtype_as_scalartype()));
}

/// A copy of a constant as the memory of a parameter, in the default dtype.
inline at::Tensor parameter_from(const at::Tensor& constant) {
  const PlainTensorsGuard guard;
  return constant.to(c10::get_default_dtype_as_scalartype(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace posenc::nn
