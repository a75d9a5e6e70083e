#pragma once

/// Tables by distance that are added to keys and to values (Shaw, arXiv 1803.02155), for kernel files only.
///
/// A product of all entries with a tile of queries is kept skewed, row entry + query for lane `query`: then what a key
/// needs, one entry for each query, is one row, and scores are looked up and summed by entry without gathers.

#include "attention/terms/heads.h"
#include "attention/tile/diagonals.h"

#include <numeric>

namespace posenc::attention_ops {
namespace {

/// Entry radius + clip(key - query) for each query of a tile, as numbers that a job looks up or sums.
template <typename T>
class SkewedRows {
 public:
  static int64_t size(int64_t entries) { return (entries + kTileQueries - 1) * kTileQueries; }

  SkewedRows() = default;
  SkewedRows(T* data, int64_t radius, const Visibility& visible) : data_(data), radius_(radius), visible_(&visible) {}

  /// Entries that some query of the tile may meet among keys begin .. end - 1.
  void reach(const Tile& t, int64_t begin, int64_t end) {
    first_ = 0;
    last_ = 2 * radius_;
    if (visible_->by_index() && begin < end) {
      const int64_t first = t.first_query + visible_->offset;
      const bool sees_later = !visible_->causal || visible_->k_blocks != nullptr;
      const int64_t furthest = sees_later ? end - 1 - first : std::min<int64_t>(end - 1 - first, 0);
      first_ = clipped_entry(begin - (first + t.queries - 1), radius_);
      last_ = clipped_entry(furthest, radius_);
    }
  }

  /// table . query for every entry in reach; query packed as for score_product(), `scratch` a tile.
  void fill(const PackedRows<T>& table, const T* query, const Tile& t, int64_t width, T* scratch) {
    for (int64_t first = first_; first <= last_; first += kTileKeys) {
      const int64_t count = std::min(kTileKeys, last_ + 1 - first);
      score_product<T>(table.from(first), query, count, t.lanes, width, kNoDiagonal, scratch, nullptr);
      for (int64_t e = 0; e < count; ++e) {
        T* to = data_ + (first + e) * kTileQueries;
        for (int64_t q = 0; q < t.lanes; ++q) {
          to[q * (kTileQueries + 1)] = scratch[e * kTileQueries + q];
        }
      }
    }
    for_each_clipped(t, [](const Vec<T>& whole, T* part, const Vec<T>& lanes) {
      Vec<T>::blendv(Vec<T>::loadu(part), whole, lanes).store(part);
      return whole;
    });
  }

  /// Adds its entry to each number of a tile.
  void add_to(const Tile& t, T* tile) const {
    if (!visible_->by_index()) {
      for_each_place(t, [&](int64_t k, int64_t q, int64_t place) { tile[k * kTileQueries + q] += data_[place]; });
      return;
    }
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for_each_row(t, keys.some, [&](int64_t begin, int64_t end, const T* row) {
        const Vec<T> x = Vec<T>::loadu(row + q);
        for (T* to = tile + begin * kTileQueries + q; to < tile + end * kTileQueries; to += kTileQueries) {
          (Vec<T>::loadu(to) + x).store(to);
        }
      });
    });
  }

  void clear() { std::fill(data_ + first_ * kTileQueries, data_ + (last_ + kTileQueries) * kTileQueries, T(0)); }

