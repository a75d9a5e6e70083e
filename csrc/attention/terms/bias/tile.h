#pragma once

/// A bias that the caller holds, one number for each query and key.

#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

template <typename Element>
constexpr double lowest() {
  if constexpr (std::is_same_v<Element, c10::BFloat16>) {
    return -3.3895313892515355e38;
  } else if constexpr (std::is_same_v<Element, c10::Half>) {
    return -65504.0;
  } else {
    return std::numeric_limits<Element>::lowest();
  }
}

/// Entries up to this one hide their key: the lowest number of the type, and those that are -infinity in base 2.
template <typename T>
T hiding_bound(const ConstRows& bias) {
  double bound = 0.0;
  with_type(bias.data, bias.type, [&](const auto* data) {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    bound = std::max(lowest<Element>(), static_cast<double>(std::numeric_limits<T>::lowest()) * kLn2);
  });
  return static_cast<T>(bound);
}

/// A square of a tile, one vector a side, whose rows are queries on one side and keys on the other.
template <typename T>
constexpr int64_t kSide = Vec<T>::size();

/// Calls body(k, q, entries of key k for the queries from q on) for all squares of a tile that are seen; 0 in lanes
/// without a query.
template <typename T, typename Body>
void for_each_bias(const ConstRows& bias, const Tile& t, const Body& body) {
  with_type(bias.data, bias.type, [&](const auto* data) {
    alignas(64) T rows[kSide<T> * kSide<T>], columns[kSide<T> * kSide<T>];
    for (int64_t q = 0; q < t.queries; q += kSide<T>) {
      const int64_t queries = std::min(kSide<T>, t.queries - q);
      std::fill(rows + queries * kSide<T>, rows + kSide<T> * kSide<T>, T(0));
      for (int64_t k = 0; k < t.keys && k + t.diagonal < q + kSide<T>; k += kSide<T>) {
        const int64_t keys = std::min(kSide<T>, t.keys - k);
        for (int64_t i = 0; i < queries; ++i) {
          const auto* from = data + (t.first_query + q + i) * bias.row + (t.first_key + k) * bias.column;
          if (bias.column == 1 && keys == kSide<T>) {
            load_vector<T>(from).store(rows + i * kSide<T>);
            continue;
          }
          for (int64_t j = 0; j < keys; ++j) {
            rows[i * kSide<T> + j] = converted<T>(from[j * bias.column]);
          }
        }
        transpose_square(rows, kSide<T>, columns, kSide<T>);
        for (int64_t j = 0; j < keys; ++j) {
          body(k + j, q, Vec<T>::loadu(columns + j * kSide<T>));
        }
      }
    }
  });
}

/// Whether every entry of a tile hides its key, as beyond the diagonal of a causal mask. Elsewhere one of the first
/// looked at mostly does not: under a causal mask, of the last query.
template <typename T>
bool hides_all(const ConstRows& bias, const Tile& t) {
  const T bound = hiding_bound<T>(bias);
  bool all = true;
  with_type(bias.data, bias.type, [&](const auto* data) {
    for (int64_t q = t.queries - 1; q >= 0 && all; --q) {
      const auto* row = data + (t.first_query + q) * bias.row + t.first_key * bias.column;
      for (int64_t k = 0; k < t.keys && all; ++k) {
        all = converted<T>(row[k * bias.column]) <= bound;
      }
    }
  });
  return all;
}

/// Adds the bias to a tile of scores. True where an entry hides its key; such entries are 0 in `mask` then, which
/// otherwise says what the tile's cover says.
template <typename T>
bool add_bias(const ConstRows& bias, const Visibility& v, const Tile& t, T* mask, T* scores) {
  const Vec<T> bound(hiding_bound<T>(bias)), log2e(static_cast<T>(kLog2E)), zero(T(0));
  Vec<T> hidden(T(0));
  for_each_bias<T>(bias, t, [&](int64_t k, int64_t q, const Vec<T>& x) {
    T* to = scores + k * kTileQueries + q;
    hidden = hidden | (x <= bound);
    fmadd(x, log2e, Vec<T>::loadu(to)).store(to);
  });
  if (!cpu::any_lane(hidden)) {
    return false;
  }
  if (t.cover != Cover::kSome) {
    fill_mask(v, t, mask);
  }
  for_each_bias<T>(bias, t, [&](int64_t k, int64_t q, const Vec<T>& x) {
    T* to = mask + k * kTileQueries + q;
    Vec<T>::blendv(Vec<T>::loadu(to), zero, x <= bound).store(to);
  });
  return true;
}

/// Adds a tile of score gradients to those of the bias, of type T.
template <typename T>
void add_bias_gradients(const MutableRows& to, const Tile& t, const T* mask, const T* grad) {
  alignas(64) T columns[kSide<T> * kSide<T>], rows[kSide<T> * kSide<T>];
  const Vec<T> zero(T(0));
  std::fill(columns, columns + kSide<T> * kSide<T>, T(0));
  for (int64_t q = 0; q < t.queries; q += kSide<T>) {
    for (int64_t k = 0; k < t.keys && k + t.diagonal < q + kSide<T>; k += kSide<T>) {
      const int64_t keys = std::min(kSide<T>, t.keys - k);
      for (int64_t j = 0; j < keys; ++j) {
        const Vec<T> x = Vec<T>::loadu(grad + (k + j) * kTileQueries + q);
        (t.cover == Cover::kAll ? x : Vec<T>::blendv(zero, x, seen_lanes(t, mask, k + j, q)))
            .store(columns + j * kSide<T>);
      }
      transpose_square(columns, kSide<T>, rows, kSide<T>);
      for (int64_t i = 0; i < std::min(kSide<T>, t.queries - q); ++i) {
        T* row = static_cast<T*>(to.data) + (t.first_query + q + i) * to.row + (t.first_key + k) * to.column;
        for (int64_t j = 0; j < keys; ++j) {
          row[j * to.column] += rows[i * kSide<T> + j];
        }
      }
    }
  }
}

}  // namespace
}  // namespace posenc::attention_ops
