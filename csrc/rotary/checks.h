#pragma once

/// Argument rules of the rotary ops, on symbolic sizes. Every backend calls these, so that messages are equal.

#include "common/checks.h"
#include "rotary/signature.h"

#include <cmath>
#include <initializer_list>

namespace posenc::rotary_ops {

/// One rotated tensor and the name of its argument.
struct Rotated {
  const char* name;
  const Tensor& tensor;
};

/// What inv_freq, axes and positions say together.
struct AngleShape {
  c10::SymInt pairs;
  /// True where positions have a leading axis dimension.
  bool multi_axis;
  /// Heads that inv_freq tells apart; absent where all turn alike.
  std::optional<c10::SymInt> heads;
};

inline void check_rotated(const char* op, std::initializer_list<Rotated> rotated) {
  const Tensor& first = rotated.begin()->tensor;
  for (const auto& [name, x] : rotated) {
    check_dense(op, name, x);
    TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), op, ": expected ", name,
                     " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
    TORCH_CHECK_VALUE(x.dim() == 4, op, ": expected ", name, " of shape (batch, heads, length, head_dim), but got ",
                      x.dim(), " dimensions: ", x.sym_sizes());
    TORCH_CHECK_VALUE(x.device() == first.device(), op, ": expected ", name, " on ", first.device(),
                      " like the first tensor, but it is on ", x.device());
    for (const int64_t dim : {0, 2, 3}) {
      TORCH_CHECK_VALUE(holds(x.sym_size(dim).sym_eq(first.sym_size(dim))), op,
                        ": expected q and k to have equal batch, length and head_dim, but got q of shape ",
                        first.sym_sizes(), " and k of shape ", x.sym_sizes());
    }
  }
}

inline void check_width(const char* op, const Rotated& rotated, const c10::SymInt& pairs) {
  TORCH_CHECK_VALUE(holds(rotated.tensor.sym_size(3).sym_ge(pairs * 2)), op, ": expected the last dimension of ",
                    rotated.name, " to be at least the rotary width ", pairs * 2, ", but got ", rotated.name,
                    " of shape ", rotated.tensor.sym_sizes());
}

inline AngleShape check_frequencies(const char* op, const Tensor& inv_freq,
                                    const std::optional<std::vector<int64_t>>& axes, double attention_scaling) {
  check_dense(op, "inv_freq", inv_freq);
  TORCH_CHECK_TYPE(inv_freq.scalar_type() == at::kFloat || inv_freq.scalar_type() == at::kDouble, op,
                   ": expected inv_freq to be float64 or float32, but got ", inv_freq.scalar_type());
  TORCH_CHECK_VALUE(inv_freq.dim() >= 1 && inv_freq.dim() <= 3, op,
                    ": expected inv_freq of shape (R/2), (axes, R/2) or (axes, heads, R/2), but got ",
                    inv_freq.sym_sizes());
  TORCH_CHECK_VALUE(std::isfinite(attention_scaling), op, ": expected a finite attention_scaling, but got ",
                    attention_scaling);
  AngleShape shape{inv_freq.sym_size(-1), axes.has_value() || inv_freq.dim() > 1, std::nullopt};
  if (inv_freq.dim() == 3) {
    shape.heads = inv_freq.sym_size(1);
  }
  if (inv_freq.dim() > 1) {
    TORCH_CHECK_VALUE(holds(inv_freq.sym_size(0).sym_ge(1)), op,
                      ": expected inv_freq to have at least one axis, but got ", inv_freq.sym_sizes());
  }
  if (axes) {
    TORCH_CHECK_VALUE(inv_freq.dim() == 1, op, ": expected inv_freq of shape (R/2) with axes, but got ",
                      inv_freq.sym_sizes());
    TORCH_CHECK_VALUE(holds(shape.pairs.sym_eq(static_cast<int64_t>(axes->size()))), op,
                      ": expected one entry of axes for each of the ", shape.pairs, " frequencies, but got ",
                      axes->size());
    for (const int64_t axis : *axes) {
      TORCH_CHECK_VALUE(axis >= 0, op, ": expected axes to count from 0, but got ", axis);
    }
  }
  return shape;
}

