#pragma once

/// Argument rules that ops share, on symbolic sizes. `op` is the op or module that a message names, `name` the
/// argument.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace posenc {

/// Whether the rule is true of these sizes; a graph with symbolic sizes keeps it as a guard.
inline bool holds(const c10::SymBool& rule) { return rule.expect_true(__FILE__, __LINE__); }

/// Whether a dimension is there once for all, or for each of `count`.
inline bool one_or(const c10::SymInt& size, const c10::SymInt& count) {
  return holds(size.sym_eq(1).sym_or(size.sym_eq(count)));
}

/// The types that ops compute in or read.
inline bool is_supported_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

inline void check_same_device(const char* op, const char* name, const at::Tensor& tensor, c10::Device device) {
  TORCH_CHECK_VALUE(tensor.device() == device, op, ": expected ", name, " on ", device, ", but it is on ",
                    tensor.device());
}

/// Refuses tensors without strides over one block of memory: sparse, nested, quantised, and opaque ones.
inline void check_dense(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_nested(), op, ": expected ", name,
                   " to be a dense tensor, but got a nested one: pad its sequences to one length");
  TORCH_CHECK_TYPE(!tensor.is_quantized(), op, ": expected ", name,
                   " to be a dense tensor, but got a quantized one: call dequantize() on it");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", name,
                   " to be a dense tensor, but got one of layout ", tensor.layout(), ": call to_dense() on it");
}

}  // namespace posenc
