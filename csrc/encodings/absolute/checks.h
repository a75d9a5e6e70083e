#pragma once

/// Argument rules of the absolute encodings, on symbolic sizes.

#include "common/checks.h"
#include "encodings/absolute/ops.h"

#include <cmath>
#include <string>
#include <vector>

namespace posenc::absolute_ops {

/// Columns of positions over several axes.
inline void check_axes(const char* module, int64_t dim, int64_t num_axes) {
  TORCH_CHECK_VALUE(num_axes >= 1, module, ": expected num_axes to be at least 1, but got ", num_axes);
  TORCH_CHECK_VALUE(num_axes == 1 || (num_axes <= dim && dim % (2 * num_axes) == 0), module,
                    ": expected dim to be a multiple of 2 * num_axes = ", 2 * num_axes, ", but got ", dim);
}

/// A call of `module` on x; `constant` is what it reads in addition to x. Learned tables have no rows between
/// positions, so not every module takes floating ones. With several `axes` positions lead with them, and have no
/// default.
inline void check_call(const char* module, const Tensor& x, const c10::SymInt& dim, const Place& place,
                       const Tensor& constant, bool floating_positions, int64_t axes = 1) {
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
  TORCH_CHECK_VALUE(axes == 1 || place.positions, module,
                    ": expected positions of shape (axes, length) or (axes, batch, length) with ", axes,
                    " axes, which have no default");
  if (place.offsets) {
    const Tensor& rows = *place.offsets;
    TORCH_CHECK_TYPE(at::isIntegralType(rows.scalar_type(), false), module,
                     ": expected a tensor offset to be an integer type, but got ", rows.scalar_type());
    TORCH_CHECK_VALUE(batched && rows.dim() == 1 && holds(rows.sym_size(0).sym_eq(x.sym_size(0))), module,
                      ": expected a tensor offset of shape (batch) with x of shape (batch, length, dim), but got ",
                      rows.sym_sizes(), " with x of shape ", x.sym_sizes());
    TORCH_CHECK_VALUE(!place.positions && holds(place.offset.sym_eq(0)), module,
                      ": expected either positions or one offset, but got several");
    check_same_device(module, "offset", rows, x.device());
  }
  if (!place.positions) {
    check_last_position(module, place.offset, x.sym_size(-2));
    return;
  }
  TORCH_CHECK_VALUE(holds(place.offset.sym_eq(0)), module, ": expected no offset with positions, but got offset ",
                    place.offset, "; add it to the positions");
  const Tensor& p = *place.positions;
  const bool integer = at::isIntegralType(p.scalar_type(), false);
  TORCH_CHECK_TYPE(integer || (floating_positions && at::isFloatingType(p.scalar_type())), module,
                   ": expected positions to be an integer ", floating_positions ? "or floating type" : "type",
                   ", but got ", p.scalar_type());
  const int64_t leading = axes == 1 ? 0 : 1;
  const char* form = axes == 1 ? (batched ? "(length) or (batch, length)" : "(length), as x has no batch,")
                     : batched ? "(axes, length) or (axes, batch, length)"
                               : "(axes, length), as x has no batch,";
  TORCH_CHECK_VALUE(p.dim() == leading + 1 || (batched && p.dim() == leading + 2), module,
                    ": expected positions of shape ", form, " but got ", p.sym_sizes());
  TORCH_CHECK_VALUE(axes == 1 || holds(p.sym_size(0).sym_eq(axes)), module, ": expected positions of shape ", form,
                    " with ", axes, " axes, but got ", p.sym_sizes());
  TORCH_CHECK_VALUE(holds(p.sym_size(-1).sym_eq(x.sym_size(-2))), module, ": expected positions of shape ", form,
                    " with length ", x.sym_size(-2), ", but got ", p.sym_sizes());
  if (p.dim() == leading + 2) {
    TORCH_CHECK_VALUE(one_or(p.sym_size(leading), x.sym_size(0)), module, ": expected positions of shape ", form,
                      " with batch 1 or ", x.sym_size(0), ", but got ", p.sym_sizes());
  }
  check_same_device(module, "positions", p, x.device());
}

/// What a resize of a learned table comes to.
struct ResizeRule {
  int64_t old_rows;
  std::vector<int64_t> old_grid;
  std::string mode;
};

/// Raises unless weight can be resized so.
inline ResizeRule check_resize(const Tensor& weight, at::IntArrayRef size, int64_t prefix, at::OptionalIntArrayRef grid,
                               std::optional<c10::string_view> mode, bool antialias) {
  const char* module = "LearnedAbsolute.resize";
  check_dense(module, "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, module, ": expected weight of shape (max_positions, dim), but got ",
                    weight.sym_sizes());
  TORCH_CHECK_TYPE(is_supported_float(weight.scalar_type()), module,
                   ": expected weight to be float32, float64, bfloat16 or float16, but got ", weight.scalar_type());
  const int64_t rows = weight.sym_size(0).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(prefix >= 0 && prefix < rows, module, ": expected prefix from 0 to ", rows - 1,
                    ", as the table has ", rows, " rows, but got ", prefix);
  const bool by_grid = size.size() == 2;
  TORCH_CHECK_VALUE(by_grid || size.size() == 1, module,
                    ": expected new_positions to be a number of rows or a grid (rows, columns), but got ", size);
  ResizeRule rule{rows - prefix, {}, std::string(mode.value_or(by_grid ? "bicubic" : "linear"))};
  if (!by_grid) {
    TORCH_CHECK_VALUE(size[0] > prefix, module, ": expected new_positions to be more than prefix = ", prefix,
                      ", whose rows are kept, but got ", size[0]);
    TORCH_CHECK_VALUE(rule.mode == "linear", module,
                      ": expected mode to be 'linear' with a number of rows (a grid (rows, columns) takes 'bilinear' "
                      "and 'bicubic'), but got '",
                      rule.mode, "'");
    TORCH_CHECK_VALUE(!grid, module, ": expected grid only with a new grid (rows, columns), but got ", *grid,
                      " with the number of rows ", size[0]);
    TORCH_CHECK_VALUE(!antialias, module,
                      ": expected antialias only with a new grid (rows, columns), but got a number of rows, ", size[0]);
    check_numbers(module, "new_positions * dim", {size[0], weight.sym_size(1).guard_int(__FILE__, __LINE__)});
    return rule;
  }
  TORCH_CHECK_VALUE(size[0] >= 1 && size[1] >= 1, module,
                    ": expected a new grid of at least 1 row and 1 column, but got ", size);
  check_numbers(module, "rows * columns * dim", {size[0], size[1], weight.sym_size(1).guard_int(__FILE__, __LINE__)});
  TORCH_CHECK_VALUE(rule.mode == "bilinear" || rule.mode == "bicubic", module,
                    ": expected mode to be 'bilinear' or 'bicubic' with a grid (a number of rows takes 'linear'), but "
                    "got '",
                    rule.mode, "'");
  if (grid) {
    TORCH_CHECK_VALUE(grid->size() == 2 && (*grid)[0] >= 1 && (*grid)[1] >= 1 && rule.old_rows % (*grid)[0] == 0 &&
                          rule.old_rows / (*grid)[0] == (*grid)[1],
                      module, ": expected grid to be the (rows, columns) of the ", rule.old_rows,
                      " positions after the prefix, but got ", *grid);
    rule.old_grid = grid->vec();
  } else {
    const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(rule.old_rows))));
    TORCH_CHECK_VALUE(side * side == rule.old_rows, module, ": expected grid=(rows, columns), as the ", rule.old_rows,
                      " positions after the prefix are no square; is prefix = ", prefix, " right?");
    rule.old_grid = {side, side};
  }
  return rule;
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