/// positions against a batch of `batch` rows (absent: any) of `length` tokens (absent: any).
inline void check_positions(const char* op, const OptionalTensor& positions, const Tensor& inv_freq,
                            const std::optional<std::vector<int64_t>>& axes, const AngleShape& shape,
                            const c10::SymInt& offset, const OptionalTensor& offsets,
                            const std::optional<c10::SymInt>& batch, const std::optional<c10::SymInt>& length) {
  if (offsets) {
    check_dense(op, "offset", *offsets);
    TORCH_CHECK_TYPE(at::isIntegralType(offsets->scalar_type(), false), op,
                     ": expected a tensor offset to be an integer type, but got ", offsets->scalar_type());
    TORCH_CHECK_VALUE(offsets->dim() == 1 && (!batch || holds(offsets->sym_size(0).sym_eq(*batch))), op,
                      ": expected a tensor offset of shape (batch), but got ", offsets->sym_sizes());
    TORCH_CHECK_VALUE(!positions && holds(offset.sym_eq(0)), op,
                      ": expected either positions or one offset, but got several");
    check_same_device(op, "offset", *offsets, inv_freq.device());
  }
  if (!positions) {
    if (length) {
      check_last_position(op, offset, *length);
    }
    return;
  }
  TORCH_CHECK_VALUE(holds(offset.sym_eq(0)), op, ": expected no offset with positions, but got offset ", offset,
                    "; add it to the positions");
  const Tensor& p = *positions;
  check_dense(op, "positions", p);
  TORCH_CHECK_TYPE(at::isIntegralType(p.scalar_type(), false) || at::isFloatingType(p.scalar_type()), op,
                   ": expected positions to be an integer or floating type, but got ", p.scalar_type());
  check_same_device(op, "positions", p, inv_freq.device());
  const int64_t leading = shape.multi_axis ? 1 : 0;
  const char* form = shape.multi_axis ? "(axes, length) or (axes, batch, length)" : "(length) or (batch, length)";
  TORCH_CHECK_VALUE(p.dim() == leading + 1 || p.dim() == leading + 2, op, ": expected positions of shape ", form,
                    ", but got ", p.sym_sizes());
  if (length) {
    TORCH_CHECK_VALUE(holds(p.sym_size(-1).sym_eq(*length)), op, ": expected positions of shape ", form,
                      " with length ", *length, ", but got ", p.sym_sizes());
  }
  if (batch && p.dim() == leading + 2) {
    TORCH_CHECK_VALUE(one_or(p.sym_size(leading), *batch), op, ": expected positions of shape ", form,
                      " with batch 1 or ", *batch, ", but got ", p.sym_sizes());
  }
  if (inv_freq.dim() > 1) {
    TORCH_CHECK_VALUE(holds(p.sym_size(0).sym_eq(inv_freq.sym_size(0))), op,
                      ": expected as many position axes as inv_freq has, ", inv_freq.sym_size(0), ", but got ",
                      p.sym_sizes());
  }
  if (axes) {
    for (const int64_t axis : *axes) {
      TORCH_CHECK_VALUE(holds(p.sym_size(0).sym_ge(axis + 1)), op, ": expected axes below the ", p.sym_size(0),
                        " position axes, but got ", axis);
    }
  }
}

/// All rules of rotary, rotary_qk and rotary_qk_.
inline AngleShape check_rotary(const char* op, std::initializer_list<Rotated> rotated, const OptionalTensor& positions,
                               const Tensor& inv_freq, const RotaryFuncOptions& o) {
  check_rotated(op, rotated);
  AngleShape shape = check_frequencies(op, inv_freq, o.axes(), o.attention_scaling());
  const Tensor& first = rotated.begin()->tensor;
  check_same_device(op, "inv_freq", inv_freq, first.device());
  for (const auto& each : rotated) {
    check_width(op, each, shape.pairs);
    if (shape.heads) {
      TORCH_CHECK_VALUE(holds(each.tensor.sym_size(1).sym_eq(*shape.heads)), op, ": expected ", each.name,
                        " to have the ", *shape.heads, " heads of inv_freq, but got ", each.name, " of shape ",
                        each.tensor.sym_sizes());
    }
  }
  check_positions(op, positions, inv_freq, o.axes(), shape, o.offset(), o.offsets(), first.sym_size(0),
                  first.sym_size(2));
  return shape;
}

/// All rules of rotary_tables.
inline AngleShape check_tables(const OptionalTensor& positions, const Tensor& inv_freq,
                               const RotaryTablesFuncOptions& o) {
  const char* op = "rotary_tables";
  AngleShape shape = check_frequencies(op, inv_freq, o.axes(), o.attention_scaling());
  TORCH_CHECK_TYPE(is_supported_float(o.dtype()), op,
                   ": expected dtype float32, float64, bfloat16 or float16, but got ", o.dtype());
  TORCH_CHECK_VALUE(positions || o.length(), op, ": expected length where positions is None");
  TORCH_CHECK_VALUE(!o.length() || holds(o.length()->sym_ge(0)), op, ": expected length to be at least 0, but got ",
                    *o.length());
  const auto length = o.length() ? o.length()->maybe_as_int() : std::nullopt, pairs = shape.pairs.maybe_as_int();
  if (length && pairs) {
    check_numbers(op, "length * R/2", {*length, *pairs});
  }
  if (o.decay()) {
    const Tensor& decay = *o.decay();
    check_dense(op, "decay", decay);
    TORCH_CHECK_TYPE(decay.scalar_type() == at::kFloat || decay.scalar_type() == at::kDouble, op,
                     ": expected decay to be float64 or float32, but got ", decay.scalar_type());
    TORCH_CHECK_VALUE(!shape.multi_axis && decay.dim() == 1 && holds(decay.sym_size(0).sym_eq(shape.pairs)), op,
                      ": expected decay of shape (R/2) like inv_freq on a single position axis, but got ",
                      decay.sym_sizes(), " with inv_freq of shape ", inv_freq.sym_sizes());
    check_same_device(op, "decay", decay, inv_freq.device());
  }
  TORCH_CHECK_VALUE(std::isfinite(o.centre()), op, ": expected a finite centre, but got ", o.centre());
  check_positions(op, positions, inv_freq, o.axes(), shape, o.offset(), o.offsets(), std::nullopt, o.length());
  return shape;
}