  /// Adds each number of a tile, 0 where hidden, to its entry.
  void add(const Tile& t, const T* tile) {
    if (!visible_->by_index()) {
      for_each_place(t, [&](int64_t k, int64_t q, int64_t place) { data_[place] += tile[k * kTileQueries + q]; });
      return;
    }
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for_each_row(t, keys.some, [&](int64_t begin, int64_t end, T* row) {
        Vec<T> sum = Vec<T>::loadu(tile + begin * kTileQueries + q);
        for (int64_t k = begin + 1; k < end; ++k) {
          sum = sum + Vec<T>::loadu(tile + k * kTileQueries + q);
        }
        (Vec<T>::loadu(row + q) + sum).store(row + q);
      });
    });
  }

  void rescale(const Tile& t, const T* factor) {
    for (int64_t row = first_; row < last_ + kTileQueries; ++row) {
      for (int64_t q = 0; q < t.lanes; q += Vec<T>::size()) {
        T* to = data_ + row * kTileQueries + q;
        (Vec<T>::loadu(to) * Vec<T>::loadu(factor + q)).store(to);
      }
    }
  }

  /// Calls body(first, count, sums) for tiles sums[entry - first][query] of all that was added.
  template <typename Body>
  void for_each_sum(const Tile& t, T* scratch, const Body& body) {
    for_each_clipped(t, [](const Vec<T>& whole, const T* part, const Vec<T>& lanes) {
      return whole + (Vec<T>::loadu(part) & lanes);
    });
    for (int64_t first = first_; first <= last_; first += kTileKeys) {
      const int64_t count = std::min(kTileKeys, last_ + 1 - first);
      for (int64_t e = 0; e < count; ++e) {
        const T* from = data_ + (first + e) * kTileQueries;
        for (int64_t q = 0; q < t.lanes; ++q) {
          scratch[e * kTileQueries + q] = from[q * (kTileQueries + 1)];
        }
      }
      body(first, count, scratch);
    }
  }

 private:
  /// Where distances are clipped, an entry has more places than its own, row entry + query of a lane: the rows before
  /// that for the first entry, the rows after it for the last. Calls whole = body(whole, part, lanes) for vectors of an
  /// entry and of one such row, of which `lanes` belong to the entry.
  template <typename Body>
  void for_each_clipped(const Tile& t, const Body& body) {
    const auto fold = [&](int64_t of, bool before) {
      T row[kTileQueries];
      T* own = data_ + of * kTileQueries;
      for (int64_t q = 0; q < t.lanes; ++q) {
        row[q] = own[q * (kTileQueries + 1)];
      }
      for (int64_t q = 0; q < t.lanes; q += Vec<T>::size()) {
        Vec<T> whole = Vec<T>::loadu(row + q);
        const Vec<T> places = Vec<T>::arange(static_cast<T>(of + q), T(1));
        for (int64_t r = of; r < of + kTileQueries; ++r) {
          const Vec<T> here(static_cast<T>(r));
          whole = body(whole, data_ + r * kTileQueries + q, before ? here < places : here > places);
        }
        whole.store(row + q);
      }
      for (int64_t q = 0; q < t.lanes; ++q) {
        own[q * (kTileQueries + 1)] = row[q];
      }
    };
    if (first_ == 0) {
      fold(0, /*before=*/true);
    }
    if (last_ == 2 * radius_) {
      fold(last_, /*before=*/false);
    }
  }

  /// Calls body(begin, end, row) for each row and the keys 0 .. keys - 1 that it serves, where positions count up by
  /// one.
  template <typename Body>
  void for_each_row(const Tile& t, int64_t keys, const Body& body) const {
    const int64_t row = t.first_key - t.first_query - visible_->offset + radius_;  // of key 0, unclipped
    const int64_t last = last_ + kTileQueries - 1;
    const int64_t own = std::clamp<int64_t>(first_ - row + 1, 0, keys),
                  shared = std::clamp<int64_t>(last - row, own, keys);
    if (own > 0) {
      body(int64_t{0}, own, data_ + first_ * kTileQueries);
    }
    for (int64_t k = own; k < shared; ++k) {
      body(k, k + 1, data_ + (row + k) * kTileQueries);
    }
    if (shared < keys) {
      body(shared, keys, data_ + last * kTileQueries);
    }
  }

  template <typename Body>
  void for_each_place(const Tile& t, const Body& body) const {
    for_each_pair(t, [&](int64_t k, int64_t q) {
      const int64_t entry = clipped_entry(distance_of(*visible_, t, k, q), radius_);
      body(k, q, (entry + q) * kTileQueries + q);
    });
  }

  T* data_ = nullptr;
  int64_t radius_ = 0, first_ = 0, last_ = 0;
  const Visibility* visible_ = nullptr;
};

template <typename T>
class RelativeTile : public TileTerm<T> {
 public:
  static int64_t size(const RelativeHead<T>& head, const TileContext<T>& context) {
    const int64_t rows = (head.has_values() ? 2 : 1) * (context.backward ? 2 : 1);
    const int64_t own = head.width + (context.backward ? 2 : 1) * padded<T>(head.width);
    return rows * SkewedRows<T>::size(head.entries()) + (head.has_query ? own * kTileQueries : 0);
  }

