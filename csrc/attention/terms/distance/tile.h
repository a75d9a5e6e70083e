#pragma once

/// A bias that is a function of the distance: -slope * |distance|, and a table over clipped distances.

#include "attention/tile/tile.h"

#include <cmath>

namespace posenc::attention_ops {
namespace {

/// Where positions count up by one, the bias of a tile is a strip: entry queries - keys + kTileKeys - 1, so that for a
/// key the entries of neighbouring queries are neighbours.
constexpr int64_t kStrip = kTileQueries + kTileKeys;

/// The distance key - query at the strip's entry x.
inline int64_t strip_distance(const Visibility& v, const Tile& t, int64_t x) {
  return kTileKeys - 1 - x + t.first_key - t.first_query - v.offset;
}

template <typename T>
bool depends_on_distance(const ScoreBias<T>& b) {
  return b.slope != 0.0 || b.table != nullptr;
}

/// The bias at a distance, in base 2.
template <typename T>
T at_distance(const ScoreBias<T>& b, int64_t distance) {
  double bias = -b.slope * static_cast<double>(std::abs(distance));
  if (b.table != nullptr) {
    bias += b.table[clipped_entry(distance, b.radius)];
  }
  return static_cast<T>(bias * kLog2E);
}

/// Adds the bias to a tile of scores; `strip` has room for kStrip numbers.
template <typename T>
void add_distance_bias(const ScoreBias<T>& b, const Visibility& v, const Tile& t, T* strip, T* scores) {
  if (v.q_positions != nullptr) {
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.queries; ++q) {
        scores[k * kTileQueries + q] += at_distance(b, distance_of(v, t, k, q));
      }
    }
    return;
  }
  for (int64_t x = kTileKeys - t.keys; x < kTileKeys - 1 + t.lanes; ++x) {
    strip[x] = at_distance(b, strip_distance(v, t, x));
  }
  for (int64_t k = 0; k < t.keys; ++k) {
    T* row = scores + k * kTileQueries;
    const T* bias = strip + kTileKeys - 1 - k;
    for (int64_t q = 0; q < t.lanes; q += Vec<T>::size()) {
      (Vec<T>::loadu(row + q) + Vec<T>::loadu(bias + q)).store(row + q);
    }
  }
}

/// Adds the gradients of a tile of scores, 0 where hidden, to those of the slope and the table (each null: not wanted).
template <typename T>
void add_distance_gradients(const ScoreBias<T>& b, const Visibility& v, const Tile& t, const T* grad, T* strip,
                            double* grad_table, double* grad_slope) {
  const auto add = [&](int64_t distance, double g) {
    if (grad_table != nullptr) {
      grad_table[clipped_entry(distance, b.radius)] += g;
    }
    if (grad_slope != nullptr) {
      *grad_slope -= g * static_cast<double>(std::abs(distance));
    }
  };
  if (v.q_positions != nullptr) {
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.queries; ++q) {
        add(distance_of(v, t, k, q), grad[k * kTileQueries + q]);
      }
    }
    return;
  }
  std::fill(strip, strip + kStrip, T(0));
  for (int64_t k = 0; k < t.keys; ++k) {
    const int64_t first = std::max<int64_t>(0, k + t.diagonal) / kGroup<T> * kGroup<T>;
    const T* row = grad + k * kTileQueries;
    T* sums = strip + kTileKeys - 1 - k;
    for (int64_t q = first; q < t.lanes; q += Vec<T>::size()) {
      (Vec<T>::loadu(sums + q) + Vec<T>::loadu(row + q)).store(sums + q);
    }
  }
  for (int64_t x = kTileKeys - t.keys; x < kTileKeys - 1 + t.lanes; ++x) {
    add(strip_distance(v, t, x), strip[x]);
  }
}

}  // namespace
}  // namespace posenc::attention_ops
