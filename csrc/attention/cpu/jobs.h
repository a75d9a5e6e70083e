#pragma once

/// From the tensors of a call to the jobs of the kernels: what the forward, decode and backward files share.

#include "attention/cpu/head_rows.h"
#include "attention/results.h"
#include "attention/terms/decay/sums.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace posenc::attention_ops {

/// Multiplications below which one core finishes sooner than a second one wakes up.
inline constexpr double kSerialProducts = 1e6;

/// Longer than any sequence, and short enough to add to a position.
inline constexpr int64_t kLongestWindow = int64_t{1} << 60;

/// What a call says of visibility and biases, as memory that jobs point into.
template <typename T>
class Rules {
 public:
  explicit Rules(const Call& c)
      : c_(c), heads_(c.query().size(1)), queries_(c.query().size(2)), keys_(c.key().size(2)) {
    const auto by_row = [&](const OptionalTensor& x, at::ScalarType type) {
      return x ? (x->dim() == 1 ? x->unsqueeze(0) : *x).to(type).contiguous() : Tensor();
    };
    key_mask_ = by_row(c.key_mask, at::kBool);
    segments_ = by_row(c.segment_ids, at::kLong);
    offset_ = keys_ - queries_;
    if (c.q_positions || c.k_positions) {
      const auto counted = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
      const auto rows = [](const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x; };
      Tensor q = rows(c.q_positions.value_or(at::arange(keys_ - queries_, keys_, counted)));
      Tensor k = rows(c.k_positions.value_or(at::arange(keys_, counted)));
      if (!at::isFloatingType(q.scalar_type()) && !at::isFloatingType(k.scalar_type())) {
        // Differences alone matter; counted from the first key of their row they fit a double wherever they start.
        const Tensor base = k.narrow(1, 0, 1).to(at::kLong);
        q = q.to(at::kLong) - base;
        k = k.to(at::kLong) - base;
      }
      q_positions_ = by_row(q, at::kDouble);
      k_positions_ = by_row(k, at::kDouble);
      drop_consecutive_positions();
    }
    if (c.has(kSlopes)) {
      const Tensor& slopes = c[kSlopes];
      slopes_ = slopes.to(at::kDouble).expand({c.query().size(0), heads_}).contiguous();
    }
    if (c.has(kDistanceBias)) {
      table_ = c[kDistanceBias].to(c10::CppTypeToScalarType<T>::value).contiguous();
    }
    if (c.has(kLogDecay)) {
      decays_ = sum_decays_on_cpu(c);
    }
    if (c.has(kBias)) {
      bias_ = c[kBias].expand({c.query().size(0), heads_, queries_, keys_});
    }
    if (c.has(kRelK)) {
      radius_ = reachable_radius((c[kRelK].size(-2) - 1) / 2);
      rel_k_ = packed_table(c[kRelK]);
      rel_v_ = c.has(kRelV) ? packed_table(c[kRelV]) : Tensor();
    }
    if (c.has(kPosEmb)) {
      // No position exceeds the number of keys, so the last entry of a longer table is out of reach, as that kept is.
      const int64_t entries = std::min(c[kPosEmb].size(2), keys_ + 2);
      pos_emb_ = packed_table(c[kPosEmb].narrow(2, 0, entries).transpose(1, 2));
      gate_bias_ = c.has(kGateBias) ? c[kGateBias].to(at::kDouble).contiguous() : Tensor();
    }
  }

  Shape shape() const {
    Shape s{};
    s.width = c_.query().size(3);
    s.value_width = c_.value().size(3);
    s.relative_entries = rel_k_.defined() ? 2 * radius_ + 1 : 0;
    s.relative_values = rel_v_.defined();
    s.contextual_entries = pos_emb_.defined() ? pos_emb_.size(1) : 0;
    s.gate_keys = c_.has(kGateKey);
    s.far = c_.has(kFarQuery);
    return s;
  }

