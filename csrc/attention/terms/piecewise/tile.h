#pragma once

/// Scores of near keys from one pair of queries and keys, those of far keys from another (ReRoPE, Self-Extend:
/// arXiv 2401.01325), for kernel files only. Only tiles that the threshold crosses need both products.

#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

/// Queries and keys whose products go into scores, and where their gradients are summed.
template <typename T>
struct Operands {
  /// scale * log2 e * queries as score_product() takes them.
  const T* query;
  /// All keys of the head.
  PackedRows<T> key;
  /// Both as pairs of bfloat16, whose products lack the factor `scale`. data null: there are none.
  const T* query_pairs;
  PackedRows<T> key_pairs;
  T scale;
  /// Backward: scale * queries, and whether one of them is not finite; sums of the queries' gradients (null: not
  /// wanted), rows of the padded width, still without the factor scale.
  const T* query_rows;
  bool wild_query;
  T* grad_query;
  GradientRows<T> grad_key;
};

template <typename T>
class Piecewise {
 public:
  /// Elements of T that an object needs.
  static int64_t size(const Shape& s, bool backward) {
    const int64_t rows = s.width + padded<T>(s.width) + 2 * kTileKeys + (backward ? padded<T>(s.width) : 0);
    return s.far ? rows * kTileQueries : 0;
  }

  Piecewise(const FarOperands<T>& far, const Visibility& visible, const Shape& s, bool backward, T* at)
      : far_(far), visible_(visible), width_(s.width) {
    const auto rows = [&](int64_t n) { return std::exchange(at, at + n * kTileQueries); };
    if (!used()) {
      return;
    }
    query_ = rows(s.width);
    rows_ = rows(padded<T>(s.width));
    scores_ = rows(kTileKeys);
    chosen_ = rows(kTileKeys);
    grad_query_ = backward ? rows(padded<T>(s.width)) : nullptr;
  }

  bool used() const { return far_.query.data != nullptr; }

  /// Takes over the far queries of a tile.
  void begin(const Tile& t, double scale) {
    const int64_t row = padded<T>(width_);
    pack_queries(far_.query, t, width_, rows_);
    pack_transposed(rows_, t, width_, static_cast<T>(scale * kLog2E), query_);
    if (grad_query_ != nullptr) {
      scale_rows(rows_, t.queries * row, scale);
      wild_query_ = any_infinite(rows_, row, t.queries, row);
      std::fill(grad_query_, grad_query_ + t.queries * row, T(0));
    }
  }

  /// Finds out on which side of the threshold a tile lies.
  void meet(const Tile& t) {
    const Range<double> distances = range_of_distances(visible_, t);
    const double threshold = static_cast<double>(far_.threshold);
    side_ = -distances.smallest < threshold ? Side::kNear : -distances.largest >= threshold ? Side::kFar : Side::kBoth;
  }

  bool crossed() const { return side_ == Side::kBoth; }

  /// The scores of a tile; `largest` as for score_product(), null where the threshold crosses it.
  void score(const Tile& t, const Operands<T>& near, T* scores, T* largest) {
    const auto product = [&](const Operands<T>& o, T* to) {
      score_product(o.key.from(t.first_key), o.query, t.keys, t.lanes, width_, t.diagonal, to, largest);
    };
    if (side_ != Side::kBoth) {
      product(side_ == Side::kNear ? near : operands({}, nullptr), scores);
      return;
    }
    product(near, scores);
    product(operands({}, nullptr), scores_);
    choose_near(t);
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for (int64_t at = q; at < keys.some * kTileQueries; at += kTileQueries) {
        const Vec<T> is_near = Vec<T>::loadu(chosen_ + at) != Vec<T>(T(0));
        Vec<T>::blendv(Vec<T>::loadu(scores_ + at), Vec<T>::loadu(scores + at), is_near).store(scores + at);
      }
    });
  }

  /// Calls body(tile, mask, grad, operands) with each side's part of a tile's score gradients. `grad` is spent.
  template <typename Body>
  void for_each_side(const Tile& t, const T* mask, const Operands<T>& near, const GradientRows<T>& grad_far_key,
                     bool wants_query, T* grad, const Body& body) {
    const Operands<T> far = operands(grad_far_key, wants_query ? grad_query_ : nullptr);
    if (side_ != Side::kBoth) {
      body(t, mask, grad, side_ == Side::kNear ? near : far);
      return;
    }
    Tile part = t;
    part.cover = Cover::kSome;
    part.diagonal = kNoDiagonal;
    choose_near(t);
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.lanes; ++q) {
        const int64_t at = k * kTileQueries + q;
        const bool is_near = chosen_[at] != T(0), is_seen = seen(t, mask, k, q);
        scores_[at] = is_seen && !is_near ? grad[at] : T(0);
        grad[at] = is_seen && is_near ? grad[at] : T(0);
        chosen_[at] = is_seen && is_near ? T(1) : T(0);
      }
    }
    body(part, chosen_, grad, near);
    choose_near(t);
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.lanes; ++q) {
        T& chosen = chosen_[k * kTileQueries + q];
        chosen = chosen == T(0) && seen(t, mask, k, q) ? T(1) : T(0);
      }
    }
    body(part, chosen_, scores_, far);
  }

  /// Gradients of the far queries, still without the factor scale.
  T* grad_query() { return grad_query_; }

 private:
  enum class Side { kNear, kFar, kBoth };

  Operands<T> operands(const GradientRows<T>& grad_key, T* grad_query) const {
    return {.query = query_,
            .key = far_.key,
            .query_pairs = nullptr,
            .key_pairs = {},
            .scale = T(1),
            .query_rows = rows_,
            .wild_query = wild_query_,
            .grad_query = grad_query,
            .grad_key = grad_key};
  }

  /// chosen_[key][query]: 1 where the key is near, else 0.
  void choose_near(const Tile& t) {
    for (int64_t k = 0; k < t.keys; ++k) {
      T* row = chosen_ + k * kTileQueries;
      if (visible_.q_positions == nullptr) {
        const int64_t first_far = far_.threshold - (t.first_query + visible_.offset - t.first_key - k);
        const int64_t near = std::clamp<int64_t>(first_far, 0, t.lanes);
        std::fill(row, row + near, T(1));
        std::fill(row + near, row + t.lanes, T(0));
      } else {
        for (int64_t q = 0; q < t.lanes; ++q) {
          row[q] = q < t.queries && -distance_of(visible_, t, k, q) < far_.threshold ? T(1) : T(0);
        }
      }
    }
  }

  const FarOperands<T>& far_;
  const Visibility& visible_;
  int64_t width_;
  Side side_ = Side::kNear;
  bool wild_query_ = false;
  T *query_ = nullptr, *rows_ = nullptr, *scores_ = nullptr, *chosen_ = nullptr, *grad_query_ = nullptr;
};

}  // namespace
}  // namespace posenc::attention_ops
