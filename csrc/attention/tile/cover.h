#pragma once

/// Tiles, and what their queries see of their keys, for kernel files only.

#include "attention/tile/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace posenc::attention_ops {
namespace {

/// How a tile of scores is seen.
enum class Cover {
  kHidden,
  kAll,
  /// Causal by index alone: query q sees keys up to q - diagonal.
  kDiagonal,
  /// As a mask says.
  kSome,
};

/// Queries first_query .. of a head against keys first_key ..; both counts at most those of a tile.
struct Tile {
  int64_t first_query, queries;
  /// queries rounded up to whole vectors. The lanes between are computed and never used.
  int64_t lanes;
  int64_t first_key, keys;
  Cover cover;
  /// first_key less the position of first_query; kNoDiagonal unless cover is kDiagonal.
  int64_t diagonal;
};

template <typename Number>
struct Range {
  Number smallest, largest;
};

/// NaN where one is.
template <typename Number>
Range<Number> range_of(const Number* x, int64_t n) {
  Range<Number> r{x[0], x[0]};
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] != x[i]) {
      return {x[i], x[i]};
    }
    r.smallest = x[i] < r.smallest ? x[i] : r.smallest;
    r.largest = x[i] > r.largest ? x[i] : r.largest;
  }
  return r;
}

/// Larger than any distance that matters, and small enough to be added to.
constexpr int64_t kFar = int64_t{1} << 62;

/// a - b, at most kFar in magnitude.
inline int64_t difference(int64_t a, int64_t b) {
  int64_t d;
  if (__builtin_sub_overflow(a, b, &d)) {
    return a < b ? -kFar : kFar;
  }
  return std::clamp(d, -kFar, kFar);
}
/// a - b, where equal times are, infinite ones too.
inline double difference(double a, double b) { return a == b ? 0.0 : a - b; }

/// Calls body(queries, keys) with the positions of a call that gives them one by one.
template <typename Body>
auto with_positions(const Visibility& v, const Body& body) {
  return v.q_positions != nullptr ? body(v.q_positions, v.k_positions) : body(v.q_times, v.k_times);
}

/// Keys that some query of a range may see: all where positions are given one by one.
inline void visible_keys(const Visibility& v, int64_t first_query, int64_t queries, int64_t& begin, int64_t& end) {
  begin = 0;
  end = v.keys;
  if (!v.by_index()) {
    return;
  }
  const int64_t first = first_query + v.offset, last = first + queries - 1;
  if (v.causal) {
    end = std::min(end, last + 1);
  }
  if (v.bounded_after) {
    end = std::min(end, last + v.after);
  }
  if (v.bounded_before) {
    begin = std::max(begin, first - v.before + 1);
  }
  end = std::max(end, int64_t{0});
  begin = std::min(begin, end);
  if (v.k_blocks != nullptr) {
    const auto of_queries = range_of(v.q_blocks + first_query, queries);
    for (int64_t k = 0; k < v.keys; ++k) {
      if (v.k_blocks[k] >= std::max(of_queries.smallest, int64_t{0}) && v.k_blocks[k] <= of_queries.largest) {
        begin = begin == end ? k : std::min(begin, k);
        end = std::max(end, k + 1);
      }
    }
  }
}

template <typename Number>
Number before_of(const Visibility& v) {
  return std::is_same_v<Number, double> ? static_cast<Number>(v.before_time) : static_cast<Number>(v.before);
}
template <typename Number>
Number after_of(const Visibility& v) {
  return std::is_same_v<Number, double> ? static_cast<Number>(v.after_time) : static_cast<Number>(v.after);
}

/// radius + clip(distance, -radius, radius): the entry of a table of 2 * radius + 1.
inline int64_t clipped_entry(int64_t distance, int64_t radius) {
  return std::clamp(distance, -radius, radius) + radius;
}

/// key - query, of all pairs of a tile; positions are integers.
inline Range<int64_t> range_of_distances(const Visibility& v, const Tile& t) {
  if (v.q_positions != nullptr) {
    const auto q = range_of(v.q_positions + t.first_query, t.queries);
    const auto k = range_of(v.k_positions + t.first_key, t.keys);
    return {difference(k.smallest, q.largest), difference(k.largest, q.smallest)};
  }
  const int64_t first = t.first_key - t.first_query - v.offset;
  return {first - (t.queries - 1), first + t.keys - 1};
}

