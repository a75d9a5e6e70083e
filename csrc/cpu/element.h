#pragma once

namespace posenc::cpu {

/// Element types that kernels read and write.
enum class ElementType : int { kFloat, kDouble, kBFloat16, kHalf };

}  // namespace posenc::cpu