  RelativeTile(const RelativeHead<T>& head, const RelativeGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), context_(context) {
    const auto rows = [&] {
      return SkewedRows<T>(std::exchange(at, at + SkewedRows<T>::size(head.entries())), head.radius, *context.visible);
    };
    key_ = rows();
    if (context.backward) {
      grad_key_ = rows();
    }
    if (head.has_values()) {
      value_ = rows();
      if (context.backward) {
        grad_value_ = rows();
      }
    }
    if (head.has_query) {
      const auto lanes = [&](int64_t n) { return std::exchange(at, at + n * kTileQueries); };
      query_ = lanes(head.width);
      query_rows_ = lanes(padded<T>(head.width));
      grad_query_ = context.backward ? lanes(padded<T>(head.width)) : nullptr;
    }
  }

  void begin(const TileRows<T>& rows) {
    const Tile& t = rows.tile;
    key_.reach(t, rows.begin, rows.end);
    if (head_.has_query) {
      pack_queries(head_.query, t, head_.width, query_rows_);
      pack_transposed(query_rows_, t, head_.width, static_cast<T>(context_.scale * kLog2E), query_);
    }
    key_.fill(head_.key, head_.has_query ? query_ : rows.operands.query, t, head_.width, rows.scratch);
    if (context_.backward) {
      grad_key_.reach(t, rows.begin, rows.end);
      grad_key_.clear();
    }
    if (!head_.has_values()) {
      return;
    }
    value_.reach(t, rows.begin, rows.end);
    if (context_.backward) {
      grad_value_.reach(t, rows.begin, rows.end);
      value_.fill(head_.value, rows.grad_out, t, context_.value_width, rows.scratch);
      grad_value_.clear();
    } else {
      value_.clear();
    }
  }

  bool changes_scores() const { return true; }
  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) { key_.add_to(t, scores); }

  void accumulate_weights(const Tile& t, const T* weights, const T* factor) {
    if (head_.has_values()) {
      if (std::any_of(factor, factor + t.queries, [](T x) { return x != T(1); })) {
        value_.rescale(t, factor);
      }
      value_.add(t, weights);
    }
  }

  void finish(const ForwardSums<T>& sums) {
    if (head_.has_values()) {
      value_.for_each_sum(sums.tile, sums.scratch, [&](int64_t first, int64_t count, const T* weights) {
        sum_over_keys<T>(weights, head_.value.from(first), count, sums.tile.queries, sums.row, kNoDiagonal, nullptr,
                         sums.values);
      });
    }
  }

  void add_weight_gradients(const Tile& t, T* grad) const {
    if (head_.has_values()) {
      value_.add_to(t, grad);
    }
  }

  void accumulate_weights(const Tile& t, const T* weights) {
    if (grad_->value.data != nullptr) {
      grad_value_.add(t, weights);
    }
  }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) { grad_key_.add(t, grad); }

  bool has_sums() const { return true; }

  void finish(const BackwardSums<T>& sums) {
    const Tile& t = sums.tile;
    const int64_t row = padded<T>(head_.width);
    const T* queries = sums.query_rows;
    T* grad_query = sums.grad_query;
    if (head_.has_query) {
      clear_blind_rows(t, sums.blind, row, query_rows_);
      queries = query_rows_;
      grad_query = grad_->query.data != nullptr ? grad_query_ : nullptr;
      std::fill(grad_query_, grad_query_ + t.queries * row, T(0));
    }
    grad_key_.for_each_sum(t, sums.scratch, [&](int64_t first, int64_t count, T* of_entries) {
      scale_rows(of_entries, count * kTileQueries, context_.scale);
      add_to_table_and_queries(head_.key, first, count, t, of_entries, queries, row, grad_->key, grad_query);
    });
    if (head_.has_query && grad_query != nullptr) {
      unpack_scaled(grad_query, t.queries, head_.width, 1.0, grad_->query);
    }
    if (grad_->value.data != nullptr) {
      grad_value_.for_each_sum(t, sums.scratch, [&](int64_t first, int64_t count, T* of_entries) {
        add_to_table_and_queries<T>(head_.value, first, count, t, of_entries, sums.grad_out_rows,
                                    padded<T>(context_.value_width), grad_->value, nullptr);
      });
    }
  }

 private:
  const RelativeHead<T>& head_;
  const RelativeGradient<T>* grad_;
  TileContext<T> context_;
  SkewedRows<T> key_, grad_key_, value_, grad_value_;
  /// Of queries of its own: as score_product() takes them, in rows, and the sums of their gradients.
  T *query_ = nullptr, *query_rows_ = nullptr, *grad_query_ = nullptr;
};

