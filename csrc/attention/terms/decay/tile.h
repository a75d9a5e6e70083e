#pragma once

/// A bias that grows token by token (forgetting attention, arXiv 2503.02130): the difference of two sums, that of the
/// query's own key and that of the key.

#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

/// The key that a query of the tile is itself.
inline int64_t own_key(const Visibility& v, const Tile& t, int64_t q) { return v.keys - v.queries + t.first_query + q; }

/// A number as T and what T loses of it.
template <typename T>
struct Parts {
  T most, rest;
};

template <typename T>
Parts<T> parts_of(double x) {
  const T most = static_cast<T>(x);
  return {most, static_cast<T>(x - static_cast<double>(most))};
}

/// NaN for each query and key with a decay between them that is no number.
template <typename T>
void add_undefined_decay(const int64_t* undefined, const Visibility& v, const Tile& t, T* scores) {
  for (int64_t k = 0; k < t.keys; ++k) {
    for (int64_t q = 0; q < t.queries; ++q) {
      if (undefined[own_key(v, t, q)] != undefined[t.first_key + k]) {
        scores[k * kTileQueries + q] = std::numeric_limits<T>::quiet_NaN();
      }
    }
  }
}

/// Adds the bias to a tile of scores, in base 2. Sums are taken from one within the tile, so long ones lose nothing; a
/// token that forgets all makes even these large on one side of it, where they cancel.
template <typename T>
void add_decay(const ScoreBias<T>& bias, const Visibility& v, const Tile& t, T* scores) {
  const double* sums = bias.decay_sums;
  const double base = sums[own_key(v, t, 0)];
  T most[kTileQueries] = {}, rest[kTileQueries] = {};
  for (int64_t q = 0; q < t.queries; ++q) {
    const Parts<T> of_query = parts_of<T>((sums[own_key(v, t, q)] - base) * kLog2E);
    most[q] = of_query.most;
    rest[q] = of_query.rest;
  }
  for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
    const Vec<T> row_most = Vec<T>::loadu(most + q), row_rest = Vec<T>::loadu(rest + q);
    for (int64_t k = 0; k < keys.some; ++k) {
      T* to = scores + k * kTileQueries + q;
      const Parts<T> of_key = parts_of<T>((base - sums[t.first_key + k]) * kLog2E);
      const Vec<T> decay = (row_most + Vec<T>(of_key.most)) + (row_rest + Vec<T>(of_key.rest));
      (Vec<T>::loadu(to) + decay).store(to);
    }
  });
  if (bias.undefined_decays != nullptr) {
    add_undefined_decay(bias.undefined_decays, v, t, scores);
  }
}

/// Adds the gradients of a tile of scores, 0 where hidden, to those of the sums.
template <typename T>
void add_decay_gradients(const Visibility& v, const Tile& t, const T* grad, double* to) {
  for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
    Vec<T> of_query(T(0));
    for (int64_t k = 0; k < keys.some; ++k) {
      const Vec<T> g = Vec<T>::loadu(grad + k * kTileQueries + q);
      of_query = of_query + g;
      to[t.first_key + k] -= static_cast<double>(cpu::sum_lanes(g));
    }
    T lanes[Vec<T>::size()];
    of_query.store(lanes);
    for (int64_t i = 0; i < Vec<T>::size() && q + i < t.queries; ++i) {
      to[own_key(v, t, q + i)] += static_cast<double>(lanes[i]);
    }
  });
}

}  // namespace
}  // namespace posenc::attention_ops
