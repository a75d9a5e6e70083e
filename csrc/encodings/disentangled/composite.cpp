/// DeBERTa's tables by bucket as tables by distance.

#include "encodings/disentangled/ops.h"

#include "common/checks.h"
#include "common/composite.h"

#include <ATen/ATen.h>

namespace posenc::disentangled_ops {

using at::Tensor;

void check_buckets(int64_t max_distance, const std::optional<int64_t>& buckets) {
  const char* module = "DisentangledRelative";
  TORCH_CHECK_VALUE(max_distance >= 1 && max_distance <= kMostDistance, module, ": expected max_distance from 1 to ",
                    kMostDistance, ", but got ", max_distance);
  if (buckets) {
    TORCH_CHECK_VALUE(*buckets >= 4 && *buckets % 2 == 0, module,
                      ": expected buckets to be even, half of them for each direction, and at least 4, but got ",
                      *buckets);
    TORCH_CHECK_VALUE(max_distance > *buckets / 2 + 1, module,
                      ": expected max_distance to be larger than buckets / 2 + 1, ", *buckets / 2 + 1,
                      ", as buckets widen from there on, but got ", max_distance);
  }
}

namespace {

/// The bucket of each distance q_position - k_position, float32: DeBERTa v2's, in its order of operations, as the
/// rounding of the logarithm decides where buckets begin.
Tensor bucket_of(const Tensor& distance, int64_t buckets, int64_t max_distance) {
  const int64_t middle = buckets / 2;
  const auto options = distance.options().dtype(at::kFloat);
  const Tensor far = distance.abs().clamp_min(middle);
  const Tensor widest =
      at::log(at::full({}, static_cast<double>(max_distance - 1) / static_cast<double>(middle), options));
  const Tensor step = at::log(far / middle) / widest * (middle - 1);
  return at::where(distance.abs() <= middle, distance.to(at::kFloat), (step.ceil() + middle) * distance.sign());
}

Tensor table_composite(const Tensor& table, int64_t max_distance, std::optional<int64_t> buckets) {
  check_buckets(max_distance, buckets);
  check_dense("DisentangledRelative", "a table", table);
  const int64_t span = span_of(max_distance, buckets);
  TORCH_CHECK_VALUE(table.dim() == 3 && holds(table.sym_size(1).sym_eq(2 * span)),
                    "DisentangledRelative: expected tables of shape (num_heads, ", 2 * span, ", head_dim), but got ",
                    table.sym_sizes());
  // Tables of attention are in the order of k_position - q_position.
  const Tensor distance = at::arange(max_distance, -max_distance - 1, -1, table.options().dtype(at::kLong));
  const Tensor bucket = buckets ? bucket_of(distance, *buckets, max_distance).to(at::kLong) : distance;
  return table.index_select(1, bucket.add(span).clamp(0, 2 * span - 1));
}

POSENC_COMPOSITES(m) { m.impl("_disentangled_table", &table_composite); }

}  // namespace

}  // namespace posenc::disentangled_ops
