#pragma once

/// posenc in the place of torch's scaled_dot_product_attention() on CPUs, for code that calls that function.

#include <posenc/export.h>

namespace posenc::sdpa {

/// From now on torch's scaled_dot_product_attention() runs attention() on CPU tensors, in the whole process: plain,
/// causal, with bool or float masks (gradients reach these), grouped heads and dropout, in float64, float32, float16
/// and bfloat16. Calls that attention() does not take (tensors that broadcast against each other, forward-mode
/// derivatives, nested tensors, arguments that torch refuses) go to torch as before. Rows that no key is visible to are
/// 0, as in torch. Dropout draws other weights than torch does. Does nothing where it is active.
POSENC_API void activate();

/// Undoes activate(). Call it when no other thread is in scaled_dot_product_attention().
POSENC_API void restore();

POSENC_API bool is_active();

}  // namespace posenc::sdpa
