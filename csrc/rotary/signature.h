#pragma once

/// The flat argument lists of the rotary schemas, adapted once for all backends: a kernel is written as a function of
/// tensors and options and registered as `&flat_rotary<kernel>`.

#include <posenc/ops.h>

#include <ATen/core/Tensor.h>

namespace posenc::rotary_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline std::optional<std::vector<int64_t>> to_vector(at::OptionalIntArrayRef axes) {
  return axes ? std::make_optional(axes->vec()) : std::nullopt;
}

/// The tables that rotary() with these options applies to x.
inline RotaryTablesFuncOptions table_options(const Tensor& x, const RotaryFuncOptions& o) {
  return RotaryTablesFuncOptions()
      .length(x.sym_size(2))
      .offset(o.offset())
      .offsets(o.offsets())
      .attention_scaling(o.attention_scaling())
      .axes(o.axes())
      .exact(o.exact())
      .dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

inline RotaryFuncOptions pack(double attention_scaling, bool interleaved, bool inverse, at::OptionalIntArrayRef axes,
                              bool exact, c10::SymInt offset, const OptionalTensor& offsets) {
  return RotaryFuncOptions()
      .attention_scaling(attention_scaling)
      .interleaved(interleaved)
      .inverse(inverse)
      .axes(to_vector(axes))
      .exact(exact)
      .offset(std::move(offset))
      .offsets(offsets);
}

template <auto kernel>
auto flat_rotary(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, double attention_scaling,
                 bool interleaved, bool inverse, at::OptionalIntArrayRef axes, bool exact, c10::SymInt offset,
                 const OptionalTensor& offsets) {
  return kernel(x, positions, inv_freq,
                pack(attention_scaling, interleaved, inverse, axes, exact, std::move(offset), offsets));
}

template <auto kernel>
auto flat_rotary_qk(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                    double attention_scaling, bool interleaved, bool inverse, at::OptionalIntArrayRef axes, bool exact,
                    c10::SymInt offset, const OptionalTensor& offsets) {
  return kernel(q, k, positions, inv_freq,
                pack(attention_scaling, interleaved, inverse, axes, exact, std::move(offset), offsets));
}

template <auto kernel>
auto flat_rotary_tables(const OptionalTensor& positions, const Tensor& inv_freq, std::optional<c10::SymInt> length,
                        c10::SymInt offset, const OptionalTensor& offsets, double attention_scaling,
                        at::OptionalIntArrayRef axes, bool exact, std::optional<at::ScalarType> dtype,
                        const OptionalTensor& decay, double centre) {
  return kernel(positions, inv_freq,
                RotaryTablesFuncOptions()
                    .length(std::move(length))
                    .offset(std::move(offset))
                    .offsets(offsets)
                    .attention_scaling(attention_scaling)
                    .axes(to_vector(axes))
                    .exact(exact)
                    .dtype(dtype.value_or(at::kFloat))
                    .decay(decay)
                    .centre(centre));
}

}  // namespace posenc::rotary_ops
