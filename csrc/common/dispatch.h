#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace posenc {

/// A handle to the op of this full name, to be kept: `static const auto op = find_op<Tensor(const
/// Tensor&)>("posenc::..")`.
template <typename Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace posenc
