#pragma once

/// What decoding adds to the scores of a block of keys, for kernel files only. Unlike in a tile, the lanes of a vector
/// are keys: scores lie as [row][key], kDecodeKeys in a row.

#include "attention/terms/bias/tile.h"
#include "attention/terms/cope/tile.h"
#include "attention/terms/decay/tile.h"
#include "attention/terms/distance/tile.h"
#include "attention/tile/gemv.h"

#include <numeric>

namespace posenc::attention_ops {
namespace {

/// key - query for each key of a block; exact.
inline void fill_distances(const Visibility& v, const Tile& t, int64_t q, double* to) {
  if (v.q_positions != nullptr) {
    for (int64_t k = 0; k < t.keys; ++k) {
      to[k] = v.k_positions[t.first_key + k] - v.q_positions[q];
    }
    return;
  }
  const double first = static_cast<double>(t.first_key - v.offset - q);
  for (int k = 0; k < static_cast<int>(t.keys); ++k) {
    to[k] = first + k;
  }
}

/// Adds the biases that are functions of the distance to a row of scores.
template <typename T>
void add_distance_bias(const ScoreBias<T>& b, const double* distance, int64_t keys, T* scores) {
  if (b.slope != 0.0) {
    const double slope = b.slope * kLog2E;
    for (int64_t k = 0; k < keys; ++k) {
      scores[k] -= static_cast<T>(slope * std::abs(distance[k]));
    }
  }
  if (b.table != nullptr) {
    for (int64_t k = 0; k < keys; ++k) {
      scores[k] += static_cast<T>(b.table[clipped_entry(distance[k], b.radius)] * kLog2E);
    }
  }
}

/// Adds what the tokens behind each key, up to query q, add to a row of scores: the very number that a tile gets, as
/// the backward pass walks tiles.
template <typename T>
void add_decay(const ScoreBias<T>& bias, const Visibility& v, const Tile& t, int64_t q, T* scores) {
  const int64_t own = own_key(v, t, q);
  const double base = bias.decay_sums[own_key(v, t, 0)];
  const Parts<T> of_query = parts_of<T>((bias.decay_sums[own] - base) * kLog2E);
  for (int64_t k = 0; k < t.keys; ++k) {
    const Parts<T> of_key = parts_of<T>((base - bias.decay_sums[t.first_key + k]) * kLog2E);
    scores[k] += (of_query.most + of_key.most) + (of_query.rest + of_key.rest);
  }
  for (int64_t k = 0; bias.undefined_decays != nullptr && k < t.keys; ++k) {
    if (bias.undefined_decays[own] != bias.undefined_decays[t.first_key + k]) {
      scores[k] = std::numeric_limits<T>::quiet_NaN();
    }
  }
}

/// Adds the bias of query q to a row of scores. Entries that hide their keys are 0 in `seen` then. Returns whether
/// there are any.
template <typename T>
bool add_bias(const ConstRows& bias, const Tile& t, int64_t q, T* scores, T* seen) {
  const T bound = hiding_bound<T>(bias);
  bool hides = false;
  with_type(bias.data, bias.type, [&](const auto* data) {
    const auto* row = data + q * bias.row + t.first_key * bias.column;
    for (int64_t k = 0; k < t.keys; ++k) {
      const T x = converted<T>(row[k * bias.column]);
      scores[k] += x * static_cast<T>(kLog2E);
      hides = hides || x <= bound;
      seen[k] = x <= bound ? T(0) : seen[k];
    }
  });
  return hides;
}

/// to[row][entry] = query . table row of the entries first .. first + count - 1, for the rows of all heads.
template <typename T, typename TableOf>
void multiply_tables(const DecodeJob<T>& job, const T* query, const TableOf& table_of, int64_t first, int64_t count,
                     T* to, int64_t to_row) {
  const int64_t query_row = whole_steps<T>(job.shape.width);
  for (int64_t h = 0; h < job.heads; ++h) {
    const PackedRows<T>& table = table_of(job.scores[h]);
    const BlockRows<T> rows{table.from(first).data, table.row, count, /*ahead=*/0};
    score_rows(query + h * job.queries * query_row, query_row, job.queries, rows, job.shape.width,
               to + h * job.queries * to_row, to_row);
  }
}

/// Copies rows of queries for products with tables.
template <typename T, typename Element = T>
void arrange_rows(const PackedRows<T>& from, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    arrange<T, Element>(from.data + r * from.row, width, to + r * whole_steps<T>(width));
  }
}

/// Tables by distance that are added to keys and to values (Shaw, arXiv 1803.02155).
template <typename T>
class DecodeRelative {
 public:
  static int64_t size(const Shape& s, int64_t rows) {
    const int64_t query = whole_steps<T>(s.width), entries = room(s);
    return s.relative_entries == 0 ? 0 : rows * (query + (s.relative_values ? 2 : 1) * entries);
  }

