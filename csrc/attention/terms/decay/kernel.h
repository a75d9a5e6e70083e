#pragma once

/// A bias that grows token by token (forgetting attention, arXiv 2503.02130): the difference of two sums, that of the
/// query's own key and that of the key. For kernel files only.

#include "attention/terms/decay/head.h"
#include "attention/tile/term.h"

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
void add_decay(const DecayHead<T>& head, const Visibility& v, const Tile& t, T* scores) {
  const double* sums = head.sums;
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
  if (head.undefined != nullptr) {
    add_undefined_decay(head.undefined, v, t, scores);
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

template <typename T>
class DecayTile : public TileTerm<T> {
 public:
  static int64_t size(const DecayHead<T>& /*head*/, const TileContext<T>& /*context*/) { return 0; }

  DecayTile(const DecayHead<T>& head, const DecayGradient<T>* grad, const TileContext<T>& context, T* /*at*/)
      : head_(head), grad_(grad), visible_(*context.visible) {}

  bool changes_scores() const { return true; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) { add_decay(head_, visible_, t, scores); }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    if (grad_->sums != nullptr) {
      add_decay_gradients(visible_, t, grad, grad_->sums);
    }
  }

 private:
  const DecayHead<T>& head_;
  const DecayGradient<T>* grad_;
  const Visibility& visible_;
};

template <typename T>
class DecayDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  DecayDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* /*at*/)
      : heads_(heads), queries_(context.queries), visible_(*context.visible) {}

  bool used() const { return std::get<DecayHead<T>>(*heads_).used(); }

  /// Adds the very number that a tile gets, as the backward pass walks tiles.
  void add(DecodeRow<T>& row) {
    const auto& head = std::get<DecayHead<T>>(heads_[row.row / queries_]);
    const Tile& t = row.block;
    const int64_t own = own_key(visible_, t, row.query);
    const double base = head.sums[own_key(visible_, t, 0)];
    const Parts<T> of_query = parts_of<T>((head.sums[own] - base) * kLog2E);
    for (int64_t k = 0; k < t.keys; ++k) {
      const Parts<T> of_key = parts_of<T>((base - head.sums[t.first_key + k]) * kLog2E);
      row.scores[k] += (of_query.most + of_key.most) + (of_query.rest + of_key.rest);
    }
    for (int64_t k = 0; head.undefined != nullptr && k < t.keys; ++k) {
      if (head.undefined[own] != head.undefined[t.first_key + k]) {
        row.scores[k] = std::numeric_limits<T>::quiet_NaN();
      }
    }
  }

 private:
  const Heads<T>* heads_;
  int64_t queries_;
  const Visibility& visible_;
};

}  // namespace
}  // namespace posenc::attention_ops
