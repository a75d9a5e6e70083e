#pragma once

/// The two products of decoding, for kernel files only: queries with keys, and weights with values. Keys and values are
/// read where they lie, in their own type, a step of two vectors of T at a time. A vector of bfloat16 falls apart into
/// its even and its odd elements for less than into halves, so beside bfloat16 queries and sums have each step of their
/// rows in that order: see arrange().

#include "attention/tile/gemm.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <tuple>

namespace posenc::attention_ops {
namespace {

/// Elements of a row that are read together.
template <typename T>
constexpr int64_t kStep = 2 * Vec<T>::size();

template <typename T>
constexpr int64_t whole_steps(int64_t width) {
  return (width + kStep<T> - 1) / kStep<T> * kStep<T>;
}

/// Most rows of queries that share a load of a key or a value: a tile of scores, rows by keys, fills one vector, so a
/// vector of two lanes has room for two rows.
template <typename T>
constexpr int kDecodeRows = std::min(4, static_cast<int>(Vec<T>::size()));

/// Memory is asked for this many bytes before it is read, to come into the second-level cache: the first waits for
/// fewer lines at a time than memory can deliver.
constexpr int64_t kPrefetchBytes = 16384;

/// Values that are summed before the sums of a row are loaded and stored.
constexpr int64_t kChunkKeys = 32;

/// Rows of a block of keys as a tensor has them, columns adjacent. Nothing after their width is read.
template <typename Element>
struct BlockRows {
  const Element* data;
  int64_t row, keys;
  /// Elements from a row that is read to the one that is asked for meanwhile. 0: none.
  int64_t ahead;
};

/// For blocks that are walked from the first key to the last.
template <typename Element>
int64_t elements_ahead(int64_t row, int64_t width) {
  const int64_t bytes = width * static_cast<int64_t>(sizeof(Element));
  return (kPrefetchBytes + bytes - 1) / bytes * row;
}

template <typename T>
struct Pair {
  Vec<T> first, second;
};

template <typename T, typename Element>
Pair<T> widen(const Vec<Element>& x) {
  Pair<T> y;
  if constexpr (std::is_same_v<Element, c10::BFloat16>) {
    cpu::split_bfloat16(x, y.first, y.second);
  } else {
    std::tie(y.first, y.second) = at::vec::convert_half_float(x);
  }
  return y;
}

template <typename T, typename Element>
Pair<T> load_step(const Element* p) {
  if constexpr (std::is_same_v<T, Element>) {
    return {Vec<T>::loadu(p), Vec<T>::loadu(p + Vec<T>::size())};
  } else {
    return widen<T>(Vec<Element>::loadu(p));
  }
}

/// The first n elements of a step, then finite numbers.
template <typename T, typename Element>
Pair<T> load_step(const Element* p, int64_t n) {
  if constexpr (std::is_same_v<T, Element>) {
    constexpr int64_t kLanes = Vec<T>::size();
    return {cpu::load_partial(p, std::min(n, kLanes)),
            n > kLanes ? cpu::load_partial(p + kLanes, n - kLanes) : Vec<T>(T(0))};
  } else {
    return widen<T>(cpu::load_partial(p, n));
  }
}

/// Calls body(d, load) for each step of a row, where load(p) reads the step that begins at p.
template <typename T, typename Element, typename Body>
inline __attribute__((always_inline)) void for_each_step(int64_t width, const Body& body) {
  int64_t d = 0;
  for (; d + kStep<T> <= width; d += kStep<T>) {
    body(d, [](const Element* p) { return load_step<T>(p); });
  }
  if (d < width) {
    body(d, [n = width - d](const Element* p) { return load_step<T>(p, n); });
  }
}

/// Where load_step() puts element d of a row.
template <typename T, typename Element>
constexpr int64_t place_of(int64_t d) {
  if constexpr (std::is_same_v<Element, c10::BFloat16>) {
    const int64_t in_step = d % kStep<T>;
    return d - in_step + in_step % 2 * Vec<T>::size() + in_step / 2;
  } else {
    return d;
  }
}

/// Copies a row of `width` elements into whole steps as load_step() would, then zeros.
template <typename T, typename Element>
void arrange(const T* row, int64_t width, T* to) {
  std::fill(to, to + whole_steps<T>(width), T(0));
  for (int64_t d = 0; d < width; ++d) {
    to[place_of<T, Element>(d)] = row[d];
  }
}

/// The way back, `width` elements.
template <typename T, typename Element>
void restore(const T* arranged, int64_t width, T* to) {
  for (int64_t d = 0; d < width; ++d) {
    to[d] = arranged[place_of<T, Element>(d)];
  }
}

/// Keys whose products with kRows queries fill one vector.
template <int kRows, typename T>
constexpr int tile_of_keys() {
  static_assert(Vec<T>::size() >= kRows && Vec<T>::size() % kRows == 0);
  return Vec<T>::size() / kRows;
}

/// scores[row][key] = query . key, a tile whose sums fill one vector. ahead: as in BlockRows. Inlined,
/// and kPartial (the width ends within a step) known, so that the sums stay in registers.
template <int kRows, bool kPartial, typename T, typename Element>
inline __attribute__((always_inline)) void score_tile(const T* query, int64_t query_row, const Element* const* key,
                                                      int64_t ahead, int64_t width, T* scores, int64_t scores_row) {
  constexpr int kKeys = tile_of_keys<kRows, T>();
  Vec<T> sum[kRows][kKeys];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      sum[r][i] = Vec<T>(T(0));
    }
  }
  const auto add = [&](int64_t d, const auto& load) __attribute__((always_inline)) {
    Pair<T> x[kKeys];
#pragma GCC unroll 16
    for (int i = 0; i < kKeys; ++i) {
      x[i] = load(key[i] + d);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const T* y = query + r * query_row + d;
      const Vec<T> first = cpu::keep_in_register(Vec<T>::loadu(y)),
                   second = cpu::keep_in_register(Vec<T>::loadu(y + Vec<T>::size()));
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        sum[r][i] = fmadd(x[i].first, first, sum[r][i]);
        sum[r][i] = fmadd(x[i].second, second, sum[r][i]);
      }
    }
  };
  const int64_t whole = width / kStep<T> * kStep<T>;
  for (int64_t d = 0; d < whole; d += kStep<T>) {
    if (ahead != 0) {
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        cpu::prefetch(key[i] + ahead + d, kStep<T>);
      }
    }
    add(d, [](const Element* p) { return load_step<T>(p); });
  }
  if constexpr (kPartial) {
    add(whole, [n = width - whole](const Element* p) { return load_step<T>(p, n); });
  }
  alignas(64) T lanes[Vec<T>::size()];
  cpu::lane_sums(sum[0]).store(lanes);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(scores + r * scores_row, lanes + r * kKeys, kKeys * sizeof(T));
  }
}

