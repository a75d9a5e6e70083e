#pragma once

/// CoPE's counting over tiles of scores, for kernel files only (gates.h says how).

#include "attention/terms/cope/gates.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class CopeTile : public TileTerm<T> {
 public:
  static int64_t size(const CopeHead<T>& head, const TileContext<T>& context) {
    const int64_t rows = context.backward
                             ? context.width + 2 * head.entries + 7 + 2 * kTileKeys
                             : context.width + head.entries + 4 + (needs_gate_scores(head) ? kTileKeys : 0);
    return rows * kTileQueries;
  }

  CopeTile(const CopeHead<T>& head, const CopeGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), context_(context), gates_of_(head), width_(context.width), last_(head.entries - 1) {
    const auto rows = [&](int64_t n) { return std::exchange(at, at + n * kTileQueries); };
    query_ = rows(context.width);
    logits_ = rows(head.entries + 1);
    fraction_ = reinterpret_cast<Integer*>(rows(1));
    place_ = reinterpret_cast<Integer*>(rows(1));
    first_ = reinterpret_cast<Integer*>(rows(1));
    if (context.backward) {
      sums_ = rows(head.entries);
      prefix_ = rows(1);
      lower_ = rows(1);
      upper_ = rows(1);
      slopes_ = rows(kTileKeys);
    }
    if (context.backward || needs_gate_scores(head)) {
      gates_ = rows(kTileKeys);
    }
  }

  void begin(const TileRows<T>& rows) {
    const Tile& t = rows.tile;
    pack_transposed(rows.query_rows, t, width_, static_cast<T>(head_.scale * kLog2E), query_);
    T* last = logits_ + last_ * kTileQueries;
    product(last_, 1, t, last);
    std::copy(last, last + kTileQueries, last + kTileQueries);  // read where a query has no band
    ready_ = 0;
    if (context_.backward) {
      load(t, rows.begin, context_.visible->keys);
    } else {
      start(t, context_.visible->keys);
    }
  }

  void begin_tile(const Tile& t) { counts_ = context_.backward ? reaches(t) : counts(t); }

  bool changes_scores() const { return counts_ || head_.caps_sum; }

  /// Gates come from the content score alone, so it is copied before another term adds to it.
  void take_product(const Tile& t, const T* scores) {
    if (counts_ && head_.copies_product && !head_.has_gate_keys) {
      std::copy(scores, scores + t.keys * kTileQueries, gates_);
    }
  }

  void add(Tile& t, const Operands<T>& operands, T* mask, T* scores) {
    if (head_.caps_sum) {
      add_left_out(t, scores);
    }
    if (!counts_) {
      return;
    }
    const T* gate_scores = scores;
    if (head_.has_gate_keys) {
      score_product(head_.gate_key.from(t.first_key), operands.query, t.keys, t.lanes, width_, t.diagonal, gates_,
                    static_cast<T*>(nullptr));
      gate_scores = gates_;
    } else if (head_.copies_product) {
      gate_scores = gates_;
    }
    if (context_.backward) {
      retrace(t, mask, gate_scores, scores);
    } else {
      count(t, mask, gate_scores, scores);
    }
  }

  /// Once a query has saturated, its scores leave out the logit of the last entry. This depends on that query
  /// only, so that no bit of a row depends on its neighbours.
  void defer(const Tile& t, T* largest) {
    for (int64_t q = 0; q < t.queries; ++q) {
      if (is_saturated(q) && !deferred_[q]) {
        deferred_[q] = true;
        largest[q] -= left_out(q);
      }
    }
  }
  T deferred(int64_t q) const { return deferred_[q] ? left_out(q) : T(0); }

  bool may_defer() const { return true; }
  T deferred(const Tile& t, int64_t q) const { return reaches(t, q) ? T(0) : left_out(q); }

  void finish(const ForwardSums<T>& sums) { save(sums.tile, sums.begin); }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    if (head_.caps_sum) {
      for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
        Vec<T> sum = Vec<T>::loadu(totals_ + q);
        for (int64_t k = 0; k < keys.some; ++k) {
          sum = sum + Vec<T>::loadu(grad + k * kTileQueries + q);
        }
        sum.store(totals_ + q);
      });
    }
    if (counts_ && has_products()) {
      take(t, grad, slopes_, grad_->gate_bias);
    }
  }

  template <typename Body>
  bool take_products(const Tile& t, const T* mask, const Operands<T>& operands, T* grad, const Body& body) {
    if (!counts_) {
      return false;
    }
    if (!has_products()) {
      take(t, grad, grad, grad_->gate_bias);
      return false;
    }
    Operands<T> gates = operands;
    if (head_.has_gate_keys) {
      gates.key = head_.gate_key;
      gates.grad_key = grad_->gate_key;
    }
    body(t, mask, slopes_, gates);
    return false;
  }

  bool has_sums() const { return true; }

  void finish(const BackwardSums<T>& sums) {
    const Tile& t = sums.tile;
    end_sums(t, head_.caps_sum ? totals_ : sums.total, [&](int64_t first, int64_t count, T* of_entries) {
      add_to_table_and_queries(head_.table, first, count, t, of_entries, sums.query_rows, padded<T>(width_),
                               grad_->table, sums.grad_query);
    });
  }

 private:
  static bool needs_gate_scores(const CopeHead<T>& head) { return head.has_gate_keys || head.copies_product; }

  /// Whether the gradients of gates' scores are those of products of their own.
  bool has_products() const { return head_.has_gate_keys || head_.caps_product; }

  /// What the scores of a query leave out where it has saturated.
  T left_out(int64_t q) const { return head_.caps_sum ? T(0) : last_logits()[q]; }

  /// Adds the logit of the last entry to the scores of queries that have saturated.
  void add_left_out(const Tile& t, T* scores) const {
    for (int64_t q = 0; q < t.queries; ++q) {
      const bool saturated = context_.backward ? !reaches(t, q) : deferred_[q];
      for (int64_t k = 0; k < t.keys && saturated; ++k) {
        scores[k * kTileQueries + q] += last_logits()[q];
      }
    }
  }

  // Forward.

  /// Starts counting at the queries themselves; `keys` are those of the head.
  void start(const Tile& t, int64_t keys) {
    for (int64_t q = 0; q < t.lanes; ++q) {
      place_[q] = static_cast<Integer>(q);
      fraction_[q] = 0;
      first_[q] = static_cast<Integer>(last_ > 0 && q < t.queries ? kOpen : keys);
    }
  }

  bool is_saturated(int64_t q) const { return first_[q] != kOpen; }

  /// Whether a query counts still.
  bool counts(const Tile& t) const {
    return std::any_of(first_, first_ + t.queries, [](Integer first) { return first == kOpen; });
  }

  /// Counts the gates of a tile of keys and adds the logits to its scores. `gate_scores` may be the scores.
  void count(const Tile& t, const T* mask, const T* gate_scores, T* scores) {
    const int64_t reached = *std::max_element(place_, place_ + t.queries) / kTileQueries + t.keys;
    make_ready(std::min(reached + 1, last_ - 1), t);
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      Vec<T> last = Vec<T>::loadu(last_logits() + q);
      Cell cell = load_cell(q);
      Integers first = Integers::loadu(first_ + q);
      Vec<T> open = at::vec::cast<T>(first == Integers(kOpen));
      last = last & open;
      const Integers end = Integers::arange(static_cast<Integer>(last_ * kTileQueries + q), Integer{1});
      for (int64_t k = keys.some - 1; k >= 0; --k) {
        const int64_t at = k * kTileQueries + q;
        Vec<T> gate = gates_of_(Vec<T>::loadu(gate_scores + at)) & open;
        if (k >= keys.all) {
          gate = Vec<T>::blendv(Vec<T>(T(0)), gate, seen_lanes(t, mask, k, q));
        }
        Integers sum = cell.fraction + to_fractions(gate), moved = sum >= Integers(kWhole<T>);
        if (cpu::any_lane(at::vec::cast<T>(moved))) {
          const Integers next = cell.place + Integers(kTileQueries), full = moved & (next >= end);
          if (cpu::any_lane(at::vec::cast<T>(full))) {
            open = Vec<T>::blendv(open, Vec<T>(T(0)), at::vec::cast<T>(full));
            first = Integers::blendv(first, Integers(static_cast<Integer>(t.first_key + k + 1)), full);
            sum = Integers::blendv(sum, cell.fraction, full);
            moved = Integers::blendv(moved, Integers(0), full);
          }
          sum = sum - (moved & Integers(kWhole<T>));
          cell.place = Integers::blendv(cell.place, next, moved);
          cell.lower = Vec<T>::blendv(cell.lower, cell.upper, at::vec::cast<T>(moved));
          cell.upper = logits_at(cell.place + Integers(kTileQueries));
        }
        cell.fraction = sum;
        const Vec<T> score = fmadd(gate, Vec<T>(T(0)), Vec<T>::loadu(scores + at));  // a gate of NaN makes its row so
        (score + Vec<T>::blendv(last, cell.logit(), open)).store(scores + at);
      }
      cell.fraction.store(fraction_ + q);
      cell.place.store(place_ + q);
      first.store(first_ + q);
    });
  }

  /// Leaves the state of the tile's queries, all keys from `begin` on counted.
  void save(const Tile& t, int64_t begin) const {
    const GateCounts<T>& state = head_.counts;
    if (state.first_key == nullptr) {
      return;
    }
    for (int64_t q = 0; q < t.queries; ++q) {
      const int64_t at = t.first_query + q;
      state.first_key[at] = first_[q] == kOpen ? static_cast<Integer>(begin) : first_[q];
      state.whole[at] = place_[q] / static_cast<Integer>(kTileQueries);
      state.fraction[at] = fraction_[q];
    }
  }

  // Backward.

  /// Takes over the state that the forward pass left, where keys from `begin` on were counted.
  void load(const Tile& t, int64_t begin, int64_t keys) {
    begin_ = static_cast<Integer>(begin);
    const GateCounts<T>& state = head_.counts;
    Integer furthest = 0;
    for (int64_t q = 0; q < t.lanes; ++q) {
      const bool real = q < t.queries;
      const int64_t saved = real ? state.whole[t.first_query + q] : 0;
      const Integer whole = static_cast<Integer>(std::clamp<int64_t>(saved, 0, std::max<int64_t>(last_ - 1, 0)));
      first_[q] = real ? state.first_key[t.first_query + q] : static_cast<Integer>(keys);
      place_[q] = static_cast<Integer>(whole * kTileQueries + q);
      fraction_[q] = real ? state.fraction[t.first_query + q] : Integer{0};
      furthest = std::max(furthest, whole);
    }
    summed_ = std::min<int64_t>(furthest + 2, last_);
    make_ready(summed_ - 1, t);
    std::fill(sums_, sums_ + summed_ * kTileQueries, T(0));
    std::fill(sums_ + last_ * kTileQueries, sums_ + (last_ + 1) * kTileQueries, T(0));
    for (T* row : {prefix_, lower_, upper_}) {
      std::fill(row, row + t.lanes, T(0));
    }
  }

  /// Whether the tile lies in the band of query q, and of some query.
  bool reaches(const Tile& t, int64_t q) const { return first_[q] < t.first_key + t.keys; }
  bool reaches(const Tile& t) const { return *std::min_element(first_, first_ + t.queries) < t.first_key + t.keys; }

  /// Adds the logits to a tile of scores, and keeps what take() needs.
  void retrace(const Tile& t, const T* mask, const T* gate_scores, T* scores) {
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      const Integers first = Integers::loadu(first_ + q), end(static_cast<Integer>(t.first_key + t.keys));
      const Vec<T> last = Vec<T>::loadu(last_logits() + q) & at::vec::cast<T>(first < end);
      Cell cell = load_cell(q);
      for (int64_t k = 0; k < keys.some; ++k) {
        const int64_t at = k * kTileQueries + q;
        Vec<T> active = in_band(t, k, q);
        const Vec<T> slope = cell.upper - cell.lower;
        (slope & active).store(slopes_ + at);
        const Vec<T> gate_score = Vec<T>::loadu(gate_scores + at);
        (Vec<T>::loadu(scores + at) + Vec<T>::blendv(last, cell.logit(), active)).store(scores + at);
        if (k >= keys.all) {
          active = active & seen_lanes(t, mask, k, q);
        }
        const Vec<T> gate = Vec<T>::blendv(Vec<T>(T(0)), gates_of_(gate_score), active);
        gate.store(gates_ + at);
        const Vec<T> moved = retreat(cell, gate);
        if (cpu::any_lane(moved)) {
          cell.upper = Vec<T>::blendv(cell.upper, cell.lower, moved);
          cell.lower = logits_at(cell.place);
        }
      }
    });
  }

  /// From the gradients of a tile of scores: sums those of the logits by entry, and adds those of the gates' scores to
  /// `to`, which may be the same tile.
  void take(const Tile& t, const T* grad, T* to, double* grad_bias) {
    Vec<T> of_bias(T(0));
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      Cell cell{Integers::loadu(fraction_ + q), Integers::loadu(place_ + q), Vec<T>(T(0)), Vec<T>(T(0))};
      const Vec<T> zero(T(0)), one(T(1)), ln2(static_cast<T>(kLn2));
      Vec<T> prefix = Vec<T>::loadu(prefix_ + q), lower = Vec<T>::loadu(lower_ + q), upper = Vec<T>::loadu(upper_ + q);
      for (int64_t k = 0; k < keys.some; ++k) {
        const int64_t at = k * kTileQueries + q;
        const Vec<T> all = Vec<T>::loadu(grad + at), g = all & in_band(t, k, q);
        const Vec<T> gate = Vec<T>::loadu(gates_ + at), fraction = from_fractions<T>(cell.fraction);
        // The gate of a key is counted in the positions of all keys before it.
        prefix = fmadd(g * Vec<T>::loadu(slopes_ + at), ln2, prefix);
        upper = fmadd(g, fraction, upper);
        lower = fmadd(g, one - fraction, lower);
        const Vec<T> of_score = Vec<T>::blendv(zero, gate * (one - gate) * prefix, gate != zero);
        of_bias = of_bias + of_score;
        ((to == grad ? all : zero) + of_score).store(to + at);
        const Integers above = cell.place + Integers(kTileQueries);
        const Vec<T> moved = retreat(cell, gate);
        if (cpu::any_lane(moved)) {
          cpu::scatter(upper, above, moved, sums_);
          upper = Vec<T>::blendv(upper, lower, moved);
          lower = Vec<T>::blendv(lower, zero, moved);
        }
      }
      if (to != grad) {
        for (int64_t k = keys.some; k < keys.end; ++k) {
          zero.store(to + k * kTileQueries + q);
        }
      }
      cell.fraction.store(fraction_ + q);
      cell.place.store(place_ + q);
      prefix.store(prefix_ + q);
      lower.store(lower_ + q);
      upper.store(upper_ + q);
    });
    if (grad_bias != nullptr) {
      *grad_bias += cpu::sum_lanes(of_bias);
    }
  }

  /// Ends the sums by entry, `total` that of all of a row's, and calls body(first, count, sums[entry - first][query])
  /// for those that are not 0.
  template <typename Body>
  void end_sums(const Tile& t, const T* total, const Body& body) {
    T* last = sums_ + last_ * kTileQueries;
    for (int64_t q = 0; q < t.queries && last_ > 0; ++q) {
      sums_[place_[q]] = lower_[q];
      sums_[place_[q] + kTileQueries] = upper_[q];
    }
    // Keys before the band are at the last entry: of a row's total it has what no other entry has.
    const auto reached = [&](int64_t q) { return first_[q] > begin_; };
    for (int64_t q = 0; q < t.queries; ++q) {
      last[q] = reached(q) ? total[q] : last[q];
    }
    for (int64_t p = 0; p < summed_; ++p) {
      for (int64_t q = 0; q < t.queries; ++q) {
        last[q] -= reached(q) ? sums_[p * kTileQueries + q] : T(0);
      }
    }
    const auto scaled = [&](int64_t first, int64_t count) {
      T* rows = sums_ + first * kTileQueries;
      scale_rows(rows, count * kTileQueries, head_.scale);
      body(first, count, rows);
    };
    if (summed_ > 0) {
      scaled(0, summed_);
    }
    scaled(last_, 1);
  }

  /// The logits of keys at the last position, one for each query, in base 2.
  const T* last_logits() const { return logits_ + last_ * kTileQueries; }

  using Integer = Fraction<T>;
  using Integers = Vec<Integer>;

  /// first_ of a query that counts still.
  static constexpr Integer kOpen = -1;

  /// The positions of a key for a vector of queries, and the logits of the entries around them. `place` is that of the
  /// lower entry in logits_ and sums_.
  struct Cell {
    Integers fraction, place;
    Vec<T> lower, upper;
    Vec<T> logit() const { return fmadd(from_fractions<T>(fraction), upper - lower, lower); }
  };

  Vec<T> logits_at(const Integers& place) const { return at::vec::gather<sizeof(T)>(logits_, place); }

  Cell load_cell(int64_t q) const {
    const Integers place = Integers::loadu(place_ + q);
    return {Integers::loadu(fraction_ + q), place, logits_at(place), logits_at(place + Integers(kTileQueries))};
  }

  Vec<T> in_band(const Tile& t, int64_t k, int64_t q) const {
    return at::vec::cast<T>(Integers(static_cast<Integer>(t.first_key + k)) >= Integers::loadu(first_ + q));
  }

  /// Takes a gate off a position. Returns the lanes that left for the cell below.
  static Vec<T> retreat(Cell& cell, const Vec<T>& gate) {
    cell.fraction = cell.fraction - to_fractions(gate);
    Integers moved = cell.fraction < Integers(0);
    if (cpu::any_lane(at::vec::cast<T>(moved))) {
      // Never outside the table, even with counts of other gates.
      moved = moved & (cell.place >= Integers(kTileQueries));
      cell.place = cell.place - (moved & Integers(kTileQueries));
      cell.fraction = cell.fraction + (moved & Integers(kWhole<T>));
    }
    return at::vec::cast<T>(moved);
  }

  /// table rows . queries in base 2.
  void product(int64_t first, int64_t count, const Tile& t, T* to) const {
    score_product<T>(head_.table.from(first), query_, count, t.lanes, width_, kNoDiagonal, to, nullptr);
  }

  /// Computes the logits up to an entry before the last.
  void make_ready(int64_t entry, const Tile& t) {
    constexpr int64_t kRows = 4 * kRegisterRows;
    while (ready_ <= entry) {
      const int64_t count = std::min(kRows, last_ - ready_);
      product(ready_, count, t, logits_ + ready_ * kTileQueries);
      ready_ += count;
    }
  }

  const CopeHead<T>& head_;
  const CopeGradient<T>* grad_;
  TileContext<T> context_;
  const Gates<T> gates_of_;
  bool counts_ = false, deferred_[kTileQueries] = {};
  /// Backward, where the sum is capped: the sum of each row's score gradients.
  T totals_[kTileQueries] = {};
  Integer begin_ = 0;
  int64_t width_, last_, ready_ = 0, summed_ = 0;
  T *query_ = nullptr, *logits_ = nullptr, *gates_ = nullptr;
  T *slopes_ = nullptr, *sums_ = nullptr, *prefix_ = nullptr, *lower_ = nullptr, *upper_ = nullptr;
  Integer *fraction_ = nullptr, *place_ = nullptr, *first_ = nullptr;
};

}  // namespace
}  // namespace posenc::attention_ops
