#pragma once

/// FIRE's bias (arXiv 2310.04418), for kernel files only: a function of x = warp(distance) / norm(query) that is linear
/// in segments between knots. Along a row of keys x moves slowly, so the segment of a query rarely changes: a score
/// costs a multiply-add and a comparison with the segment's ends.

#include "attention/terms/heads.h"
#include "attention/tile/diagonals.h"

#include <cmath>

namespace posenc::attention_ops {
namespace {

template <typename T>
T warp_of(const FireHead<T>& head, int64_t distance) {
  const int64_t n = std::abs(distance);
  return head.warp != nullptr ? head.warp[std::min(n, head.longest)]
                              : static_cast<T>(std::log1p(std::abs(head.rate * static_cast<double>(n))));
}

/// The number of knots that are at most x.
template <typename T>
int64_t segment_of(const FireHead<T>& head, T x) {
  return std::upper_bound(head.knots, head.knots + head.segments - 1, x) - head.knots;
}

template <typename T>
T segment_begin(const FireHead<T>& head, int64_t segment) {
  return segment == 0 ? -std::numeric_limits<T>::infinity() : head.knots[segment - 1];
}

template <typename T>
T segment_end(const FireHead<T>& head, int64_t segment) {
  return segment == head.segments - 1 ? std::numeric_limits<T>::infinity() : head.knots[segment];
}

/// The segments of a vector of queries, which move on with x.
template <typename T>
class Segments {
 public:
  explicit Segments(const FireHead<T>& head) : head_(head) {
    std::fill(begin_, begin_ + kLanes, std::numeric_limits<T>::infinity());
    std::fill(end_, end_ + kLanes, -std::numeric_limits<T>::infinity());
    load();
  }

  Vec<T> offset, slope;

  /// Lanes whose x lies outside their segment.
  Vec<T> left(const Vec<T>& x) const { return (x < begin) | (x >= end); }

  /// Moves those lanes to the segment of their x. Calls leave(lane, segment) before.
  template <typename Leave>
  void move(const Vec<T>& x, const Leave& leave) {
    alignas(64) T at[kLanes];
    x.store(at);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (at[lane] < begin_[lane] || at[lane] >= end_[lane]) {
        leave(lane, segment_[lane]);
        const int64_t s = segment_of(head_, at[lane]);
        segment_[lane] = s;
        begin_[lane] = segment_begin(head_, s);
        end_[lane] = segment_end(head_, s);
        offset_[lane] = head_.offset[s];
        slope_[lane] = head_.slope[s];
      }
    }
    load();
  }

  int64_t segment(int lane) const { return segment_[lane]; }

 private:
  static constexpr int kLanes = Vec<T>::size();

  void load() {
    begin = Vec<T>::loadu(begin_);
    end = Vec<T>::loadu(end_);
    offset = Vec<T>::loadu(offset_);
    slope = Vec<T>::loadu(slope_);
  }

  const FireHead<T>& head_;
  Vec<T> begin, end;
  alignas(64) T begin_[kLanes], end_[kLanes], offset_[kLanes] = {}, slope_[kLanes] = {};
  int64_t segment_[kLanes] = {};
};

template <typename T>
class FireTile : public TileTerm<T> {
 public:
  static int64_t size(const FireHead<T>& /*head*/, const TileContext<T>& /*context*/) {
    return kTileQueries + 2 * kDiagonals + kTileKeys * kTileQueries;
  }

  FireTile(const FireHead<T>& head, const FireGradient<T>* grad, const TileContext<T>& context, T* at)
      : head_(head), grad_(grad), visible_(*context.visible) {
    inverse_norm_ = std::exchange(at, at + kTileQueries);
    by_diagonal_ = std::exchange(at, at + kDiagonals);
    rate_by_diagonal_ = std::exchange(at, at + kDiagonals);
    by_pair_ = at;
  }

  void begin(const TileRows<T>& rows) {
    const Tile& t = rows.tile;
    std::copy(head_.inverse_norm + t.first_query, head_.inverse_norm + t.first_query + t.queries, inverse_norm_);
    std::fill(inverse_norm_ + t.queries, inverse_norm_ + t.lanes, T(0));
  }

  bool changes_scores() const { return true; }

