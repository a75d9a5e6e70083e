#pragma once

/// What is added to a tile of scores, by every policy, and with it what hides keys, for kernel files only.

#include "attention/policies/bias.h"
#include "attention/policies/distance.h"
#include "attention/tile.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
bool has_bias(const ScoreBias<T>& b) {
  return depends_on_distance(b) || b.bias.data != nullptr;
}

/// Adds to a tile of scores and fills its mask where the cover needs one; a bias that hides keys changes the cover.
/// `strip` has room for kStrip numbers.
template <typename T>
void add_biases(const ScoreBias<T>& b, const Visibility& v, Tile& t, T* strip, T* mask, T* scores) {
  if (depends_on_distance(b)) {
    add_distance_bias(b, v, t, strip, scores);
  }
  if (t.cover == Cover::kSome) {
    fill_mask(v, t, mask);
  }
  if (b.bias.data != nullptr && add_bias(b.bias, v, t, mask, scores)) {
    t.cover = Cover::kSome;
    t.diagonal = kNoDiagonal;
  }
}

}  // namespace
}  // namespace posenc::attention_ops
