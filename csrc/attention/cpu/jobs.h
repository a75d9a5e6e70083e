#pragma once

/// From the tensors of a call to the jobs of the kernels: what the forward, decode and backward files share.

#include "attention/cpu/head_rows.h"
#include "attention/results.h"
#include "attention/terms/cpu.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace posenc::attention_ops {

/// Multiplications below which one core finishes sooner than a second one wakes up.
inline constexpr double kSerialProducts = 1e6;

/// Longer than any sequence, and short enough to add to a position.
inline constexpr int64_t kLongestWindow = int64_t{1} << 60;

/// Positions as kernels read them, one by one, and whether they count up by one.
class PreparedPositions {
 public:
  explicit PreparedPositions(const Call& c) : geometry_{c.query().size(2), c.key().size(2), true, 0} {
    geometry_.offset = geometry_.keys - geometry_.queries;
    if (!c.q_places() && !c.k_places() && !c.q_start) {
      return;
    }
    const auto counted = at::TensorOptions().dtype(at::kLong);
    const auto rows = [](const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x; };
    q_ = c.q_start ? c.q_start->reshape({-1, 1}) + at::arange(geometry_.queries, counted)
                   : rows(c.q_places().value_or(at::arange(geometry_.offset, geometry_.keys, counted)));
    k_ = rows(c.k_places().value_or(at::arange(geometry_.keys, counted)));
    const bool floating = at::isFloatingType(q_.scalar_type()) || at::isFloatingType(k_.scalar_type());
    const auto type = floating ? at::kDouble : at::kLong;
    q_ = q_.to(type).contiguous();
    k_ = k_.to(type).contiguous();
    geometry_.by_index = false;
    floating ? drop_consecutive<double>() : drop_consecutive<int64_t>();
  }

  const Geometry& geometry() const { return geometry_; }

  void enter(Visibility& v, int64_t batch) const {
    v.offset = geometry_.offset;
    if (geometry_.by_index) {
      return;
    }
    const auto row = [batch](const Tensor& x) { return x.size(0) == 1 ? 0 : batch * x.size(1); };
    if (q_.scalar_type() == at::kLong) {
      v.q_positions = q_.const_data_ptr<int64_t>() + row(q_);
      v.k_positions = k_.const_data_ptr<int64_t>() + row(k_);
    } else {
      v.q_times = q_.const_data_ptr<double>() + row(q_);
      v.k_times = k_.const_data_ptr<double>() + row(k_);
    }
  }

 private:
  /// The first of numbers that count up by one in every row, all rows alike.
  template <typename Number>
  static std::optional<int64_t> start_of(const Tensor& x) {
    constexpr double kMost = 1e15;  // beyond, a double cannot hold every whole number
    const Number* p = x.const_data_ptr<Number>();
    const double first = x.numel() == 0 ? kMost : static_cast<double>(p[0]);
    if (!(std::abs(first) < kMost) || first != std::floor(first)) {
      return std::nullopt;
    }
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (p[i] != p[0] + static_cast<Number>(i % x.size(1))) {
        return std::nullopt;
      }
    }
    return static_cast<int64_t>(first);
  }

  /// Positions that count up by one, equally in all rows, need no array: only their difference matters.
  template <typename Number>
  void drop_consecutive() {
    const auto q = start_of<Number>(q_), k = start_of<Number>(k_);
    if (q && k) {
      geometry_.by_index = true;
      geometry_.offset = *q - *k;
      q_.reset();
      k_.reset();
    }
  }

  Geometry geometry_;
  Tensor q_, k_;
};

/// A call as memory that jobs point into.
template <typename T>
class PreparedCall {
 public:
  explicit PreparedCall(const Call& c) : c_(c), positions_(c), terms_(c, positions_.geometry()) {
    const auto by_row = [&](const OptionalTensor& x, at::ScalarType type) {
      return x ? x->to(type).contiguous() : Tensor();
    };
    key_mask_ = by_row(c.key_mask, at::kBool);
    k_segments_ = by_row(c.segment_ids, at::kLong);
    q_segments_ = by_row(c.q_segment_ids, at::kLong);
    blocks_ = by_row(c.block_ids, at::kLong);
  }

  const CpuTerms<T>& terms() const { return terms_; }

  WorkspaceSpec<T> workspace_spec() const { return {c_.query().size(3), c_.value().size(3), terms_.heads(0, 0)}; }

