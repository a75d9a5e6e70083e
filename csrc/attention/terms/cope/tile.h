#pragma once

/// Contextual positions (CoPE, arXiv 2405.18719), for kernel files only: the position of a key is the sum of gates from
/// the query back to it, and its logit an interpolation between two entries of a table.
///
/// A position is kept as an integer and a fraction in [0, 1) of fixed point, so that sums over thousands of keys lose
/// nothing and floor costs nothing. Keys at the last position, most of a long row, share one logit: tiles of such keys
/// alone need none at all, but have it taken off the row's maximum instead. A query's other keys, its band, reach up to
/// the query. The forward pass walks it leftwards and leaves where it began; the backward pass starts there and takes
/// the gates away again.

#include "attention/tile/exp2.h"
#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

/// Gates from scores as kernels have them: times a factor scale * log2 e that T has rounded. What it and the bias lost
/// is the same for all keys, so that sums of gates would show it.
template <typename T>
class Gates {
 public:
  explicit Gates(const ContextualTable<T>& table) {
    const double factor = table.gate_scale * kLog2E, rounded = static_cast<double>(static_cast<T>(factor));
    const double bias = table.gate_bias * kLog2E;
    bias_ = static_cast<T>(bias);
    const double lost_factor = rounded == 0.0 ? 0.0 : factor / rounded - 1.0;
    const double lost = static_cast<double>(bias_) * lost_factor - (bias - static_cast<double>(bias_));
    lost_factor_ = static_cast<T>(lost_factor);
    lost_ = static_cast<T>(std::abs(lost) < 0.5 ? lost : 0.0);  // beyond, gates are 0 or 1, whatever was lost
  }

  Vec<T> operator()(const Vec<T>& score) const {
    const Vec<T> one(T(1)), bound(T(100));
    const Vec<T> x = at::vec::clamp_min(at::vec::clamp_max((score + Vec<T>(bias_)).neg(), bound), bound.neg());
    return one / (one + exp2(x, fmadd(x, Vec<T>(lost_factor_), Vec<T>(lost_))));
  }

 private:
  T bias_, lost_factor_, lost_;
};

template <typename T>
using Fractions = Vec<Fraction<T>>;

/// The fraction that is 1.
template <typename T>
constexpr Fraction<T> kWhole = Fraction<T>{1} << kFractionBits<T>;

/// Gates as fractions, rounded to nearest; NaN as 0.
template <typename T>
Fractions<T> to_fractions(const Vec<T>& gate) {
  const Vec<T> number = at::vec::clamp_min(Vec<T>(T(0)), gate);
  return at::vec::convert_to_int_of_same_size(fmadd(number, Vec<T>(static_cast<T>(kWhole<T>)), Vec<T>(T(0.5))));
}

template <typename T>
Vec<T> from_fractions(const Fractions<T>& fraction) {
  return at::vec::convert_to_fp_of_same_size<T>(fraction) * Vec<T>(T(1) / static_cast<T>(kWhole<T>));
}

template <typename T>
class Contextual {
 public:
  /// Elements of T that an object needs.
  static int64_t size(const Shape& s, bool backward) {
    const int64_t rows = backward ? s.width + 2 * s.contextual_entries + 7 + 2 * kTileKeys
                                  : s.width + s.contextual_entries + 4 + (s.gate_keys ? kTileKeys : 0);
    return s.contextual_entries == 0 ? 0 : rows * kTileQueries;
  }

  Contextual(const ContextualTable<T>& table, const Shape& s, bool backward, T* at)
      : table_(table), gates_of_(table), width_(s.width), last_(table.entries - 1) {
    const auto rows = [&](int64_t n) { return std::exchange(at, at + n * kTileQueries); };
    if (!used()) {
      return;
    }
    query_ = rows(s.width);
    logits_ = rows(table.entries + 1);
    fraction_ = reinterpret_cast<Integer*>(rows(1));
    place_ = reinterpret_cast<Integer*>(rows(1));
    first_ = reinterpret_cast<Integer*>(rows(1));
    if (backward) {
      sums_ = rows(table.entries);
      prefix_ = rows(1);
      lower_ = rows(1);
      upper_ = rows(1);
      slopes_ = rows(kTileKeys);
    }
    if (backward || s.gate_keys) {
      gates_ = rows(kTileKeys);
    }
  }

  bool used() const { return table_.rows.data != nullptr; }

