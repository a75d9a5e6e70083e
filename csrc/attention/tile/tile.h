#pragma once

/// A tile of scores and what hides them, for kernel files only. Scores lie transposed, [key][query], so that the lanes
/// of a vector are queries and everything along a row of keys (maximum, sum, distance) is done without shuffles.

#include "attention/dropout.h"
#include "attention/tile/rows.h"

#include <cmath>
#include <limits>

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

/// mask[key][query]: 1 where seen, else 0.
template <typename T>
void fill_mask(const Visibility& v, const Tile& t, T* mask) {
  for (int64_t k = 0; k < t.keys; ++k) {
    T* row = mask + k * kTileQueries;
    const int64_t key = t.first_key + k;
    if (v.key_mask != nullptr && !v.key_mask[key]) {
      std::fill(row, row + t.lanes, T(0));
      continue;
    }
    if (v.by_index()) {
      // Queries first .. last - 1 see the key.
      const int64_t here = key - t.first_query - v.offset;
      const int64_t first = v.causal ? here : v.bounded_after ? here - v.after + 1 : 0;
      const int64_t last = v.bounded_before ? here + v.before : t.lanes;
      for (int64_t q = 0; q < t.lanes; ++q) {
        row[q] = q >= first && q < last ? T(1) : T(0);
      }
    } else {
      with_positions(v, [&](const auto* queries, const auto* keys) {
        for (int64_t q = 0; q < t.queries; ++q) {
          row[q] = sees(v, queries[t.first_query + q], keys[key]) ? T(1) : T(0);
        }
      });
    }
    for (int64_t q = 0; q < t.queries && v.k_blocks != nullptr; ++q) {
      row[q] = in_one_block(v, t.first_query + q, key) ? T(1) : row[q];
    }
    for (int64_t q = 0; q < t.queries && v.k_segments != nullptr; ++q) {
      row[q] = v.q_segments[t.first_query + q] == v.k_segments[key] ? row[q] : T(0);
    }
    std::fill(row + t.queries, row + t.lanes, T(0));
  }
}

/// key - query of a pair of the tile, where positions are integers that are given one by one.
inline int64_t distance_of(const Visibility& v, const Tile& t, int64_t k, int64_t q) {
  return difference(v.k_positions[t.first_key + k], v.q_positions[t.first_query + q]);
}

/// The rows of a tile's queries, and zeros in those of the lanes between.
template <typename T>
void pack_queries(const ConstRows& from, const Tile& t, int64_t width, T* to) {
  pack_rows(from, t.queries, width, padded<T>(width), to);
  std::fill(to + t.queries * padded<T>(width), to + t.lanes * padded<T>(width), T(0));
}

/// to[i][j] = from[j][i], as many rows and columns as a vector has lanes. Not inlined: of many transpositions GCC
/// leaves parts out of line, as functions that objects share.
template <typename T>
__attribute__((noinline)) void transpose_square(const T* from, int64_t from_row, T* to, int64_t to_row) {
  at::vec::transpose_mxn<T, Vec<T>::size(), Vec<T>::size()>(from, from_row, to, to_row);
}

/// to[d][query] = factor * rows[query][d] for rows from pack_queries().
template <typename T>
void pack_transposed(const T* rows, const Tile& t, int64_t width, T factor, T* to) {
  constexpr int kLanes = Vec<T>::size();
  const int64_t row = padded<T>(width), whole = width / kLanes * kLanes;
  for (int64_t q = 0; q < t.lanes; q += kLanes) {
    const T* from = rows + q * row;
    for (int64_t d = 0; d < whole; d += kLanes) {
      T* block = to + d * kTileQueries + q;
      transpose_square(from + d, row, block, kTileQueries);
      for (int i = 0; i < kLanes; ++i) {
        (Vec<T>::loadu(block + i * kTileQueries) * Vec<T>(factor)).store(block + i * kTileQueries);
      }
    }
    for (int64_t d = whole; d < width; ++d) {
      for (int64_t i = 0; i < kLanes; ++i) {
        to[d * kTileQueries + q + i] = factor * from[i * row + d];
      }
    }
  }
}