  DecodeRelative(const DecodeJob<T>& job, T* at)
      : job_(job), radius_(job.scores->relative.radius), rows_(job.heads * job.queries), row_(room(job.shape)) {
    query_ = at;
    logits_ = query_ + rows_ * whole_steps<T>(job.shape.width);
    bins_ = logits_ + rows_ * row_;
  }

  bool used() const { return job_.shape.relative_entries > 0; }
  bool has_values() const { return job_.shape.relative_values; }

  /// Keys begin .. end - 1 follow.
  void begin(int64_t begin, int64_t end) {
    Tile t{};
    t.queries = job_.queries;
    t.first_key = begin;
    t.keys = end - begin;
    const Range<double> distances = range_of_distances(job_.visible, t);
    first_ = clipped_entry(distances.smallest, radius_);
    count_ = clipped_entry(distances.largest, radius_) + 1 - first_;
    arrange_rows(job_.query, rows_, job_.shape.width, query_);
    multiply_tables(
        job_, query_, [](const Scores<T>& s) -> const PackedRows<T>& { return s.relative.key; }, first_, count_,
        logits_, row_);
    if (has_values()) {
      std::fill(bins_, bins_ + rows_ * row_, T(0));
    }
  }

  /// Adds what a row's query makes of its entries to a row of scores.
  void add(int64_t r, const double* distance, int64_t keys, T* scores) const {
    const T* logits = logits_ + r * row_;
    if (is_one_entry(distance, keys)) {
      const T logit = logits[entry(distance[0])];
      for (int64_t k = 0; k < keys; ++k) {
        scores[k] += logit;
      }
      return;
    }
    for (int64_t k = 0; k < keys; ++k) {
      scores[k] += logits[entry(distance[k])];
    }
  }

  /// Adds a row of weights to its sums by entry; earlier ones are multiplied by `factor` first.
  void weigh(int64_t r, const double* distance, int64_t keys, const T* weights, T factor) {
    T* bins = bins_ + r * row_;
    if (factor != T(1)) {
      std::transform(bins, bins + count_, bins, [factor](T x) { return x * factor; });
    }
    if (is_one_entry(distance, keys)) {
      bins[entry(distance[0])] += std::accumulate(weights, weights + keys, T(0));
      return;
    }
    for (int64_t k = 0; k < keys; ++k) {
      bins[entry(distance[k])] += weights[k];
    }
  }

  /// Adds the value table, weighted by the sums, to the job's.
  void finish() const {
    for (int64_t h = 0; h < job_.heads; ++h) {
      const PackedRows<T>& table = job_.scores[h].relative.value;
      const T* bins = bins_ + h * job_.queries * row_;
      T* sums = job_.sums + h * job_.queries * job_.sums_row;
      for_each_column_tile<T>(padded<T>(job_.shape.value_width), [&]<int kVectors>(int64_t d) {
        for_each_row_tile(job_.queries, [&]<int kRows>(int64_t q) {
          register_tile<T, kRows, kVectors, false, Into::kAdd>(bins + q * row_, row_,
                                                               table.data + first_ * table.row + d, table.row, count_,
                                                               sums + q * job_.sums_row + d, job_.sums_row, nullptr);
        });
      });
    }
  }

 private:
  static int64_t room(const Shape& s) { return padded<T>(s.relative_entries); }

  int64_t entry(double distance) const { return clipped_entry(distance, radius_) - first_; }

  /// Most blocks lie beyond the radius, where positions count up by one.
  bool is_one_entry(const double* distance, int64_t keys) const {
    return job_.visible.q_positions == nullptr && entry(distance[0]) == entry(distance[keys - 1]);
  }

  const DecodeJob<T>& job_;
  int64_t radius_, rows_, row_, first_ = 0, count_ = 0;
  T *query_, *logits_, *bins_;
};

/// Positions that gates count (CoPE, arXiv 2405.18719): see policies/contextual.h.
template <typename T>
class DecodeContextual {
 public:
  static int64_t size(const Shape& s, int64_t rows) {
    return s.contextual_entries == 0 ? 0 : rows * (whole_steps<T>(s.width) + room(s) + Vec<T>::size() + 3);
  }

