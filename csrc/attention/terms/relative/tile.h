#pragma once

/// Tables by distance that are added to keys and to values (Shaw, arXiv 1803.02155), for kernel files only.
///
/// A product of all entries with a tile of queries is kept skewed, row entry + query for lane `query`: then what a key
/// needs, one entry for each query, is one row, and scores are looked up and summed by entry without gathers.

#include "attention/tile/tile.h"

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
    if (visible_->q_positions == nullptr && begin < end) {
      const int64_t first = t.first_query + visible_->offset;
      const int64_t furthest = visible_->causal ? std::min<int64_t>(end - 1 - first, 0) : end - 1 - first;
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
    if (visible_->q_positions != nullptr) {
      for_each_pair(t, [&](int64_t k, int64_t q, int64_t place) { tile[k * kTileQueries + q] += data_[place]; });
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
    if (visible_->q_positions != nullptr) {
      for_each_pair(t, [&](int64_t k, int64_t q, int64_t place) { data_[place] += tile[k * kTileQueries + q]; });
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
  /// Where distances are clipped an entry has further places beside its own, row entry + query of a lane: rows before
  /// it for the first entry, rows behind it for the last. Calls whole = body(whole, part, lanes) for vectors of an
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
  void for_each_pair(const Tile& t, const Body& body) const {
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.queries; ++q) {
        const int64_t entry = clipped_entry(distance_of(*visible_, t, k, q), radius_);
        body(k, q, (entry + q) * kTileQueries + q);
      }
    }
  }

  T* data_ = nullptr;
  int64_t radius_ = 0, first_ = 0, last_ = 0;
  const Visibility* visible_ = nullptr;
};

}  // namespace
}  // namespace posenc::attention_ops
