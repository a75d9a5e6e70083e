#pragma once

/// A tile of scores and what hides them, for kernel files only. Scores lie transposed, [key][query], so that the lanes
/// of a vector are queries and everything along a row of keys (maximum, sum, distance) is done without shuffles.

#include "attention/dropout.h"
#include "attention/tile/cover.h"
#include "attention/tile/rows.h"

#include <cmath>
#include <limits>

namespace posenc::attention_ops {
namespace {

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
