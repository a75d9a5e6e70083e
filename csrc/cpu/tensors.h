#pragma once

/// What the files between tensors and kernels share.

#include "cpu/element.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace posenc::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The element type of a float32, float64, bfloat16 or float16 tensor.
inline ElementType element_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return ElementType::kFloat;
    case at::kDouble:
      return ElementType::kDouble;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    default:
      return ElementType::kHalf;
  }
}

}  // namespace posenc::cpu