/// Shape of the tables of rotary_tables.
inline c10::SymDimVector table_sizes(const AngleShape& shape, const OptionalTensor& positions,
                                     const RotaryTablesFuncOptions& o) {
  const int64_t leading = shape.multi_axis ? 1 : 0;
  c10::SymDimVector sizes;
  if (positions && positions->dim() == leading + 2) {
    sizes.push_back(positions->sym_size(leading));
  } else if (!positions && o.offsets()) {
    sizes.push_back(o.offsets()->sym_size(0));
  } else if (shape.heads) {
    sizes.push_back(1);
  }
  if (shape.heads) {
    sizes.push_back(*shape.heads);
  }
  sizes.push_back(positions ? positions->sym_size(-1) : *o.length());
  sizes.push_back(shape.pairs);
  return sizes;
}

/// All rules of apply_rotary, apply_rotary_qk and apply_rotary_qk_. Tables are (T, R/2), (B|1, T, R/2) or
/// (B|1, H|1, T, R/2).
inline void check_apply(const char* op, std::initializer_list<Rotated> rotated, const Tensor& cos, const Tensor& sin) {
  check_rotated(op, rotated);
  const Tensor& first = rotated.begin()->tensor;
  for (const Rotated& table : {Rotated{"cos", cos}, Rotated{"sin", sin}}) {
    const Tensor& t = table.tensor;
    check_dense(op, table.name, t);
    TORCH_CHECK_TYPE(is_supported_float(t.scalar_type()), op, ": expected ", table.name,
                     " to be float32, float64, bfloat16 or float16, but got ", t.scalar_type());
    check_same_device(op, table.name, t, first.device());
    TORCH_CHECK_VALUE(t.dim() >= 2 && t.dim() <= 4, op, ": expected ", table.name,
                      " of shape (length, R/2), (batch, length, R/2) or (batch, heads, length, R/2), but got ",
                      t.sym_sizes());
    TORCH_CHECK_VALUE(holds(t.sym_size(-2).sym_eq(first.sym_size(2))), op, ": expected ", table.name,
                      " to have a row for each of the ", first.sym_size(2), " tokens, but got ", t.sym_sizes());
    TORCH_CHECK_VALUE(t.dim() == 2 || holds(t.sym_size(0).sym_eq(1).sym_or(t.sym_size(0).sym_eq(first.sym_size(0)))),
                      op, ": expected ", table.name, " with batch 1 or ", first.sym_size(0), ", but got ",
                      t.sym_sizes());
    for (const auto& [name, x] : rotated) {
      TORCH_CHECK_VALUE(t.dim() < 4 || holds(t.sym_size(1).sym_eq(1).sym_or(t.sym_size(1).sym_eq(x.sym_size(1)))), op,
                        ": expected ", table.name, " with 1 head or the ", x.sym_size(1), " of ", name, ", but got ",
                        t.sym_sizes());
      TORCH_CHECK_VALUE(holds(x.sym_size(3).sym_ge(t.sym_size(-1) * 2)), op, ": expected ", table.name,
                        " to hold one entry per pair, at most half the last dimension of ", name, " of shape ",
                        x.sym_sizes(), ", but got ", t.sym_sizes(), "; of a full-width table pass ", table.name,
                        "[..., :R//2]");
    }
  }
  TORCH_CHECK_VALUE(cos.dim() == sin.dim(), op, ": expected cos and sin of equal shape, but got ", cos.sym_sizes(),
                    " and ", sin.sym_sizes());
  for (int64_t dim = 0; dim < cos.dim(); ++dim) {
    TORCH_CHECK_VALUE(holds(cos.sym_size(dim).sym_eq(sin.sym_size(dim))), op,
                      ": expected cos and sin of equal shape, but got ", cos.sym_sizes(), " and ", sin.sym_sizes());
  }
}

}  // namespace posenc::rotary_ops
