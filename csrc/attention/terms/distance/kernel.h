#pragma once

/// Biases that are functions of the distance, for kernel files only.

#include "attention/terms/distance/head.h"
#include "attention/tile/diagonals.h"

#include <cmath>

namespace posenc::attention_ops {
namespace {

/// The bias at a distance, in base 2.
template <typename T>
T at_distance(const DistanceHead<T>& head, int64_t distance) {
  double bias = -head.slope * static_cast<double>(std::abs(distance));
  if (head.table != nullptr) {
    bias += head.table[clipped_entry(distance, head.radius)];
  }
  return static_cast<T>(bias * kLog2E);
}

template <typename T>
class DistanceTile : public TileTerm<T> {
 public:
  static int64_t size(const DistanceHead<T>& /*head*/, const TileContext<T>& /*context*/) { return kDiagonals; }

  DistanceTile(const DistanceHead<T>& head, const DistanceGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), visible_(*context.visible), by_diagonal_(at) {}

  bool changes_scores() const { return true; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) {
    if (!visible_.by_index()) {
      for_each_pair(t, [&](int64_t k, int64_t q) {
        scores[k * kTileQueries + q] += at_distance(head_, distance_of(visible_, t, k, q));
      });
      return;
    }
    for_each_diagonal(visible_, t,
                      [&](int64_t x, int64_t distance) { by_diagonal_[x] = at_distance(head_, distance); });
    for (int64_t k = 0; k < t.keys; ++k) {
      T* row = scores + k * kTileQueries;
      const T* bias = by_diagonal_ + first_diagonal(k);
      for (int64_t q = 0; q < t.lanes; q += Vec<T>::size()) {
        (Vec<T>::loadu(row + q) + Vec<T>::loadu(bias + q)).store(row + q);
      }
    }
  }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    if (grad_->table == nullptr && grad_->slope == nullptr) {
      return;
    }
    const auto add = [&](int64_t distance, double g) {
      if (grad_->table != nullptr) {
        grad_->table[clipped_entry(distance, head_.radius)] += g;
      }
      if (grad_->slope != nullptr) {
        *grad_->slope -= g * static_cast<double>(std::abs(distance));
      }
    };
    if (!visible_.by_index()) {
      for_each_pair(t, [&](int64_t k, int64_t q) { add(distance_of(visible_, t, k, q), grad[k * kTileQueries + q]); });
      return;
    }
    sum_by_diagonal(t, grad, by_diagonal_);
    for_each_diagonal(visible_, t, [&](int64_t x, int64_t distance) { add(distance, by_diagonal_[x]); });
  }

 private:
  const DistanceHead<T>& head_;
  const DistanceGradient<T>* grad_;
  const Visibility& visible_;
  T* by_diagonal_;
};

template <typename T>
class DistanceDecode : public DecodeTerm<T> {
 public:
  static constexpr bool kNeedsDistance = true;
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  DistanceDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* /*at*/)
      : heads_(heads), queries_(context.queries) {}

  bool used() const { return std::get<DistanceHead<T>>(*heads_).used(); }

  void add(DecodeRow<T>& row) {
    const auto& head = std::get<DistanceHead<T>>(heads_[row.row / queries_]);
    if (head.slope != 0.0) {
      const double slope = head.slope * kLog2E;
      for (int64_t k = 0; k < row.block.keys; ++k) {
        row.scores[k] -= static_cast<T>(slope * std::abs(static_cast<double>(row.distance[k])));
      }
    }
    if (head.table != nullptr) {
      for (int64_t k = 0; k < row.block.keys; ++k) {
        row.scores[k] += static_cast<T>(head.table[clipped_entry(row.distance[k], head.radius)] * kLog2E);
      }
    }
  }

 private:
  const Heads<T>* heads_;
  int64_t queries_;
};

}  // namespace
}  // namespace posenc::attention_ops