  void begin_tile(const Tile& t) {
    if (visible_.by_index()) {
      for_each_diagonal(visible_, t, [&](int64_t x, int64_t distance) { by_diagonal_[x] = warp_of(head_, distance); });
      return;
    }
    for (int64_t k = 0; k < t.keys; ++k) {
      for (int64_t q = 0; q < t.lanes; ++q) {
        by_pair_[k * kTileQueries + q] = q < t.queries ? warp_of(head_, distance_of(visible_, t, k, q)) : T(0);
      }
    }
  }

  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) {
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) {
      const Vec<T> inverse_norm = Vec<T>::loadu(inverse_norm_ + q);
      Segments<T> segments(head_);
      for (int64_t k = 0; k < keys.some; ++k) {
        const Vec<T> x = warped(k, q) * inverse_norm;
        if (cpu::any_lane(segments.left(x))) {
          segments.move(x, [](int, int64_t) {});
        }
        T* to = scores + k * kTileQueries + q;
        (Vec<T>::loadu(to) + fmadd(segments.slope, x, segments.offset)).store(to);
      }
    });
  }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    if (grad_->offset == nullptr && grad_->slope == nullptr && grad_->norm == nullptr && grad_->rate == nullptr) {
      return;
    }
    std::fill(rate_by_diagonal_, rate_by_diagonal_ + kDiagonals, T(0));
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) { sum_lanes(t, q, keys.some, grad); });
    if (grad_->rate != nullptr && visible_.by_index()) {
      for_each_diagonal(visible_, t, [&](int64_t x, int64_t distance) {
        *grad_->rate += static_cast<double>(rate_by_diagonal_[x]) * kLn2 * warp_slope(distance);
      });
    }
  }

 private:
  static constexpr int kLanes = Vec<T>::size();

  Vec<T> warped(int64_t k, int64_t q) const {
    return Vec<T>::loadu(visible_.by_index() ? by_diagonal_ + first_diagonal(k) + q : by_pair_ + k * kTileQueries + q);
  }

  /// d warp / d rate.
  double warp_slope(int64_t distance) const {
    const double n = std::abs(static_cast<double>(distance)), sign = head_.rate < 0 ? -1.0 : head_.rate > 0 ? 1.0 : 0.0;
    return sign * n / (1.0 + std::abs(head_.rate * n));
  }

  /// The sums of a vector of queries from q on, over keys 0 .. keys - 1 of a tile.
  void sum_lanes(const Tile& t, int64_t q, int64_t keys, const T* grad) {
    const Vec<T> inverse_norm = Vec<T>::loadu(inverse_norm_ + q), zero(T(0));
    Segments<T> segments(head_);
    Vec<T> of_offset(T(0)), of_slope(T(0)), of_norm(T(0));
    const auto flush = [&](int lane, int64_t segment) {
      if (q + lane >= t.queries) {
        return;
      }
      alignas(64) T offsets[kLanes], slopes[kLanes];
      of_offset.store(offsets);
      of_slope.store(slopes);
      if (grad_->offset != nullptr) {
        grad_->offset[segment] += static_cast<double>(offsets[lane]);
      }
      if (grad_->slope != nullptr) {
        grad_->slope[segment] += static_cast<double>(slopes[lane]);
      }
    };
    for (int64_t k = 0; k < keys; ++k) {
      const Vec<T> x = warped(k, q) * inverse_norm, left = segments.left(x);
      if (cpu::any_lane(left)) {
        segments.move(x, flush);
        of_offset = Vec<T>::blendv(of_offset, zero, left);
        of_slope = Vec<T>::blendv(of_slope, zero, left);
      }
      const Vec<T> g = Vec<T>::loadu(grad + k * kTileQueries + q);
      of_offset = of_offset + g;
      of_slope = fmadd(g, x, of_slope);
      const Vec<T> of_x = g * segments.slope;
      of_norm = fmadd(of_x, x, of_norm);
      add_rate(t, k, q, of_x * inverse_norm);
    }
    alignas(64) T norms[kLanes];
    of_norm.store(norms);
    for (int lane = 0; lane < kLanes && q + lane < t.queries; ++lane) {
      flush(lane, segments.segment(lane));
      if (grad_->norm != nullptr) {
        grad_->norm[t.first_query + q + lane] += static_cast<double>(norms[lane]) * kLn2;
      }
    }
  }

  void add_rate(const Tile& t, int64_t k, int64_t q, const Vec<T>& of_warp) {
    if (grad_->rate == nullptr) {
      return;
    }
    if (visible_.by_index()) {
      T* to = rate_by_diagonal_ + first_diagonal(k) + q;
      (Vec<T>::loadu(to) + of_warp).store(to);
      return;
    }
    alignas(64) T lanes[kLanes];
    of_warp.store(lanes);
    for (int lane = 0; lane < kLanes && q + lane < t.queries; ++lane) {
      *grad_->rate += static_cast<double>(lanes[lane]) * kLn2 * warp_slope(distance_of(visible_, t, k, q + lane));
    }
  }

  const FireHead<T>& head_;
  const FireGradient<T>* grad_;
  const Visibility& visible_;
  T *inverse_norm_, *by_diagonal_, *rate_by_diagonal_, *by_pair_;
};

template <typename T>
class FireDecode : public DecodeTerm<T> {
 public:
  static constexpr bool kNeedsDistance = true;
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  FireDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* /*at*/)
      : heads_(heads), queries_(context.queries) {}

  bool used() const { return std::get<FireHead<T>>(*heads_).used(); }

  void add(DecodeRow<T>& row) {
    const auto& head = std::get<FireHead<T>>(heads_[row.row / queries_]);
    const T inverse_norm = head.inverse_norm[row.query];
    T begin = std::numeric_limits<T>::infinity(), end = -begin, offset(0), slope(0);
    for (int64_t k = 0; k < row.block.keys; ++k) {
      const T x = warp_of(head, row.distance[k]) * inverse_norm;
      if (x < begin || x >= end) {
        const int64_t s = segment_of(head, x);
        begin = segment_begin(head, s);
        end = segment_end(head, s);
        offset = head.offset[s];
        slope = head.slope[s];
      }
      row.scores[k] += offset + slope * x;
    }
  }

 private:
  const Heads<T>* heads_;
  int64_t queries_;
};

}  // namespace
}  // namespace posenc::attention_ops
