#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace posenc::disentangled_ops {

/// The largest max_distance: up to it, DeBERTa's buckets in float32 reach their last one where they should.
inline constexpr int64_t kMostDistance = 65536;

/// Rows of DeBERTa's tables for distances q_position - k_position below 0, and as many for the others.
inline int64_t span_of(int64_t max_distance, const std::optional<int64_t>& buckets) {
  return buckets.value_or(max_distance);
}

/// Raises unless DeBERTa's buckets exist for these numbers.
void check_buckets(int64_t max_distance, const std::optional<int64_t>& buckets);

/// A table (H, 2 * span, D) by DeBERTa's buckets as rel_k or rel_q of posenc::relative_attention(), (H, 2 *
/// max_distance
/// + 1, D): distances beyond share the last rows. A call through the dispatcher.
at::Tensor table_of_distances(const at::Tensor& table, int64_t max_distance, const std::optional<int64_t>& buckets);

}  // namespace posenc::disentangled_ops
