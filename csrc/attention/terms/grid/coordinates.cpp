#include "attention/terms/grid/coordinates.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace posenc::attention_ops {
namespace {

/// a - b, or the number nearest to it that int64 has.
int64_t saturated_difference(int64_t a, int64_t b) {
  int64_t d;
  if (__builtin_sub_overflow(a, b, &d)) {
    return a < b ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
  return d;
}

std::pair<int64_t, int64_t> ends(const int64_t* x, int64_t n) {
  const auto [smallest, largest] = std::minmax_element(x, x + n);
  return {*smallest, *largest};
}

/// The distinct numbers among x, rising, and the place of each number of x among them. Of numbers that lie close, all
/// between count as there, and nothing is sorted.
std::vector<int64_t> distinct(const int64_t* x, int64_t n, int32_t* places) {
  const auto [smallest, largest] = ends(x, n);
  const int64_t span = saturated_difference(largest, smallest);
  if (span < n) {
    std::vector<int64_t> values(span + 1);
    std::iota(values.begin(), values.end(), smallest);
    std::transform(x, x + n, places, [first = smallest](int64_t v) { return static_cast<int32_t>(v - first); });
    return values;
  }
  std::vector<int64_t> values(x, x + n);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::transform(x, x + n, places, [&](int64_t v) {
    return static_cast<int32_t>(std::lower_bound(values.begin(), values.end(), v) - values.begin());
  });
  return values;
}

}  // namespace

GridCoordinates::GridCoordinates(const Call& c, int64_t axis, const Geometry& g) {
  const auto rows = [axis](const Tensor& positions) {
    const Tensor x = positions.select(0, axis).to(at::kLong);
    return (x.dim() == 1 ? x.unsqueeze(0) : x).contiguous();
  };
  k_ = rows(*c.k_positions);
  q_ = c.q_positions ? rows(*c.q_positions) : k_.narrow(1, g.keys - g.queries, g.queries).contiguous();
  places_ = at::empty(k_.sizes(), k_.options().dtype(at::kInt));
  if (k_.numel() == 0 || q_.numel() == 0) {
    values_ = at::zeros({1, 0}, k_.options());
    return;
  }
  std::vector<std::vector<int64_t>> found;
  size_t room = 0;
  for (int64_t row = 0; row < k_.size(0); ++row) {
    found.push_back(distinct(k_.const_data_ptr<int64_t>() + row * g.keys, g.keys,
                             places_.mutable_data_ptr<int32_t>() + row * g.keys));
    room = std::max(room, found.back().size());
  }
  values_ = at::zeros({k_.size(0), static_cast<int64_t>(room)}, k_.options());
  for (size_t row = 0; row < found.size(); ++row) {
    std::copy(found[row].begin(), found[row].end(), values_.mutable_data_ptr<int64_t>() + row * room);
  }
  const auto [first_key, last_key] = ends(k_.const_data_ptr<int64_t>(), k_.numel());
  const auto [first_query, last_query] = ends(q_.const_data_ptr<int64_t>(), q_.numel());
  smallest_ = saturated_difference(first_key, last_query);
  largest_ = saturated_difference(last_key, first_query);
}

GridReach GridCoordinates::reach(int64_t entries) const {
  const int64_t radius = (entries - 1) / 2;
  const int64_t first = std::clamp(smallest_, -radius, radius) + radius,
                last = std::clamp(largest_, -radius, radius) + radius;
  return {first, last - first + 1};
}

}  // namespace posenc::attention_ops