  Visibility visibility(int64_t batch) const {
    Visibility v{};
    v.queries = positions_.geometry().queries;
    v.keys = positions_.geometry().keys;
    v.causal = c_.is_causal;
    enter_windows(v);
    positions_.enter(v, batch);
    const auto row = [&](const Tensor& x) { return x.size(0) == 1 ? 0 : batch * x.size(1); };
    v.key_mask = key_mask_.defined() ? key_mask_.const_data_ptr<bool>() + row(key_mask_) : nullptr;
    // Of what each key has, queries have the last entries.
    const auto ids = [&](const Tensor& x) { return x.defined() ? x.const_data_ptr<int64_t>() + row(x) : nullptr; };
    const auto of_queries = [&](const int64_t* x) { return x != nullptr ? x + v.keys - v.queries : nullptr; };
    v.k_segments = ids(k_segments_);
    v.q_segments = q_segments_.defined() ? ids(q_segments_) : of_queries(v.k_segments);
    v.k_blocks = ids(blocks_);
    v.q_blocks = of_queries(v.k_blocks);
    return v;
  }

 private:
  /// Bounds that distances stay below: window itself, and what follows window_left and window_right.
  void enter_windows(Visibility& v) const {
    const auto enter = [&](bool& bounded, int64_t& bound, double& time, const std::optional<int64_t>& reach) {
      bounded = c_.window || reach;
      bound = c_.window ? std::min(*c_.window, kLongestWindow) : std::min(reach.value_or(0), kLongestWindow) + 1;
      time = c_.window
                 ? static_cast<double>(*c_.window)
                 : std::nextafter(static_cast<double>(reach.value_or(0)), std::numeric_limits<double>::infinity());
    };
    enter(v.bounded_before, v.before, v.before_time, c_.window_left);
    enter(v.bounded_after, v.after, v.after_time, c_.window_right);
    v.bounded_after = v.bounded_after && !v.causal;  // later keys are hidden anyway
  }

  const Call& c_;
  PreparedPositions positions_;
  CpuTerms<T> terms_;
  Tensor key_mask_, k_segments_, q_segments_, blocks_;
};

struct Sizes {
  explicit Sizes(const Call& c)
      : batch(c.query().size(0)),
        heads(c.query().size(1)),
        groups(c.key().size(1)),
        heads_per_group(heads / groups),
        queries(c.query().size(2)),
        keys(c.key().size(2)),
        width(c.query().size(3)),
        value_width(c.value().size(3)),
        tiles(ceil_div(queries, kTileQueries)) {}
  /// Multiplications of the forward pass, without what is hidden.
  double products() const {
    return static_cast<double>(batch * heads) * static_cast<double>(queries) * static_cast<double>(keys) *
           static_cast<double>(width + value_width);
  }
  int64_t batch, heads, groups, heads_per_group, queries, keys, width, value_width, tiles;
};

/// The i-th tile of queries in an order whose every stretch has early and late ones, which under causality cost
/// unequally.
inline int64_t mixed_tile(int64_t i, int64_t tiles) { return i % 2 == 0 ? i / 2 : tiles - 1 - i / 2; }

/// Where the rows of a head, number batch row * heads + head, lie in a tensor (B, H, Tq). Null where it has no
/// elements.
template <typename T>
T* rows_of_head(const Tensor& x, int64_t head) {
  return x.defined() && x.numel() != 0 ? x.mutable_data_ptr<T>() + head * x.size(2) : nullptr;
}

template <typename T>
SoftmaxState<T> softmax_state(const Residuals& r, int64_t head) {
  return {rows_of_head<T>(r.largest, head), rows_of_head<T>(r.total, head)};
}

inline Dropout dropout_of(const Call& c, int64_t seed, int64_t head) {
  const auto bits = static_cast<uint64_t>(seed);
  return {c.dropout_p, static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(head)};
}

/// What a thread holds of the rows of a call.
template <typename T>
struct ThreadRows {
  ThreadRows(const Call& c, bool walked_often) : keys(c, walked_often), terms(c, walked_often) {}
  KeyRows<T> keys;
  typename CpuTerms<T>::Rows terms;
};

/// What the jobs of both passes have in common: a tile of queries of a head, from place.first_query on, with its keys.
template <typename T, typename Job>
void describe(Job& job, const Call& c, const Sizes& n, const PreparedCall<T>& call, ThreadRows<T>& rows,
              const Residuals& r, int64_t seed, const JobPlace& place) {
  const int64_t head = place.batch * n.heads + place.head;
  job.width = n.width;
  job.value_width = n.value_width;
  job.visible = call.visibility(place.batch);
  job.heads = call.terms().heads(place.batch, place.head);
  rows.terms.enter(job.heads, place);
  if (r.counts.defined()) {
    call.terms().enter_residuals(job.heads, place, r.counts);
  }
  job.softmax = softmax_state<T>(r, head);
  job.dropout = dropout_of(c, seed, head);
  job.scale = c.score_scale();
  job.first_query = place.first_query;
  job.queries = std::min(kTileQueries, n.queries - place.first_query);
  job.query = rows_of(c.query(), place.batch, place.head, place.first_query);
  rows.keys.enter(job, place);
}

}  // namespace posenc::attention_ops
