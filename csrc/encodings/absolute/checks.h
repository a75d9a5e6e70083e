#pragma once

/// Argument rules of the absolute encodings, on symbolic sizes.

#include "common/checks.h"
#include "encodings/absolute/ops.h"

#include <cmath>

namespace posenc::absolute_ops {

/// A call of `module` on x; `constant` is what it reads in addition to x. Learned tables have no rows between
/// positions, so not every module takes floating ones.
inline void check_call(const char* module, const Tensor& x, const c10::SymInt& dim, const Place& place,
                       const Tensor& constant, bool floating_positions) {
  check_dense(module, "x", x);
  check_dense(module, "offset", place.offsets);
  check_dense(module, "positions", place.positions);
  TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), module,
                   ": expected x to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
  TORCH_CHECK_VALUE((x.dim() == 2 || x.dim() == 3) && holds(x.sym_size(-1).sym_eq(dim)), module,
                    ": expected x of shape (batch, length, dim) or (length, dim) with dim ", dim, ", but got ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(constant.device() == x.device(), module, ": expected x on ", constant.device(),
                    " like the module, but it is on ", x.device());
  const bool batched = x.dim() == 3;
  if (place.offsets) {
    const Tensor& rows = *place.offsets;
    TORCH_CHECK_TYPE(at::isIntegralType(rows.scalar_type(), false), module,
                     ": expected a tensor offset to be an integer type, but got ", rows.scalar_type());
    TORCH_CHECK_VALUE(batched && rows.dim() == 1 && holds(rows.sym_size(0).sym_eq(x.sym_size(0))), module,
                      ": expected a tensor offset of shape (batch) beside x of shape (batch, length, dim), but got ",
                      rows.sym_sizes(), " beside x of shape ", x.sym_sizes());
    TORCH_CHECK_VALUE(!place.positions && holds(place.offset.sym_eq(0)), module,
                      ": expected either positions or one offset, but got several");
    check_same_device(module, "offset", rows, x.device());
  }
  if (!place.positions) {
    check_last_position(module, place.offset, x.sym_size(-2));
    return;
  }
  TORCH_CHECK_VALUE(holds(place.offset.sym_eq(0)), module, ": expected no offset beside positions, but got offset ",
                    place.offset, "; add it to the positions");
  const Tensor& p = *place.positions;
  const bool integer = at::isIntegralType(p.scalar_type(), false);
  TORCH_CHECK_TYPE(integer || (floating_positions && at::isFloatingType(p.scalar_type())), module,
                   ": expected positions to be an integer ", floating_positions ? "or floating type" : "type",
                   ", but got ", p.scalar_type());
  const char* form = batched ? "(length) or (batch, length)" : "(length), as x has no batch,";
  TORCH_CHECK_VALUE(p.dim() == 1 || (batched && p.dim() == 2), module, ": expected positions of shape ", form,
                    " but got ", p.sym_sizes());
  TORCH_CHECK_VALUE(holds(p.sym_size(-1).sym_eq(x.sym_size(-2))), module, ": expected positions of shape ", form,
                    " with length ", x.sym_size(-2), ", but got ", p.sym_sizes());
  if (p.dim() == 2) {
    TORCH_CHECK_VALUE(holds(p.sym_size(0).sym_eq(1).sym_or(p.sym_size(0).sym_eq(x.sym_size(0)))), module,
                      ": expected positions of shape ", form, " with batch 1 or ", x.sym_size(0), ", but got ",
                      p.sym_sizes());
  }
  check_same_device(module, "positions", p, x.device());
}

inline void check_augmentation(const char* module, const Augmentation& a) {
  TORCH_CHECK_VALUE(std::isfinite(a.max_global_shift) && a.max_global_shift >= 0, module,
                    ": expected max_global_shift to be at least 0 and finite, but got ", a.max_global_shift);
  TORCH_CHECK_VALUE(std::isfinite(a.max_local_shift) && a.max_local_shift >= 0, module,
                    ": expected max_local_shift to be at least 0 and finite, but got ", a.max_local_shift);
  TORCH_CHECK_VALUE(std::isfinite(a.max_global_scaling) && a.max_global_scaling >= 1, module,
                    ": expected max_global_scaling to be at least 1 and finite, but got ", a.max_global_scaling);
}

}  // namespace posenc::absolute_ops
