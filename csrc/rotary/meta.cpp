/// Shapes, dtypes and strides of the rotary ops without data.

#include "common/registration.h"
#include "rotary/checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace posenc::rotary_ops {
namespace {

Tensor rotary_meta(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                   const RotaryFuncOptions& o) {
  check_rotary("rotary", {{"x", x}}, positions, inv_freq, o);
  return at::empty_like(x);
}

std::tuple<Tensor, Tensor> rotary_qk_meta(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                          const Tensor& inv_freq, const RotaryFuncOptions& o) {
  check_rotary("rotary_qk", {{"q", q}, {"k", k}}, positions, inv_freq, o);
  return {at::empty_like(q), at::empty_like(k)};
}

void rotary_qk_inplace_meta(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                            const RotaryFuncOptions& o) {
  check_rotary("rotary_qk_", {{"q", q}, {"k", k}}, positions, inv_freq, o);
}

std::tuple<Tensor, Tensor> rotary_tables_meta(const OptionalTensor& positions, const Tensor& inv_freq,
                                              const RotaryTablesFuncOptions& o) {
  const auto sizes = table_sizes(check_tables(positions, inv_freq, o), positions, o);
  const auto options = inv_freq.options().dtype(o.dtype());
  return {at::empty_symint(sizes, options), at::empty_symint(sizes, options)};
}

Tensor apply_rotary_meta(const Tensor& x, const Tensor& cos, const Tensor& sin, bool, bool) {
  check_apply("apply_rotary", {{"x", x}}, cos, sin);
  return at::empty_like(x);
}

std::tuple<Tensor, Tensor> apply_rotary_qk_meta(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                                bool, bool) {
  check_apply("apply_rotary_qk", {{"q", q}, {"k", k}}, cos, sin);
  return {at::empty_like(q), at::empty_like(k)};
}

void apply_rotary_qk_inplace_meta(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool, bool) {
  check_apply("apply_rotary_qk_", {{"q", q}, {"k", k}}, cos, sin);
}

POSENC_LIBRARY_IMPL(Meta, m) {
  m.impl("rotary", &flat_rotary<rotary_meta>);
  m.impl("rotary_qk", &flat_rotary_qk<rotary_qk_meta>);
  m.impl("rotary_qk_", &flat_rotary_qk<rotary_qk_inplace_meta>);
  m.impl("rotary_tables", &flat_rotary_tables<rotary_tables_meta>);
  m.impl("apply_rotary", &apply_rotary_meta);
  m.impl("apply_rotary_qk", &apply_rotary_qk_meta);
  m.impl("apply_rotary_qk_", &apply_rotary_qk_inplace_meta);
}

}  // namespace
}  // namespace posenc::rotary_ops