  Visibility visibility(int64_t batch) const {
    Visibility v{};
    v.queries = queries_;
    v.keys = keys_;
    v.causal = c_.is_causal;
    v.window = std::min(c_.window.value_or(0), kLongestWindow);
    v.offset = offset_;
    const auto row = [&](const Tensor& x) { return x.size(0) == 1 ? 0 : batch * x.size(1); };
    if (q_positions_.defined()) {
      v.q_positions = q_positions_.const_data_ptr<double>() + row(q_positions_);
      v.k_positions = k_positions_.const_data_ptr<double>() + row(k_positions_);
    }
    v.key_mask = key_mask_.defined() ? key_mask_.const_data_ptr<bool>() + row(key_mask_) : nullptr;
    v.segments = segments_.defined() ? segments_.const_data_ptr<int64_t>() + row(segments_) : nullptr;
    return v;
  }

  /// Without what lies in rows of keys or queries: gate_key, far.key, far.query, and without state.
  Scores<T> scores(int64_t batch, int64_t head) const {
    Scores<T> s{};
    s.bias = bias(batch, head);
    if (rel_k_.defined()) {
      s.relative.radius = radius_;
      s.relative.key = reachable_rows(rel_k_, head);
      s.relative.value = rel_v_.defined() ? reachable_rows(rel_v_, head) : PackedRows<T>{};
    }
    if (pos_emb_.defined()) {
      s.contextual.rows = table_rows(pos_emb_, head);
      s.contextual.entries = pos_emb_.size(1);
      s.contextual.scale = c_.scale_position_logits ? c_.score_scale() : 1.0;
      s.contextual.gate_scale = c_.score_scale();
      s.contextual.gate_bias = gate_bias_.defined() ? gate_bias_.const_data_ptr<double>()[head] : 0.0;
    }
    s.far.threshold = c_.threshold;
    return s;
  }

  /// Entries of Shaw's tables before the first that some query and key are apart.
  int64_t unreachable_entries() const { return rel_k_.defined() ? (rel_k_.size(1) - 1) / 2 - radius_ : 0; }

  int64_t table_entries() const { return table_.defined() ? table_.size(1) : 0; }

 private:
  ScoreBias<T> bias(int64_t batch, int64_t head) const {
    ScoreBias<T> b{};
    if (slopes_.defined()) {
      b.slope = slopes_.const_data_ptr<double>()[batch * heads_ + head];
    }
    if (table_.defined()) {
      b.radius = (table_.size(1) - 1) / 2;
      b.table = table_.const_data_ptr<T>() + head * table_.size(1);
    }
    if (decays_.sums.defined()) {
      const int64_t row = (decays_.sums.size(0) == 1 ? 0 : batch) * heads_ + head;
      b.decay_sums = decays_.sums.const_data_ptr<double>() + row * keys_;
      b.undefined_decays =
          decays_.undefined.defined() ? decays_.undefined.const_data_ptr<int64_t>() + row * keys_ : nullptr;
    }
    if (bias_.defined()) {
      b.bias = rows_of(bias_, batch, head);
    }
    return b;
  }

  /// A table (entries, width), or one for each head, as (1 or heads, entries, whole vectors) of T.
  static Tensor packed_table(const Tensor& table) {
    const Tensor by_head = (table.dim() == 2 ? table.unsqueeze(0) : table).to(c10::CppTypeToScalarType<T>::value);
    const int64_t missing = whole_vectors<T>(by_head.size(2)) - by_head.size(2);
    return (missing == 0 ? by_head : at::constant_pad_nd(by_head, {0, missing})).contiguous();
  }

  static PackedRows<T> table_rows(const Tensor& table, int64_t head) {
    const int64_t rows = table.size(0) == 1 ? 0 : head * table.size(1);
    return {table.const_data_ptr<T>() + rows * table.size(2), table.size(2)};
  }

  PackedRows<T> reachable_rows(const Tensor& table, int64_t head) const {
    PackedRows<T> rows = table_rows(table, head);
    rows.data += unreachable_entries() * rows.row;
    return rows;
  }

  /// A radius that clips the distances at hand as this one does.
  int64_t reachable_radius(int64_t radius) const {
    if (q_positions_.defined()) {
      return radius;
    }
    const int64_t furthest = std::max(std::abs(offset_ + queries_ - 1), std::abs(keys_ - 1 - offset_));
    return std::min(radius, std::max(furthest, int64_t{1}));
  }

