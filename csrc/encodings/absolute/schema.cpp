/// The schemas of the absolute encodings' ops, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/absolute/ops.h"

namespace posenc::absolute_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def(
      "_add_sinusoidal(Tensor x, Tensor? positions, Tensor inv_freq, int dim, *, bool interleaved=True, "
      "bool cosines_first=False, int num_axes=1, SymInt offset=0, Tensor? offsets=None) -> Tensor",
      tags);
  m.def("_add_learned(Tensor x, Tensor? positions, Tensor weight, *, SymInt offset=0, Tensor? offsets=None) -> Tensor",
        tags);
  m.def(
      "_add_cape(Tensor x, Tensor? positions, Tensor inv_freq, int dim, *, bool training, float max_global_shift, "
      "float max_local_shift, float max_global_scaling, bool centre=False, SymInt offset=0, Tensor? offsets=None) -> "
      "Tensor",
      {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded});
  m.def(
      "_resized_positions(Tensor weight, int[] size, *, int prefix=0, int[]? grid=None, str? mode=None, "
      "bool align_corners=False, bool antialias=False) -> Tensor",
      tags);
  m.def("_checked_positions(Tensor positions, SymInt max_positions) -> Tensor", tags);
}

}  // namespace

Tensor add_sinusoidal(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim,
                      const Columns& columns) {
  static const auto op = find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, int64_t, bool, bool,
                                        int64_t, c10::SymInt, const OptionalTensor&)>("posenc::_add_sinusoidal");
  return op.call(x, place.positions, inv_freq, dim, columns.interleaved, columns.cosines_first, columns.num_axes,
                 place.offset, place.offsets);
}

Tensor add_learned(const Tensor& x, const Place& place, const Tensor& weight) {
  static const auto op =
      find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, c10::SymInt, const OptionalTensor&)>(
          "posenc::_add_learned");
  return op.call(x, place.positions, weight, place.offset, place.offsets);
}

Tensor add_cape(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim, bool centre,
                const std::optional<Augmentation>& augmentation) {
  static const auto op = find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, int64_t, bool, double,
                                        double, double, bool, c10::SymInt, const OptionalTensor&)>("posenc::_add_cape");
  const Augmentation a = augmentation.value_or(Augmentation{0.0, 0.0, 1.0});
  return op.call(x, place.positions, inv_freq, dim, augmentation.has_value(), a.max_global_shift, a.max_local_shift,
                 a.max_global_scaling, centre, place.offset, place.offsets);
}

Tensor resized_positions(const Tensor& weight, const Resize& r) {
  static const auto op = find_op<Tensor(const Tensor&, at::IntArrayRef, int64_t, at::OptionalIntArrayRef,
                                        std::optional<c10::string_view>, bool, bool)>("posenc::_resized_positions");
  const at::OptionalIntArrayRef grid = r.grid ? at::OptionalIntArrayRef(*r.grid) : std::nullopt;
  return op.call(weight, r.size, r.prefix, grid, r.mode, r.align_corners, r.antialias);
}

Tensor checked_positions(const Tensor& positions, c10::SymInt max_positions) {
  static const auto op = find_op<Tensor(const Tensor&, c10::SymInt)>("posenc::_checked_positions");
  return op.call(positions, std::move(max_positions));
}

}  // namespace posenc::absolute_ops