template <bool kPartial, typename T, typename Element>
void score_rows_of(const T* query, int64_t query_row, int64_t rows, const BlockRows<Element>& key, int64_t width,
                   T* scores, int64_t scores_row) {
  for_each_row_tile<kDecodeRows<T>>(rows, [&]<int kRows>(int64_t r) {
    constexpr int kKeys = tile_of_keys<kRows, T>();
    for (int64_t k = 0; k < key.keys; k += kKeys) {
      const Element* tile[kKeys];
      for (int i = 0; i < kKeys; ++i) {
        tile[i] = key.data + std::min(k + i, key.keys - 1) * key.row;
      }
      score_tile<kRows, kPartial>(query + r * query_row, query_row, tile, r == 0 ? key.ahead : 0, width,
                                  scores + r * scores_row + k, scores_row);
    }
  });
}

/// scores[row][key] = query . key; a row of scores is written up to a multiple of the lanes. Rows of queries hold whole
/// steps, arranged for Element.
template <typename T, typename Element>
void score_rows(const T* query, int64_t query_row, int64_t rows, const BlockRows<Element>& key, int64_t width,
                T* scores, int64_t scores_row) {
  if (width % kStep<T> == 0) {
    score_rows_of<false>(query, query_row, rows, key, width, scores, scores_row);
  } else {
    score_rows_of<true>(query, query_row, rows, key, width, scores, scores_row);
  }
}