template <typename T>
class RelativeDecode : public DecodeTerm<T> {
 public:
  static constexpr bool kNeedsDistance = true;

  static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
    const auto& head = std::get<RelativeHead<T>>(heads);
    return head.used() ? context.rows() * (whole_steps<T>(head.width) + (head.has_values() ? 2 : 1) * room(head)) : 0;
  }

  RelativeDecode(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* at)
      : heads_(heads),
        rows_(head(0).has_query ? std::get<RelativeRows<T>>(rows).query : context.query),
        context_(context),
        width_(head(0).width),
        radius_(head(0).radius),
        row_(room(head(0))) {
    query_ = at;
    logits_ = query_ + context.rows() * whole_steps<T>(width_);
    bins_ = logits_ + context.rows() * row_;
  }

  bool used() const { return head(0).used(); }

  template <typename Product>
  void begin(int64_t begin, int64_t end, const Product& /*product*/) {
    if (head(0).has_values()) {
      std::fill(bins_, bins_ + context_.rows() * row_, T(0));
    }
    if (begin == end) {
      return;
    }
    Tile t{};
    t.queries = context_.queries;
    t.first_key = begin;
    t.keys = end - begin;
    const Range<int64_t> distances = range_of_distances(*context_.visible, t);
    first_ = clipped_entry(distances.smallest, radius_);
    count_ = clipped_entry(distances.largest, radius_) + 1 - first_;
    arrange_rows(rows_, context_.rows(), width_, query_);
    for (int64_t h = 0; h < context_.heads; ++h) {
      multiply_table(head(h).key, first_, count_, query_ + h * context_.queries * whole_steps<T>(width_),
                     context_.queries, width_, logits_ + h * context_.queries * row_, row_);
    }
  }

  void add(DecodeRow<T>& row) {
    const T* logits = logits_ + row.row * row_;
    const int64_t keys = row.block.keys;
    if (is_one_entry(row)) {
      const T logit = logits[entry(row.distance[0])];
      for (int64_t k = 0; k < keys; ++k) {
        row.scores[k] += logit;
      }
      return;
    }
    for (int64_t k = 0; k < keys; ++k) {
      row.scores[k] += logits[entry(row.distance[k])];
    }
  }

  void accumulate_weights(const DecodeRow<T>& row, T factor) {
    if (!head(0).has_values()) {
      return;
    }
    T* bins = bins_ + row.row * row_;
    const int64_t keys = row.block.keys;
    if (factor != T(1)) {
      std::transform(bins, bins + count_, bins, [factor](T x) { return x * factor; });
    }
    if (is_one_entry(row)) {
      bins[entry(row.distance[0])] += std::accumulate(row.scores, row.scores + keys, T(0));
      return;
    }
    for (int64_t k = 0; k < keys; ++k) {
      bins[entry(row.distance[k])] += row.scores[k];
    }
  }

  void finish(T* sums, int64_t sums_row) const {
    for (int64_t h = 0; h < context_.heads && head(0).has_values(); ++h) {
      const PackedRows<T>& table = head(h).value;
      const T* bins = bins_ + h * context_.queries * row_;
      T* to = sums + h * context_.queries * sums_row;
      for_each_column_tile<T>(padded<T>(context_.value_width), [&]<int kVectors>(int64_t d) {
        for_each_row_tile(context_.queries, [&]<int kRows>(int64_t q) {
          register_tile<T, kRows, kVectors, false, Into::kAdd>(bins + q * row_, row_,
                                                               table.data + first_ * table.row + d, table.row, count_,
                                                               to + q * sums_row + d, sums_row, nullptr);
        });
      });
    }
  }

 private:
  static int64_t room(const RelativeHead<T>& head) { return padded<T>(head.entries()); }

  const RelativeHead<T>& head(int64_t h) const { return std::get<RelativeHead<T>>(heads_[h]); }
  int64_t entry(int64_t distance) const { return clipped_entry(distance, radius_) - first_; }

  /// Most blocks lie beyond the radius, where positions count up by one.
  bool is_one_entry(const DecodeRow<T>& row) const {
    return context_.visible->by_index() && entry(row.distance[0]) == entry(row.distance[row.block.keys - 1]);
  }

  const Heads<T>* heads_;
  PackedRows<T> rows_;
  DecodeContext<T> context_;
  int64_t width_, radius_, row_, first_ = 0, count_ = 0;
  T *query_, *logits_, *bins_;
};

}  // namespace
}  // namespace posenc::attention_ops
