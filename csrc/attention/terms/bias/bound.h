#pragma once

#include "attention/tile/types.h"

#include <algorithm>
#include <limits>

namespace posenc::attention_ops {

/// The lowest finite number of a type.
constexpr double lowest(ElementType type) {
  switch (type) {
    case ElementType::kDouble:
      return std::numeric_limits<double>::lowest();
    case ElementType::kBFloat16:
      return -3.3895313892515355e38;
    case ElementType::kHalf:
      return -65504.0;
    default:
      return std::numeric_limits<float>::lowest();
  }
}

/// Entries of a bias up to this one hide their key: -infinity; the lowest finite number of the bias' type, with which
/// many models mask; and numbers that kernels cannot hold, whose scores are in base 2 and in the computing type.
constexpr double hiding_bound(ElementType type, ElementType computing) {
  return std::max(lowest(type), lowest(computing) * kLn2);
}

}  // namespace posenc::attention_ops
