#pragma once

/// Argument rules that ops share, on symbolic sizes. `op` is the op or module that a message names, `name` the
/// argument.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <initializer_list>
#include <limits>

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

/// Refuses tensors without strides over one block of memory: sparse, nested, quantized, and opaque ones.
inline void check_dense(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(!tensor.is_nested(), op, ": expected ", name,
                    " to be a dense tensor, but got a nested one: pad its sequences to one length");
  TORCH_CHECK_VALUE(!tensor.is_quantized(), op, ": expected ", name,
                    " to be a dense tensor, but got a quantized one: call dequantize() on it");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, op, ": expected ", name,
                    " to be a dense tensor, but got the layout ", tensor.layout(), ": call to_dense() on it");
}

inline void check_dense(const char* op, const char* name, const std::optional<at::Tensor>& tensor) {
  if (tensor) {
    check_dense(op, name, *tensor);
  }
}

/// The most entries of a list with one for each head, column or bucket.
constexpr int64_t kMostEntries = int64_t{1} << 24;
/// The most numbers of a tensor: no process can address the memory of more.
constexpr int64_t kMostNumbers = int64_t{1} << 46;

/// Refuses an option that would fill memory.
inline void check_entries(const char* op, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value <= kMostEntries, op, ": expected ", name, " to be at most ", kMostEntries, ", but got ",
                    value);
}

/// Refuses sizes, described as `product`, whose product is more than `most` or overflows. None is negative.
inline void check_numbers(const char* op, const char* product, std::initializer_list<int64_t> sizes,
                          int64_t most = kMostNumbers) {
  uint64_t numbers = 1;
  bool fits = true;
  for (const int64_t size : sizes) {
    fits = fits && !c10::mul_overflows(numbers, static_cast<uint64_t>(size), &numbers);
  }
  TORCH_CHECK_VALUE(fits && numbers <= static_cast<uint64_t>(most), op, ": expected ", product, " to be at most ", most,
                    ", but got ", at::IntArrayRef(sizes));
}

/// Refuses positions offset .. offset + length - 1 that end beyond int64. Symbolic sizes are checked where they are
/// known, by the op that a graph calls.
inline void check_last_position(const char* op, const c10::SymInt& offset, const c10::SymInt& length) {
  const auto first = offset.maybe_as_int(), count = length.maybe_as_int();
  TORCH_CHECK_VALUE(!first || !count || *first <= std::numeric_limits<int64_t>::max() - *count, op,
                    ": expected offset + length to be at most 2^63 - 1, but got offset ", offset, " and length ",
                    length);
}

}  // namespace posenc
