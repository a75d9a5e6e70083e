#pragma once

/// The matrix products of a tile, for kernel files only. Two register tiles serve all of them: kRegisterRows rows of A
/// by kRegisterVectors vectors of B, with A read along a row or down a column and broadcast.
///
/// On the diagonal of a causal tile, key k is seen by queries q >= k + diagonal only: whole register tiles beyond it
/// are left out. Off the diagonal `diagonal` is kNoDiagonal.

#include "attention/tile/types.h"
#include "cpu/vec.h"

#include <algorithm>
#include <cstring>

namespace posenc::attention_ops {
namespace {

using at::vec::fmadd;

template <typename T>
using Vec = at::vec::Vectorized<T>;

// Of the registers (16, or 32 with AVX-512) the sums take 12, or 24; what is left holds B and a broadcast element of A.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kRegisterRows = 12;
#else
constexpr int kRegisterRows = 6;
#endif
constexpr int kRegisterVectors = 2;
static_assert(kTileKeys % kRegisterRows == 0 && kTileQueries % kRegisterRows == 0);

template <typename T>
constexpr int kGroup = kRegisterVectors * Vec<T>::size();

constexpr int64_t kNoDiagonal = -(int64_t{1} << 40);

template <typename T>
constexpr int64_t padded(int64_t width) {
  return (width + Vec<T>::size() - 1) / Vec<T>::size() * Vec<T>::size();
}

enum class Into {
  /// C = A B
  kStore,
  /// C = A B, and largest = max(largest, rows of C)
  kStoreMax,
  /// C += A B. The product of a tile is summed from zero, so that long sums lose no accuracy.
  kAdd,
  /// C = factor C + A B by row, likewise.
  kRescale,
};

/// What the elements of A and B are.
enum class Elements {
  kNumbers,
  /// Two bfloat16 numbers each (cpu::multiply_bf16x2()).
  kPairs,
};

template <Elements elements, typename T>
inline Vec<T> multiply_add(const Vec<T>& a, const Vec<T>& b, const Vec<T>& sum) {
  if constexpr (elements == Elements::kPairs) {
    return cpu::multiply_bf16x2(a, b, sum);
  } else {
    return fmadd(a, b, sum);
  }
}

/// An element in all lanes, whatever its bits mean.
template <typename T>
inline Vec<T> broadcast(const T* p) {
  T x;
  std::memcpy(&x, p, sizeof(T));
  return Vec<T>(x);
}

#define POSENC_UNROLL _Pragma("GCC unroll 16")

/// C (kRows x kVectors vectors) from A (kRows x depth; transposed: depth x kRows) and B (depth x vectors). scale: of
/// pairs alone, multiplies A B.
template <typename T, int kRows, int kVectors, bool kTransposed, Into into, Elements elements = Elements::kNumbers>
inline __attribute__((always_inline)) void register_tile(const T* a, int64_t a_row, const T* b, int64_t b_row,
                                                         int64_t depth, T* c, int64_t c_row, T* extra, T scale = T(1)) {
  constexpr int kLanes = Vec<T>::size();
  Vec<T> sum[kRows][kVectors];
  POSENC_UNROLL for (int i = 0; i < kRows; ++i) {
    POSENC_UNROLL for (int j = 0; j < kVectors; ++j) { sum[i][j] = Vec<T>(T(0)); }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec<T> x[kVectors];
    POSENC_UNROLL for (int j = 0; j < kVectors; ++j) { x[j] = Vec<T>::loadu(b + k * b_row + j * kLanes); }
    POSENC_UNROLL for (int i = 0; i < kRows; ++i) {
      const Vec<T> y = broadcast(kTransposed ? a + k * a_row + i : a + i * a_row + k);
      POSENC_UNROLL for (int j = 0; j < kVectors; ++j) { sum[i][j] = multiply_add<elements>(y, x[j], sum[i][j]); }
    }
  }
  POSENC_UNROLL for (int i = 0; i < kRows; ++i) {
    POSENC_UNROLL for (int j = 0; j < kVectors; ++j) {
      T* to = c + i * c_row + j * kLanes;
      if constexpr (elements == Elements::kPairs) {
        sum[i][j] = sum[i][j] * Vec<T>(scale);
      }
      if constexpr (into == Into::kAdd) {
        sum[i][j] = Vec<T>::loadu(to) + sum[i][j];
      } else if constexpr (into == Into::kRescale) {
        sum[i][j] = fmadd(Vec<T>(extra[i]), Vec<T>::loadu(to), sum[i][j]);
      }
      sum[i][j].store(to);
    }
  }
  if constexpr (into == Into::kStoreMax) {
    POSENC_UNROLL for (int j = 0; j < kVectors; ++j) {
      Vec<T> largest = Vec<T>::loadu(extra + j * kLanes);
      POSENC_UNROLL for (int i = 0; i < kRows; ++i) { largest = at::vec::clamp_min(sum[i][j], largest); }
      largest.store(extra + j * kLanes);
    }
  }
}

/// Calls body<rows>(i) over 0 .. count - 1 in register tiles of kRegisterRows rows, then of fewer.
template <int kRows = kRegisterRows, typename Body>
inline void for_each_row_tile(int64_t count, const Body& body, int64_t i = 0) {
  for (; i + kRows <= count; i += kRows) {
    body.template operator()<kRows>(i);
  }
  if constexpr (kRows > 1) {
    if (i < count) {
      for_each_row_tile<kRows == 12 ? 8 : kRows == 6 ? 4 : kRows / 2>(count, body, i);
    }
  }
}

/// Calls body<vectors>(j) over 0 .. count - 1 (a multiple of the vector length).
template <typename T, typename Body>
inline void for_each_column_tile(int64_t count, const Body& body) {
  int64_t j = 0;
  for (; j + kGroup<T> <= count; j += kGroup<T>) {
    body.template operator()<kRegisterVectors>(j);
  }
  for (; j < count; j += Vec<T>::size()) {
    body.template operator()<1>(j);
  }
}

/// scores (keys x kTileQueries) = scale * key (keys x width) query^T, query packed as (width x kTileQueries); scale of
/// pairs alone. `queries` is a multiple of the vector length. largest: null, or the running maximum of each query.
template <typename T, Elements elements = Elements::kNumbers>
void score_product(const PackedRows<T>& key, const T* query, int64_t keys, int64_t queries, int64_t width,
                   int64_t diagonal, T* scores, T* largest, T scale = T(1)) {
  for_each_row_tile(keys, [&]<int kRows>(int64_t k) {
    for_each_column_tile<T>(queries, [&]<int kVectors>(int64_t q) {
      if (k + diagonal > q + kVectors * Vec<T>::size() - 1) {
        return;
      }
      T* to = scores + k * kTileQueries + q;
      if (largest != nullptr) {
        register_tile<T, kRows, kVectors, false, Into::kStoreMax, elements>(
            key.data + k * key.row, key.row, query + q, kTileQueries, width, to, kTileQueries, largest + q, scale);
      } else {
        register_tile<T, kRows, kVectors, false, Into::kStore, elements>(
            key.data + k * key.row, key.row, query + q, kTileQueries, width, to, kTileQueries, nullptr, scale);
      }
    });
  });
}

/// The same of pairs: key and query hold (width + 1) / 2 elements of two bfloat16 numbers.
template <typename T>
void pair_product(const PackedRows<T>& key, const T* query, int64_t keys, int64_t queries, int64_t width,
                  int64_t diagonal, T* scores, T* largest, T scale) {
  if constexpr (cpu::kHasBf16x2 && std::is_same_v<T, float>) {
    score_product<T, Elements::kPairs>(key, query, keys, queries, (width + 1) / 2, diagonal, scores, largest, scale);
  }
}

/// to (queries x width), row stride `width`: factor * to + weights^T rows, or (factor null) to + weights^T rows.
template <typename T>
void sum_over_keys(const T* weights, const PackedRows<T>& rows, int64_t keys, int64_t queries, int64_t width,
                   int64_t diagonal, T* factor, T* to) {
  for_each_column_tile<T>(width, [&]<int kVectors>(int64_t d) {
    for_each_row_tile(queries, [&]<int kRows>(int64_t q) {
      const int64_t depth = std::clamp<int64_t>(q + kRows - diagonal, 0, keys);
      T* c = to + q * width + d;
      if (factor != nullptr) {
        register_tile<T, kRows, kVectors, true, Into::kRescale>(weights + q, kTileQueries, rows.data + d, rows.row,
                                                                depth, c, width, factor + q);
      } else if (depth > 0) {
        register_tile<T, kRows, kVectors, true, Into::kAdd>(weights + q, kTileQueries, rows.data + d, rows.row, depth,
                                                            c, width, nullptr);
      }
    });
  });
}

/// to (keys x width) += weights (keys x kTileQueries) rows, rows (queries x width) of stride `width`.
template <typename T>
void sum_over_queries(const T* weights, const T* rows, int64_t keys, int64_t queries, int64_t width, int64_t diagonal,
                      T* to, int64_t to_row) {
  for_each_column_tile<T>(width, [&]<int kVectors>(int64_t d) {
    for_each_row_tile(keys, [&]<int kRows>(int64_t k) {
      // Weights of queries before the diagonal are zeros from the start of their vector group on.
      const int64_t first = std::max<int64_t>(0, k + diagonal) / kGroup<T> * kGroup<T>;
      if (first < queries) {
        register_tile<T, kRows, kVectors, false, Into::kAdd>(weights + k * kTileQueries + first, kTileQueries,
                                                             rows + first * width + d, width, queries - first,
                                                             to + k * to_row + d, to_row, nullptr);
      }
    });
  });
}

#undef POSENC_UNROLL

}  // namespace
}  // namespace posenc::attention_ops