/// How the positions of a range of keys and of one of queries stand to each other: all seen, none, or some. What cannot
/// be compared, NaN, is left to sees().
template <typename Number>
Cover cover_of_positions(const Visibility& v, Range<Number> q, Range<Number> k) {
  bool all = true;
  if (v.causal) {
    if (k.smallest > q.largest) {
      return Cover::kHidden;
    }
    all = k.largest <= q.smallest;
  }
  if (v.bounded_before) {
    if (difference(q.smallest, k.largest) >= before_of<Number>(v)) {
      return Cover::kHidden;
    }
    all = all && difference(q.largest, k.smallest) < before_of<Number>(v);
  }
  if (v.bounded_after) {
    if (difference(k.smallest, q.largest) >= after_of<Number>(v)) {
      return Cover::kHidden;
    }
    all = all && difference(k.largest, q.smallest) < after_of<Number>(v);
  }
  return all ? Cover::kAll : Cover::kSome;
}

/// The same with the blocks of a tile's tokens, which add to what positions let a query see.
inline Cover cover_of_blocks(const Visibility& v, const Tile& t, Cover positions) {
  const auto q = range_of(v.q_blocks + t.first_query, t.queries), k = range_of(v.k_blocks + t.first_key, t.keys);
  if (positions == Cover::kAll || k.largest < 0 || q.smallest > k.largest || q.largest < k.smallest) {
    return positions;
  }
  const bool one = q.smallest == q.largest && k.smallest == k.largest;
  return one && q.smallest == k.smallest ? Cover::kAll : Cover::kSome;
}

/// Whether a window hides some key of a tile from some query, where positions count up by one.
inline bool windows_cut(const Visibility& v, const Tile& t) {
  const int64_t first = t.first_query + v.offset, last = first + t.queries - 1;
  return (v.bounded_before && last - t.first_key >= v.before) ||
         (v.bounded_after && t.first_key + t.keys - 1 - first >= v.after);
}

inline void find_cover(const Visibility& v, Tile& t) {
  t.diagonal = kNoDiagonal;
  t.cover = Cover::kHidden;
  Cover positions;
  if (v.by_index()) {
    const int64_t first = t.first_query + v.offset;
    positions = cover_of_positions<int64_t>(v, {first, first + t.queries - 1}, {t.first_key, t.first_key + t.keys - 1});
  } else {
    positions = with_positions(v, [&](const auto* q, const auto* k) {
      return cover_of_positions(v, range_of(q + t.first_query, t.queries), range_of(k + t.first_key, t.keys));
    });
  }
  const bool by_positions = v.k_blocks == nullptr || positions == Cover::kAll;
  if (v.k_blocks != nullptr) {
    positions = cover_of_blocks(v, t, positions);
  }
  if (positions == Cover::kHidden) {
    return;
  }
  bool others_all = true;
  if (v.key_mask != nullptr) {
    int64_t attended = 0;
    for (int64_t k = 0; k < t.keys; ++k) {
      attended += v.key_mask[t.first_key + k];
    }
    if (attended == 0) {
      return;
    }
    others_all = attended == t.keys;
  }
  if (v.k_segments != nullptr) {
    const auto q = range_of(v.q_segments + t.first_query, t.queries);
    const auto k = range_of(v.k_segments + t.first_key, t.keys);
    if (q.smallest > k.largest || q.largest < k.smallest) {
      return;
    }
    others_all = others_all && q.smallest == q.largest && k.smallest == k.largest;
  }
  if (others_all && positions == Cover::kSome && by_positions && v.by_index() && !windows_cut(v, t)) {
    t.cover = Cover::kDiagonal;
    t.diagonal = t.first_key - t.first_query - v.offset;
  } else {
    t.cover = others_all && positions == Cover::kAll ? Cover::kAll : Cover::kSome;
  }
}

/// Whether a query at position q may see a key at position k.
template <typename Number>
bool sees(const Visibility& v, Number q, Number k) {
  return (!v.causal || k <= q) && (!v.bounded_before || difference(q, k) < before_of<Number>(v)) &&
         (!v.bounded_after || difference(k, q) < after_of<Number>(v));
}

/// Whether query and key are tokens of one block.
inline bool in_one_block(const Visibility& v, int64_t query, int64_t key) {
  return v.k_blocks[key] >= 0 && v.k_blocks[key] == v.q_blocks[query];
}

}  // namespace
}  // namespace posenc::attention_ops
