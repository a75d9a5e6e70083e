#pragma once

/// What the autograd files of the ops ask of torch. Under transforms and forward-mode AD a C++ autograd::Function
/// raises, so the ops take their reference form there.

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
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

/// Whether a call is to be differentiated with respect to this tensor.
inline bool wants_gradient(const at::Tensor& t) { return at::GradMode::is_enabled() && t.requires_grad(); }
inline bool wants_gradient(const std::optional<at::Tensor>& t) { return t && wants_gradient(*t); }

/// A saved tensor, absent where none was saved.
inline std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

}  // namespace posenc
