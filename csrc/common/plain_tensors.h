#pragma once

/// Constants that modules keep: tensors with numbers in them, wherever a module is built.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

#include <algorithm>
#include <vector>

namespace posenc {

/// While it lives, ops make plain tensors with numbers in them, even inside FakeTensorMode, functorch, inference mode
/// or autocast. A module may be built inside any of them and keeps its constants afterwards.
class PlainTensorsGuard {
 public:
  PlainTensorsGuard() = default;

 private:
  c10::InferenceMode no_inference_{false};
  c10::AutoGradMode no_grad_{false};
  c10::impl::DisablePythonDispatcher no_decompositions_;
  c10::impl::ExcludeDispatchKeyGuard no_modes_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode}) |
      c10::autocast_dispatch_keyset};
};

/// The numbers as a float64 tensor (n) on the CPU.
inline at::Tensor plain_tensor(const std::vector<double>& numbers) {
  const PlainTensorsGuard guard;
  const auto options = at::TensorOptions().device(at::kCPU).dtype(at::kDouble);
  at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, options);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

}  // namespace posenc