/// to[d / 2][query] = the numbers d and d + 1 of a query as a pair of bfloat16, which hold them, for even d, from what
/// pack_transposed() made without a factor.
template <typename T>
void pack_pairs(const T* transposed, const Tile& t, int64_t width, T* to) {
  if constexpr (cpu::kHasBf16x2 && std::is_same_v<T, float>) {
    for (int64_t d = 0; d < width; d += 2) {
      const T* first = transposed + d * kTileQueries;
      for (int64_t q = 0; q < t.lanes; q += Vec<T>::size()) {
        const Vec<T> second = d + 1 < width ? Vec<T>::loadu(first + kTileQueries + q) : Vec<T>(T(0));
        cpu::join_bfloat16(Vec<T>::loadu(first + q), second).store(to + d / 2 * kTileQueries + q);
      }
    }
  }
}

/// The queries of a product, rows from pack_queries(): `to` as pack_transposed() has them, and if asked for as pairs.
/// Those have of the factor a power of two, which bfloat16 takes as it is, so that products reach no further than
/// scores do; returns the rest.
template <typename T>
T pack_operand(const T* rows, const Tile& t, int64_t width, T factor, bool as_pairs, T* to, T* pairs) {
  if (!as_pairs) {
    pack_transposed(rows, t, width, factor, to);
    return T(1);
  }
  const bool has_power = std::isfinite(factor) && factor != T(0);
  const T power = has_power ? std::ldexp(T(1), std::ilogb(factor)) : factor, rest = has_power ? factor / power : T(1);
  pack_transposed(rows, t, width, power, to);
  pack_pairs(to, t, width, pairs);
  std::transform(to, to + width * kTileQueries, to, [rest](T x) { return x * rest; });
  return rest;
}

/// Whether query q sees key k of the tile.
template <typename T>
bool seen(const Tile& t, const T* mask, int64_t k, int64_t q) {
  switch (t.cover) {
    case Cover::kAll:
      return true;
    case Cover::kDiagonal:
      return k + t.diagonal <= q;
    default:
      return mask[k * kTileQueries + q] != T(0);
  }
}

/// The same for a vector of queries from q on, as a mask of lanes; cover is kDiagonal or kSome.
template <typename T>
Vec<T> seen_lanes(const Tile& t, const T* mask, int64_t k, int64_t q) {
  return t.cover == Cover::kDiagonal ? Vec<T>::arange(static_cast<T>(q - t.diagonal), T(1)) >= Vec<T>(static_cast<T>(k))
                                     : Vec<T>::loadu(mask + k * kTileQueries + q) != Vec<T>(T(0));
}

/// Keys 0 .. all - 1 of a tile are seen by every query of a group of vectors, all .. some - 1 by some. Those up to
/// `end` are seen by none, and must be 0 for the register tiles that begin or end within them.
struct KeyRanges {
  int64_t all, some, end;
};

/// Calls body(q, ranges) for each vector of queries.
template <typename T, typename Body>
void for_each_vector(const Tile& t, const Body& body) {
  for (int64_t group = 0; group < t.lanes; group += kGroup<T>) {
    KeyRanges ranges{t.keys, t.keys, t.keys};
    if (t.cover == Cover::kDiagonal) {
      ranges.all = std::clamp<int64_t>(group - t.diagonal + 1, 0, t.keys);
      ranges.some = std::clamp<int64_t>(group + kGroup<T> - t.diagonal, 0, t.keys);
      ranges.end = std::min(t.keys, ranges.some + kGroup<T> + kRegisterRows);
    } else if (t.cover == Cover::kSome) {
      ranges.all = 0;
    }
    for (int64_t q = group; q < std::min(group + kGroup<T>, t.lanes); q += Vec<T>::size()) {
      body(q, ranges);
    }
  }
}

