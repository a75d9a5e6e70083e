/// The schemas of the rotary ops, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"

#include <posenc/ops.h>

namespace posenc {
namespace {

using at::OptionalIntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

#define ANGLE_OPTIONS                                                                                   \
  "*, float attention_scaling=1.0, bool interleaved=False, bool inverse=False, int[]? axes=None, bool " \
  "exact=True, SymInt offset=0, Tensor? offsets=None"

POSENC_LIBRARY_FRAGMENT(m) {
  // Output strides follow the input's, so a compiler must not change those. No ScalarType has a default of its own: it
  // would be an integer to AOTInductor, which then cannot load the call.
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides};
  m.def("rotary(Tensor x, Tensor? positions, Tensor inv_freq, " ANGLE_OPTIONS ") -> Tensor", tags);
  m.def("rotary_qk(Tensor q, Tensor k, Tensor? positions, Tensor inv_freq, " ANGLE_OPTIONS ") -> (Tensor, Tensor)",
        tags);
  m.def("rotary_qk_(Tensor(a!) q, Tensor(b!) k, Tensor? positions, Tensor inv_freq, " ANGLE_OPTIONS ") -> ()", tags);
  m.def(
      "rotary_tables(Tensor? positions, Tensor inv_freq, *, SymInt? length=None, SymInt offset=0, "
      "Tensor? offsets=None, float attention_scaling=1.0, int[]? axes=None, bool exact=True, "
      "ScalarType? dtype=None, Tensor? decay=None, float centre=0.0) -> (Tensor, Tensor)",
      tags);
  m.def("apply_rotary(Tensor x, Tensor cos, Tensor sin, *, bool interleaved=False, bool inverse=False) -> Tensor",
        tags);
  m.def(
      "apply_rotary_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, *, bool interleaved=False, bool inverse=False) -> "
      "(Tensor, Tensor)",
      tags);
  m.def(
      "apply_rotary_qk_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, *, bool interleaved=False, bool "
      "inverse=False) -> ()",
      tags);
  m.def("permute_rotary_weight(Tensor weight, int num_heads, str to=\"half\", int? rotary_dim=None) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}

#undef ANGLE_OPTIONS

OptionalIntArrayRef view(const std::optional<std::vector<int64_t>>& axes) {
  return axes ? OptionalIntArrayRef(*axes) : std::nullopt;
}

template <typename Result>
using RotaryQK = Result(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, double, bool, bool,
                        OptionalIntArrayRef, bool, c10::SymInt, const OptionalTensor&);
template <typename Result>
using ApplyRotaryQK = Result(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, bool);

}  // namespace

Tensor rotary(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, const RotaryFuncOptions& o) {
  static const auto op =
      find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, double, bool, bool, OptionalIntArrayRef, bool,
                     c10::SymInt, const OptionalTensor&)>("posenc::rotary");
  return op.call(x, positions, inv_freq, o.attention_scaling(), o.interleaved(), o.inverse(), view(o.axes()), o.exact(),
                 o.offset(), o.offsets());
}

std::tuple<Tensor, Tensor> rotary_qk(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                     const Tensor& inv_freq, const RotaryFuncOptions& o) {
  static const auto op = find_op<RotaryQK<std::tuple<Tensor, Tensor>>>("posenc::rotary_qk");
  return op.call(q, k, positions, inv_freq, o.attention_scaling(), o.interleaved(), o.inverse(), view(o.axes()),
                 o.exact(), o.offset(), o.offsets());
}

void rotary_qk_(Tensor q, Tensor k, const OptionalTensor& positions, const Tensor& inv_freq,
                const RotaryFuncOptions& o) {
  static const auto op = find_op<RotaryQK<void>>("posenc::rotary_qk_");
  op.call(q, k, positions, inv_freq, o.attention_scaling(), o.interleaved(), o.inverse(), view(o.axes()), o.exact(),
          o.offset(), o.offsets());
}

std::tuple<Tensor, Tensor> rotary_tables(const OptionalTensor& positions, const Tensor& inv_freq,
                                         const RotaryTablesFuncOptions& o) {
  static const auto op = find_op<std::tuple<Tensor, Tensor>(
      const OptionalTensor&, const Tensor&, std::optional<c10::SymInt>, c10::SymInt, const OptionalTensor&, double,
      OptionalIntArrayRef, bool, std::optional<at::ScalarType>, const OptionalTensor&, double)>(
      "posenc::rotary_tables");
  return op.call(positions, inv_freq, o.length(), o.offset(), o.offsets(), o.attention_scaling(), view(o.axes()),
                 o.exact(), o.dtype(), o.decay(), o.centre());
}

Tensor apply_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, bool)>("posenc::apply_rotary");
  return op.call(x, cos, sin, interleaved, inverse);
}

std::tuple<Tensor, Tensor> apply_rotary_qk(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                           bool interleaved, bool inverse) {
  static const auto op = find_op<ApplyRotaryQK<std::tuple<Tensor, Tensor>>>("posenc::apply_rotary_qk");
  return op.call(q, k, cos, sin, interleaved, inverse);
}

void apply_rotary_qk_(Tensor q, Tensor k, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  static const auto op = find_op<ApplyRotaryQK<void>>("posenc::apply_rotary_qk_");
  op.call(q, k, cos, sin, interleaved, inverse);
}

Tensor permute_rotary_weight(const Tensor& weight, int64_t num_heads, c10::string_view to,
                             std::optional<int64_t> rotary_dim) {
  static const auto op = find_op<Tensor(const Tensor&, int64_t, c10::string_view, std::optional<int64_t>)>(
      "posenc::permute_rotary_weight");
  return op.call(weight, num_heads, to, rotary_dim);
}

}  // namespace posenc
