#pragma once

/// A bias that the caller holds, one number for each query and key.

#include "attention/tile.h"

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
template <typename T, typename Element>
T hiding_bound() {
  return static_cast<T>(std::max(lowest<Element>(), static_cast<double>(std::numeric_limits<T>::lowest()) * kLn2));
}

/// Adds the bias to a tile of scores. True where an entry hides its key; such entries are 0 in `mask` then, which
/// otherwise says what the tile's cover says.
template <typename T>
bool add_bias(const ConstRows& bias, const Visibility& v, const Tile& t, T* mask, T* scores) {
  bool hides = false;
  with_type(bias.data, bias.type, [&](const auto* data) {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    const T bound = hiding_bound<T, Element>();
    for (int64_t q = 0; q < t.queries; ++q) {
      const auto* row = data + (t.first_query + q) * bias.row + t.first_key * bias.column;
      for (int64_t k = 0; k < t.keys; ++k) {
        const T x = widened<T>(row[k * bias.column]);
        hides = hides || x <= bound;
        scores[k * kTileQueries + q] += x * static_cast<T>(kLog2E);
      }
    }
    if (!hides) {
      return;
    }
    if (t.cover != Cover::kSome) {
      fill_mask(v, t, mask);
    }
    for (int64_t q = 0; q < t.queries; ++q) {
      const auto* row = data + (t.first_query + q) * bias.row + t.first_key * bias.column;
      for (int64_t k = 0; k < t.keys; ++k) {
        if (widened<T>(row[k * bias.column]) <= bound) {
          mask[k * kTileQueries + q] = T(0);
        }
      }
    }
  });
  return hides;
}

/// Adds a tile of score gradients to those of the bias, of type T.
template <typename T>
void add_bias_gradients(const MutableRows& to, const Tile& t, const T* mask, const T* grad) {
  T* data = static_cast<T*>(to.data);
  for (int64_t q = 0; q < t.queries; ++q) {
    T* row = data + (t.first_query + q) * to.row + t.first_key * to.column;
    for (int64_t k = 0; k < t.keys; ++k) {
      if (seen(t, mask, k, q)) {
        row[k * to.column] += grad[k * kTileQueries + q];
      }
    }
  }
}

}  // namespace
}  // namespace posenc::attention_ops