/// sums[row] = factor[row] * sums[row] + weights[row] . values for step d of kRows rows and keys first .. last - 1.
/// ahead: as in BlockRows.
template <int kRows, typename T, typename Element, typename Load>
inline void sum_tile(const T* weights, const BlockRows<Element>& value, int64_t first, int64_t last, int64_t d,
                     int64_t ahead, const Load& load, const T* factor, T* sums, int64_t sums_row) {
  Pair<T> sum[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    sum[r] = {Vec<T>(T(0)), Vec<T>(T(0))};
  }
  for (int64_t k = first; k < last; ++k) {
    const Element* row = value.data + k * value.row + d;
    if (ahead != 0) {
      cpu::prefetch(row + ahead, kStep<T>);
    }
    const Pair<T> x = load(row);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> weight(weights[r * kDecodeKeys + k]);
      sum[r].first = fmadd(weight, x.first, sum[r].first);
      sum[r].second = fmadd(weight, x.second, sum[r].second);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    T* to = sums + r * sums_row + d;
    const Vec<T> scale(factor[r]);
    fmadd(scale, Vec<T>::loadu(to), sum[r].first).store(to);
    fmadd(scale, Vec<T>::loadu(to + Vec<T>::size()), sum[r].second).store(to + Vec<T>::size());
  }
}

/// sums[row] = factor[row] * sums[row] + weights[row] . values for rows whose sums hold whole steps. The products of a
/// few keys are summed from zero, so that long rows lose no accuracy. Leaves factor 1.
template <typename T, typename Element>
void sum_rows(const T* weights, int64_t rows, const BlockRows<Element>& value, int64_t width, T* factor, T* sums,
              int64_t sums_row) {
  for (int64_t first = 0; first < value.keys; first += kChunkKeys) {
    const int64_t last = std::min(value.keys, first + kChunkKeys);
    for_each_row_tile<kDecodeRows<T>>(rows, [&]<int kRows>(int64_t r) {
      for_each_step<T, Element>(width, [&](int64_t d, const auto& load) {
        sum_tile<kRows>(weights + r * kDecodeKeys, value, first, last, d, r == 0 ? value.ahead : 0, load, factor + r,
                        sums + r * sums_row, sums_row);
      });
    });
    std::fill(factor, factor + rows, T(1));
  }
}

/// Whether any element of a block is NaN or infinite.
template <typename T, typename Element>
bool any_nonfinite_element(const BlockRows<Element>& rows, int64_t width) {
  Vec<T> sum(T(0));  // x * 0 is NaN for such x, and stays it
  for (int64_t k = 0; k < rows.keys; ++k) {
    for_each_step<T, Element>(width, [&](int64_t d, const auto& load) {
      const Pair<T> x = load(rows.data + k * rows.row + d);
      sum = fmadd(x.first, Vec<T>(T(0)), fmadd(x.second, Vec<T>(T(0)), sum));
    });
  }
  const T total = cpu::sum_lanes(sum);
  return total != total;
}

/// Copies rows of queries for products with Element.
template <typename T, typename Element = T>
void arrange_rows(const PackedRows<T>& from, int64_t rows, int64_t width, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    arrange<T, Element>(from.data + r * from.row, width, to + r * whole_steps<T>(width));
  }
}

/// to[row][entry] = query . table row of the entries first .. first + count - 1, for queries from arrange_rows().
template <typename T>
void multiply_table(const PackedRows<T>& table, int64_t first, int64_t count, const T* query, int64_t queries,
                    int64_t width, T* to, int64_t to_row) {
  const BlockRows<T> rows{table.from(first).data, table.row, count, /*ahead=*/0};
  score_rows(query, whole_steps<T>(width), queries, rows, width, to, to_row);
}

}  // namespace
}  // namespace posenc::attention_ops
