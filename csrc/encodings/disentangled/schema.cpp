/// The op that DisentangledRelative calls, as a call through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/disentangled/ops.h"

namespace posenc::disentangled_ops {

using at::Tensor;

namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  m.def("_disentangled_table(Tensor table, int max_distance, int? buckets=None) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}

}  // namespace

Tensor table_of_distances(const Tensor& table, int64_t max_distance, const std::optional<int64_t>& buckets) {
  static const auto op = find_op<Tensor(const Tensor&, int64_t, std::optional<int64_t>)>("posenc::_disentangled_table");
  return op.call(table, max_distance, buckets);
}

}  // namespace posenc::disentangled_ops
