#pragma once

/// Numbers for each diagonal of a tile, for kernel files only. Where positions count up by one, what depends on the
/// distance is one number for each diagonal; entry first_diagonal(key) + query, so that those of neighbouring queries
/// are neighbours.

#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

constexpr int64_t kDiagonals = kTileQueries + kTileKeys;

/// The entry of key k and query 0.
constexpr int64_t first_diagonal(int64_t k) { return kTileKeys - 1 - k; }

/// Calls body(entry, key - query) for all diagonals of a tile.
template <typename Body>
void for_each_diagonal(const Visibility& v, const Tile& t, const Body& body) {
  for (int64_t x = kTileKeys - t.keys; x < kTileKeys - 1 + t.lanes; ++x) {
    body(x, kTileKeys - 1 - x + t.first_key - t.first_query - v.offset);
  }
}

/// Calls body(k, q) for all pairs of a tile.
template <typename Body>
void for_each_pair(const Tile& t, const Body& body) {
  for (int64_t k = 0; k < t.keys; ++k) {
    for (int64_t q = 0; q < t.queries; ++q) {
      body(k, q);
    }
  }
}

/// to[entry] = the sum of a tile along each diagonal.
template <typename T>
void sum_by_diagonal(const Tile& t, const T* tile, T* to) {
  std::fill(to, to + kDiagonals, T(0));
  for (int64_t k = 0; k < t.keys; ++k) {
    const int64_t first = std::max<int64_t>(0, k + t.diagonal) / kGroup<T> * kGroup<T>;
    const T* row = tile + k * kTileQueries;
    T* sums = to + first_diagonal(k);
    for (int64_t q = first; q < t.lanes; q += Vec<T>::size()) {
      (Vec<T>::loadu(sums + q) + Vec<T>::loadu(row + q)).store(sums + q);
    }
  }
}

}  // namespace
}  // namespace posenc::attention_ops
