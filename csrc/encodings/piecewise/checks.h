#pragma once

/// Argument rules of what rotates for piecewise attention, on symbolic sizes. The attention op checks the rest.

#include "common/checks.h"
#include "encodings/piecewise/ops.h"

namespace posenc::piecewise_ops {

inline void check_heads(const char* module, const char* name, const Tensor& x, const c10::SymInt& head_dim) {
  check_dense(module, name, x);
  TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), module, ": expected ", name,
                   " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() == 4 && holds(x.sym_size(3).sym_eq(head_dim)), module, ": expected ", name,
                    " of shape (batch, heads, length, head_dim) with head_dim ", head_dim, ", but got ", x.sym_sizes());
}

/// Positions of x, of the argument `name`.
inline void check_positions(const char* module, const char* name, const OptionalTensor& positions, const Tensor& x) {
  if (!positions) {
    return;
  }
  check_dense(module, name, *positions);
  TORCH_CHECK_TYPE(at::isIntegralType(positions->scalar_type(), false), module, ": expected ", name,
                   " to be an integer type, since scores depend on distances, but got ", positions->scalar_type());
  const bool row = positions->dim() == 1, rows = positions->dim() == 2;
  const c10::SymInt batch = x.sym_size(0), length = x.sym_size(2);
  TORCH_CHECK_VALUE((row || rows) && holds(positions->sym_size(-1).sym_eq(length)) &&
                        (row || holds(positions->sym_size(0).sym_eq(1).sym_or(positions->sym_size(0).sym_eq(batch)))),
                    module, ": expected ", name, " of shape (length) or (batch, length) with length ", length,
                    " and batch ", batch, " or 1, but got ", positions->sym_sizes());
  check_same_device(module, name, *positions, x.device());
}

inline void check_call(const char* module, const Tensor& query, const Tensor& key, const Tensor& inv_freq,
                       const Positions& positions) {
  check_dense(module, "inv_freq", inv_freq);
  TORCH_CHECK_VALUE(inv_freq.dim() == 1, module, ": expected inv_freq of shape (head_dim / 2), but got ",
                    inv_freq.sym_sizes());
  const c10::SymInt head_dim = inv_freq.sym_size(0) * 2;
  check_heads(module, "query", query, head_dim);
  check_heads(module, "key", key, head_dim);
  check_positions(module, "q_positions", positions.query, query);
  check_positions(module, "k_positions", positions.key, key);
}

inline void check_at_least_1(const char* module, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, module, ": expected ", name, " to be at least 1, but got ", value);
}

inline void check_leak(const char* module, double leak) {
  TORCH_CHECK_VALUE(std::isfinite(leak) && leak >= 1, module, ": expected leak to be at least 1 and finite, but got ",
                    leak);
}

/// Its logarithm divides.
inline void check_log_scale_length(const char* module, std::optional<int64_t> length) {
  TORCH_CHECK_VALUE(!length || *length >= 2, module, ": expected log_scale_length to be at least 2, but got ",
                    length.value_or(0));
}

}  // namespace posenc::piecewise_ops