  DecodeContextual(const DecodeJob<T>& job, T* at)
      : job_(job), last_(job.shape.contextual_entries - 1), rows_(job.heads * job.queries), row_(room(job.shape)) {
    query_ = at;
    logits_ = query_ + rows_ * whole_steps<T>(job.shape.width);
    last_logits_ = logits_ + rows_ * row_;
    lacking_ = last_logits_ + rows_ * Vec<T>::size();
    whole_ = reinterpret_cast<Fraction<T>*>(lacking_ + rows_);
    fraction_ = whole_ + rows_;
  }

  bool used() const { return job_.shape.contextual_entries > 0; }

  /// Starts counting at the queries.
  void begin() {
    arrange_rows(job_.position_query, rows_, job_.shape.width, query_);
    product(last_, 1, last_logits_, Vec<T>::size());
    std::fill(whole_, whole_ + rows_, static_cast<Fraction<T>>(job_.saturated ? last_ : 0));
    std::fill(fraction_, fraction_ + rows_, Fraction<T>{0});
    std::fill(lacking_, lacking_ + rows_, T(0));
  }

  /// What the scores of a row lack in base 2: in blocks whose keys are all at the last position, its logit.
  T lacking(int64_t r) const { return lacking_[r]; }

  /// To be called before each block: what they lack from now on and did not lack before.
  T newly_lacking(int64_t r) {
    const T now = whole_[r] == last_ ? last_logit(r) : T(0);
    return now - std::exchange(lacking_[r], now);
  }

  /// Whether all further keys are at the last entry.
  bool saturated() const {
    return std::all_of(whole_, whole_ + rows_, [&](int64_t whole) { return whole == last_; });
  }

  /// Computes the logits of the entries that a block of keys can reach.
  void make_ready(int64_t keys) {
    const int64_t furthest = *std::max_element(whole_, whole_ + rows_) + keys + 1;
    while (ready_ < std::min(furthest + 1, last_)) {
      const int64_t count = std::min(kDecodeKeys, last_ - ready_);
      product(ready_, count, logits_ + ready_, row_);
      ready_ += count;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      logits_[r * row_ + last_] = last_logit(r);
    }
  }

  /// Counts the gates of a row, which follow from gate_scores (possibly the scores), and adds the logits to its scores.
  /// seen: null, or 0 for keys that are neither attended to nor counted.
  void add(int64_t r, int64_t keys, const T* seen, const T* gate_scores, T* scores) {
    if (whole_[r] == last_) {
      return;
    }
    alignas(64) T gates[kDecodeKeys];
    alignas(64) Fraction<T> fractions[kDecodeKeys];
    const Gates<T> gates_of(job_.scores[r / job_.queries].contextual);
    const Vec<T> zero(T(0));
    for (int64_t k = 0; k < keys; k += Vec<T>::size()) {
      Vec<T> gate = gates_of(Vec<T>::loadu(gate_scores + k));
      gate = seen == nullptr ? gate : Vec<T>::blendv(zero, gate, Vec<T>::loadu(seen + k) != zero);
      gate.store(gates + k);
      to_fractions(gate).store(fractions + k);
    }
    count(r, keys, gates, fractions, scores);
  }

 private:
  /// Products write whole vectors of entries.
  static int64_t room(const Shape& s) { return s.contextual_entries + Vec<T>::size(); }

  T last_logit(int64_t r) const { return last_logits_[r * Vec<T>::size()]; }

  void count(int64_t r, int64_t keys, const T* gates, const Fraction<T>* fractions, T* scores) {
    constexpr T kUnit = T(1) / static_cast<T>(kWhole<T>);
    const T* logits = logits_ + r * row_;
    Fraction<T> whole = whole_[r], fraction = fraction_[r];
    for (int64_t k = keys - 1; k >= 0; --k) {
      if (whole < last_) {
        fraction += fractions[k];
        scores[k] += T(0) * gates[k];  // a gate of NaN makes its row so
      }
      if (fraction >= kWhole<T>) {
        fraction = ++whole < last_ ? fraction - kWhole<T> : 0;
      }
      const T part = static_cast<T>(fraction) * kUnit;
      scores[k] += whole < last_ ? logits[whole] + part * (logits[whole + 1] - logits[whole]) : logits[last_];
    }
    whole_[r] = whole;
    fraction_[r] = fraction;
  }

  void product(int64_t first, int64_t count, T* to, int64_t to_row) const {
    multiply_tables(
        job_, query_, [](const Scores<T>& s) -> const PackedRows<T>& { return s.contextual.rows; }, first, count, to,
        to_row);
  }

  const DecodeJob<T>& job_;
  int64_t last_, rows_, row_, ready_ = 0;
  T *query_, *logits_, *last_logits_, *lacking_;
  Fraction<T>*whole_, *fraction_;
};

}  // namespace
}  // namespace posenc::attention_ops
