#pragma once

/// Scores of near keys from one pair of queries and keys, those of far keys from another (ReRoPE, Self-Extend:
/// arXiv 2401.01325), for kernel files only. Only tiles that the threshold crosses need both products.

#include "attention/terms/heads.h"
#include "attention/tile/diagonals.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class PiecewiseTile : public TileTerm<T> {
 public:
  static int64_t size(const PiecewiseHead<T>& /*head*/, const TileContext<T>& c) {
    return (c.width + padded<T>(c.width) + 2 * kTileKeys + (c.backward ? padded<T>(c.width) : 0)) * kTileQueries;
  }

  PiecewiseTile(const PiecewiseHead<T>& head, const PiecewiseGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), context_(context), visible_(*context.visible) {
    const auto rows = [&](int64_t n) { return std::exchange(at, at + n * kTileQueries); };
    query_ = rows(context.width);
    rows_ = rows(padded<T>(context.width));
    scores_ = rows(kTileKeys);
    chosen_ = rows(kTileKeys);
    grad_query_ = context.backward ? rows(padded<T>(context.width)) : nullptr;
  }

  void begin(const TileRows<T>& rows) {
    const Tile& t = rows.tile;
    const int64_t row = padded<T>(context_.width);
    pack_queries(head_.query, t, context_.width, rows_);
    pack_transposed(rows_, t, context_.width, static_cast<T>(context_.scale * kLog2E), query_);
    if (context_.backward) {
      scale_rows(rows_, t.queries * row, context_.scale);
      query_is_nonfinite_ = any_nonfinite(rows_, row, t.queries, row);
      std::fill(grad_query_, grad_query_ + t.queries * row, T(0));
    }
  }

  /// Finds out on which side of the threshold a tile lies.
  void begin_tile(const Tile& t) {
    const Range<int64_t> distances = range_of_distances(visible_, t);
    side_ = -distances.smallest < head_.threshold   ? Side::kNear
            : -distances.largest >= head_.threshold ? Side::kFar
                                                    : Side::kBoth;
  }

  bool changes_scores() const { return side_ == Side::kBoth; }

  bool make_product(const Tile& t, const Operands<T>& near, T* scores, T* largest) {
    if (side_ != Side::kBoth) {
      product_of(side_ == Side::kNear ? near : operands({}, nullptr), t, context_.width, scores, largest);
      return true;
    }
    product_of(near, t, context_.width, scores, largest);
    product_of(operands({}, nullptr), t, context_.width, scores_, largest);
    choose_near(t);
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      for (int64_t at = q; at < keys.some * kTileQueries; at += kTileQueries) {
        const Vec<T> is_near = Vec<T>::loadu(chosen_ + at) != Vec<T>(T(0));
        Vec<T>::blendv(Vec<T>::loadu(scores_ + at), Vec<T>::loadu(scores + at), is_near).store(scores + at);
      }
    });
    return true;
  }

  template <typename Body>
  bool take_products(const Tile& t, const T* mask, const Operands<T>& near, T* grad, const Body& body) {
    const Operands<T> far = operands(grad_->key, grad_->query.data != nullptr ? grad_query_ : nullptr);
    if (side_ != Side::kBoth) {
      body(t, mask, grad, side_ == Side::kNear ? near : far);
      return true;
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
    return true;
  }

  void finish(const ForwardSums<T>& /*sums*/) {}
  void finish(const BackwardSums<T>& sums) {
    if (grad_->query.data != nullptr) {
      unpack_scaled(grad_query_, sums.tile.queries, context_.width, context_.scale, grad_->query);
    }
  }

 private:
  enum class Side { kNear, kFar, kBoth };

  Operands<T> operands(const GradientRows<T>& grad_key, T* grad_query) const {
    return {.query = query_,
            .key = head_.key,
            .query_pairs = nullptr,
            .key_pairs = {},
            .scale = T(1),
            .query_rows = rows_,
            .query_is_nonfinite = query_is_nonfinite_,
            .grad_query = grad_query,
            .grad_key = grad_key};
  }

  /// chosen_[key][query]: 1 where the key is near, else 0.
  void choose_near(const Tile& t) {
    for (int64_t k = 0; k < t.keys; ++k) {
      T* row = chosen_ + k * kTileQueries;
      if (visible_.by_index()) {
        const int64_t first_far = head_.threshold - (t.first_query + visible_.offset - t.first_key - k);
        const int64_t near = std::clamp<int64_t>(first_far, 0, t.lanes);
        std::fill(row, row + near, T(1));
        std::fill(row + near, row + t.lanes, T(0));
      } else {
        for (int64_t q = 0; q < t.lanes; ++q) {
          row[q] = q < t.queries && -distance_of(visible_, t, k, q) < head_.threshold ? T(1) : T(0);
        }
      }
    }
  }

  const PiecewiseHead<T>& head_;
  const PiecewiseGradient<T>* grad_;
  TileContext<T> context_;
  const Visibility& visible_;
  Side side_ = Side::kNear;
  bool query_is_nonfinite_ = false;
  T *query_, *rows_, *scores_, *chosen_, *grad_query_;
};

template <typename T>
class PiecewiseDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
    const int64_t row = whole_steps<T>(context.width) + kDecodeKeys;
    return std::get<PiecewiseHead<T>>(heads).used() ? context.rows() * row : 0;
  }

  PiecewiseDecode(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* at)
      : head_(std::get<PiecewiseHead<T>>(*heads)),
        rows_(std::get<PiecewiseRows<T>>(rows)),
        context_(context),
        query_(at),
        far_scores_(at + context.rows() * whole_steps<T>(context.width)) {}

  bool used() const { return head_.used(); }

  template <typename Product>
  void begin(int64_t /*begin*/, int64_t /*end*/, const Product& product) {
    product.arrange(rows_.query, query_);
  }

  template <typename Product>
  bool make_product(const Tile& block, const Product& product, T* scores) {
    const Range<int64_t> distances = range_of_distances(*context_.visible, block);
    if (-distances.smallest < head_.threshold) {
      return false;
    }
    if (-distances.largest >= head_.threshold) {
      product(query_, rows_.key, scores);
      return true;
    }
    product.near(scores);
    product(query_, rows_.key, far_scores_);
    int64_t distance[kDecodeKeys];
    for (int64_t r = 0; r < context_.rows(); ++r) {
      fill_distances(*context_.visible, block, r % context_.queries, distance);
      T* to = scores + r * kDecodeKeys;
      const T* far = far_scores_ + r * kDecodeKeys;
      for (int64_t k = 0; k < block.keys; ++k) {
        to[k] = -distance[k] >= head_.threshold ? far[k] : to[k];
      }
    }
    return true;
  }

 private:
  const PiecewiseHead<T>& head_;
  const PiecewiseRows<T>& rows_;
  DecodeContext<T> context_;
  T *query_, *far_scores_;
};

}  // namespace
}  // namespace posenc::attention_ops