  /// Where a product with gate keys goes before add() or retrace().
  T* gate_scores() { return gates_; }

  /// Takes over the queries of a tile, rows from pack_queries().
  void begin(const Tile& t, const T* queries) {
    pack_transposed(queries, t, width_, static_cast<T>(table_.scale * kLog2E), query_);
    T* last = logits_ + last_ * kTileQueries;
    product(last_, 1, t, last);
    std::copy(last, last + kTileQueries, last + kTileQueries);  // beside a row without a band
    ready_ = 0;
  }

  /// What a query's scores lack in tiles whose keys are all at its last position, in base 2.
  T lacking(int64_t q) const { return last_logits()[q]; }

  // Forward.

  /// Starts counting at the queries themselves; `keys` are those of the head.
  void start(const Tile& t, int64_t keys) {
    for (int64_t q = 0; q < t.lanes; ++q) {
      place_[q] = static_cast<Integer>(q);
      fraction_[q] = 0;
      first_[q] = static_cast<Integer>(last_ > 0 && q < t.queries ? kOpen : keys);
    }
  }

  /// Whether query q has reached the last position.
  bool is_done(int64_t q) const { return first_[q] != kOpen; }

  /// Whether a query counts still.
  bool counts(const Tile& t) const {
    return std::any_of(first_, first_ + t.queries, [](Integer first) { return first == kOpen; });
  }

  /// Counts the gates of a tile of keys and adds the logits to its scores. `gate_scores` may be the scores.
  void add(const Tile& t, const T* mask, const T* gate_scores, T* scores) {
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
    const ContextualState<T>& state = table_.state;
    if (state.first_key == nullptr) {
      return;
    }
    for (int64_t q = 0; q < t.queries; ++q) {
      const int64_t at = t.first_query + q;
      state.first_key[at] = static_cast<int32_t>(first_[q] == kOpen ? begin : first_[q]);
      state.whole[at] = static_cast<int32_t>(place_[q] / kTileQueries);
      state.fraction[at] = fraction_[q];
    }
  }

  // Backward.

  /// Takes over the state that the forward pass left, where keys from `begin` on were counted.
  void load(const Tile& t, int64_t begin, int64_t keys) {
    begin_ = static_cast<Integer>(begin);
    const ContextualState<T>& state = table_.state;
    Integer furthest = 0;
    for (int64_t q = 0; q < t.lanes; ++q) {
      const bool real = q < t.queries;
      const int64_t saved = real ? state.whole[t.first_query + q] : 0;
      const Integer whole = static_cast<Integer>(std::clamp<int64_t>(saved, 0, std::max<int64_t>(last_ - 1, 0)));
      first_[q] = static_cast<Integer>(real ? state.first_key[t.first_query + q] : keys);
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

  /// Where take() may put the gradients of a product with gate keys.
  T* gate_gradients() { return slopes_; }

  /// Ends the sums by entry, `total` that of all of a row's, and calls body(first, count, sums[entry - first][query])
  /// for those that are not 0.
  template <typename Body>
  void finish(const Tile& t, const T* total, const Body& body) {
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
      scale_rows(rows, count * kTileQueries, table_.scale);
      body(first, count, rows);
    };
    if (summed_ > 0) {
      scaled(0, summed_);
    }
    scaled(last_, 1);
  }

 private:
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
      moved = moved & (cell.place >= Integers(kTileQueries));  // with a state of other gates, never beside the table
      cell.place = cell.place - (moved & Integers(kTileQueries));
      cell.fraction = cell.fraction + (moved & Integers(kWhole<T>));
    }
    return at::vec::cast<T>(moved);
  }

  /// table rows . queries in base 2.
  void product(int64_t first, int64_t count, const Tile& t, T* to) const {
    score_product<T>(table_.rows.from(first), query_, count, t.lanes, width_, kNoDiagonal, to, nullptr);
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

  const ContextualTable<T>& table_;
  const Gates<T> gates_of_;
  Integer begin_ = 0;
  int64_t width_, last_, ready_ = 0, summed_ = 0;
  T *query_ = nullptr, *logits_ = nullptr, *gates_ = nullptr;
  T *slopes_ = nullptr, *sums_ = nullptr, *prefix_ = nullptr, *lower_ = nullptr, *upper_ = nullptr;
  Integer *fraction_ = nullptr, *place_ = nullptr, *first_ = nullptr;
};

}  // namespace
}  // namespace posenc::attention_ops
