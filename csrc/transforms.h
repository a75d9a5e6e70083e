#pragma once

/// Modes of torch in which the ops take their reference form, because a C++ autograd::Function raises there.

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace posenc {

/// Under torch.func: grad, vmap, jvp and their like.
inline bool under_transforms() {
  using c10::DispatchKey;
  return at::functorch::functorchTLSAccessor() &&
         (c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerBackMode) ||
          c10::impl::tls_is_dispatch_key_included(DispatchKey::FuncTorchDynamicLayerFrontMode));
}

/// Under forward-mode AD, for this tensor.
inline bool has_tangent(const at::Tensor& t) { return t._fw_grad(0).defined(); }
inline bool has_tangent(const std::optional<at::Tensor>& t) { return t && has_tangent(*t); }

}  // namespace posenc