/// to (queries x width) += weights^T rows over the keys that each query sees: sum_over_keys() where a row is not
/// finite.
template <typename T>
void sum_visible_keys(const Tile& t, const T* mask, const T* weights, const PackedRows<T>& rows, int64_t width, T* to) {
  for (int64_t q = 0; q < t.queries; ++q) {
    for (int64_t k = 0; k < t.keys; ++k) {
      if (seen(t, mask, k, q)) {
        for (int64_t d = 0; d < width; ++d) {
          to[q * width + d] += weights[k * kTileQueries + q] * rows.data[k * rows.row + d];
        }
      }
    }
  }
}

/// Multiplies weights by dropout's mask, 0 or 1 / (1 - p).
template <typename T>
void drop(const Dropout& rule, const Tile& t, T* weights) {
  const auto mix = [](uint32_t x) {
    x ^= x >> 16;
    x *= static_cast<uint32_t>(dropout::kFirst);
    x ^= x >> 15;
    x *= static_cast<uint32_t>(dropout::kSecond);
    return x ^ (x >> 16);
  };
  const uint32_t by_head = mix(mix(rule.low ^ rule.head) + rule.high);
  const int64_t threshold = dropout::threshold(rule.probability);
  if (threshold > dropout::kMask) {
    for (int64_t k = 0; k < t.keys; ++k) {
      std::fill(weights + k * kTileQueries, weights + k * kTileQueries + t.lanes, T(0));
    }
    return;
  }
  uint32_t rows[kTileQueries];
  for (int64_t q = 0; q < t.lanes; ++q) {
    rows[q] = mix(by_head ^ static_cast<uint32_t>(t.first_query + q));
  }
  const T factor = static_cast<T>(1.0 / (1.0 - rule.probability));
  const uint32_t limit = static_cast<uint32_t>(threshold);
  for (int64_t k = 0; k < t.keys; ++k) {
    const uint32_t key = static_cast<uint32_t>(t.first_key + k) * static_cast<uint32_t>(dropout::kStep);
    T* row = weights + k * kTileQueries;
    for (int64_t q = 0; q < t.lanes; ++q) {
      row[q] = mix(rows[q] ^ key) >= limit ? row[q] * factor : T(0);
    }
  }
}

/// Zeroes the rows of queries that have no key with a weight.
template <typename T>
void clear_blind_rows(const Tile& t, const bool* blind, int64_t row, T* rows) {
  for (int64_t q = 0; q < t.queries; ++q) {
    if (blind[q]) {
      std::fill(rows + q * row, rows + (q + 1) * row, T(0));
    }
  }
}

/// sums[entry - first][query]: gradients of products of table rows and queries. Adds to those of the queries (null: not
/// wanted) and of the table (data null: not wanted).
template <typename T>
void add_to_table_and_queries(const PackedRows<T>& table, int64_t first, int64_t count, const Tile& t, const T* sums,
                              const T* queries, int64_t row, const GradientRows<T>& grad_table, T* grad_query) {
  if (grad_query != nullptr) {
    sum_over_keys<T>(sums, table.from(first), count, t.queries, row, kNoDiagonal, nullptr, grad_query);
  }
  if (grad_table.data != nullptr) {
    sum_over_queries<T>(sums, queries, count, t.queries, row, kNoDiagonal, grad_table.from(first).data, grad_table.row);
  }
}

/// key - query for each key of a block and query q; positions are integers.
inline void fill_distances(const Visibility& v, const Tile& t, int64_t q, int64_t* to) {
  if (!v.by_index()) {
    for (int64_t k = 0; k < t.keys; ++k) {
      to[k] = difference(v.k_positions[t.first_key + k], v.q_positions[q]);
    }
    return;
  }
  const int64_t first = t.first_key - v.offset - q;
  for (int64_t k = 0; k < t.keys; ++k) {
    to[k] = first + k;
  }
}

}  // namespace
}  // namespace posenc::attention_ops