  /// Positions that count up by one, equally in all rows, need no array: only their difference matters.
  void drop_consecutive_positions() {
    const auto start = [](const Tensor& x) -> std::optional<double> {
      const double* p = x.const_data_ptr<double>();
      for (int64_t i = 0; i < x.numel(); ++i) {
        if (p[i] != p[0] + static_cast<double>(i % x.size(1))) {
          return std::nullopt;
        }
      }
      return x.numel() == 0 || p[0] != std::floor(p[0]) ? std::nullopt : std::optional<double>(p[0]);
    };
    const auto q = start(q_positions_), k = start(k_positions_);
    if (q && k && std::abs(*q - *k) < 1e15) {
      offset_ = static_cast<int64_t>(*q - *k);
      q_positions_.reset();
      k_positions_.reset();
    }
  }

  const Call& c_;
  int64_t heads_, queries_, keys_, offset_, radius_ = 0;
  Tensor key_mask_, segments_, q_positions_, k_positions_, slopes_, table_, bias_;
  Tensor rel_k_, rel_v_, pos_emb_, gate_bias_;
  DecaySums decays_;
};

struct Sizes {
  explicit Sizes(const Call& c)
      : batch(c.query().size(0)),
        heads(c.query().size(1)),
        groups(c.key().size(1)),
        share(heads / groups),
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
  int64_t batch, heads, groups, share, queries, keys, width, value_width, tiles;
};

/// The i-th tile of queries in an order whose every stretch has early and late ones, which under causality cost
/// unequally.
inline int64_t mixed_tile(int64_t i, int64_t tiles) { return i % 2 == 0 ? i / 2 : tiles - 1 - i / 2; }

/// The rows of a head, number batch row * heads + head, in one tensor of a state (results.h). Null where it lacks that.
template <typename Number>
Number* state_rows(const std::vector<Tensor>& state, StatePlace place, int64_t head) {
  return place < state.size() ? state[place].mutable_data_ptr<Number>() + head * state[place].size(2) : nullptr;
}

template <typename T>
SoftmaxState<T> softmax_state(const std::vector<Tensor>& state, int64_t head) {
  return {state_rows<T>(state, kStateLargest, head), state_rows<T>(state, kStateTotal, head)};
}

template <typename T>
ContextualState<T> contextual_state(const std::vector<Tensor>& state, int64_t head) {
  return {state_rows<int32_t>(state, kStateFirstKey, head), state_rows<int32_t>(state, kStateWhole, head),
          state_rows<Fraction<T>>(state, kStateFraction, head)};
}

inline Dropout dropout_of(const Call& c, int64_t seed, int64_t head) {
  const auto bits = static_cast<uint64_t>(seed);
  return {c.dropout_p, static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(head)};
}

/// What the jobs of both passes have in common: a tile of queries of a head, from query `first_query` on, with its
/// keys.
template <typename T, typename Job>
void describe(Job& job, const Call& c, const Sizes& n, const Rules<T>& rules, KeyRows<T>& keys,
              const std::vector<Tensor>& state, int64_t seed, int64_t batch, int64_t head, int64_t first_query) {
  job.shape = rules.shape();
  job.visible = rules.visibility(batch);
  job.scores = rules.scores(batch, head);
  job.scores.contextual.state = contextual_state<T>(state, batch * n.heads + head);
  job.softmax = softmax_state<T>(state, batch * n.heads + head);
  job.dropout = dropout_of(c, seed, batch * n.heads + head);
  job.scale = c.score_scale();
  job.first_query = first_query;
  job.queries = std::min(kTileQueries, n.queries - first_query);
  job.query = rows_of(c.query(), batch, head, first_query);
  keys.enter(job, batch, head / n.share, thread_memory());
  if (c.has(kFarQuery)) {
    job.scores.far.query = rows_of(c[kFarQuery], batch, head, first_query);
  }
}

}  // namespace posenc::attention_ops
