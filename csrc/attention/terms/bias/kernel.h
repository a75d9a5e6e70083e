#pragma once

/// A bias that the caller holds, one number for each query and key, for kernel files only.

#include "attention/terms/bias/bound.h"
#include "attention/terms/bias/head.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

/// hiding_bound() for scores of T.
template <typename T>
T hiding_bound_of(const ConstRows& bias) {
  return static_cast<T>(
      hiding_bound(bias.type, std::is_same_v<T, double> ? ElementType::kDouble : ElementType::kFloat));
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
  const T bound = hiding_bound_of<T>(bias);
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
/// otherwise says what the tile's cover says. `expected`: that some do, so that the bias is read once; else it is read
/// again where some do.
template <typename T>
bool add_bias(const ConstRows& bias, const Visibility& v, const Tile& t, bool expected, T* mask, T* scores) {
  const Vec<T> bound(hiding_bound_of<T>(bias)), log2e(static_cast<T>(kLog2E)), zero(T(0));
  Vec<T> hidden(T(0));
  const auto add = [&](int64_t k, int64_t q, const Vec<T>& x) {
    T* to = scores + k * kTileQueries + q;
    hidden = hidden | (x <= bound);
    fmadd(x, log2e, Vec<T>::loadu(to)).store(to);
  };
  const auto hide = [&](int64_t k, int64_t q, const Vec<T>& x) {
    T* to = mask + k * kTileQueries + q;
    Vec<T>::blendv(Vec<T>::loadu(to), zero, x <= bound).store(to);
  };
  const auto begin_mask = [&] {
    if (t.cover != Cover::kSome) {
      fill_mask(v, t, mask);
    }
  };
  if (expected) {
    begin_mask();
    for_each_bias<T>(bias, t, [&](int64_t k, int64_t q, const Vec<T>& x) {
      add(k, q, x);
      hide(k, q, x);
    });
    return cpu::any_lane(hidden);
  }
  for_each_bias<T>(bias, t, add);
  if (!cpu::any_lane(hidden)) {
    return false;
  }
  begin_mask();
  for_each_bias<T>(bias, t, hide);
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

template <typename T>
class BiasTile : public TileTerm<T> {
 public:
  static int64_t size(const BiasHead<T>& /*head*/, const TileContext<T>& /*context*/) { return 0; }

  BiasTile(const BiasHead<T>& head, const BiasGradient<T>* grad, const TileContext<T>& context, T* /*at*/)
      : bias_(head.rows), grad_(grad), visible_(*context.visible) {}

  bool hides(const Tile& t) const { return hides_all<T>(bias_, t); }
  bool changes_scores() const { return true; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* mask, T* scores) {
    hides_some_ = add_bias(bias_, visible_, t, hides_some_, mask, scores);
    if (hides_some_) {
      t.cover = Cover::kSome;
      t.diagonal = kNoDiagonal;
    }
  }

  void accumulate_gradients(const Tile& t, const T* mask, const T* grad) {
    if (grad_->rows.data != nullptr) {
      add_bias_gradients(grad_->rows, t, mask, grad);
    }
  }

 private:
  const ConstRows& bias_;
  const BiasGradient<T>* grad_;
  const Visibility& visible_;
  /// Of the last tile; the next one is probably alike.
  bool hides_some_ = false;
};

template <typename T>
class BiasDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  BiasDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* /*at*/)
      : heads_(heads), queries_(context.queries) {}

  bool used() const { return std::get<BiasHead<T>>(*heads_).used(); }
  bool needs_mask() const { return true; }

  void add(DecodeRow<T>& row) {
    const ConstRows& bias = std::get<BiasHead<T>>(heads_[row.row / queries_]).rows;
    const T bound = hiding_bound_of<T>(bias);
    bool hides = false;
    with_type(bias.data, bias.type, [&](const auto* data) {
      const auto* from = data + row.query * bias.row + row.block.first_key * bias.column;
      for (int64_t k = 0; k < row.block.keys; ++k) {
        const T x = converted<T>(from[k * bias.column]);
        row.scores[k] += x * static_cast<T>(kLog2E);
        hides = hides || x <= bound;
        row.visible[k] = x <= bound ? T(0) : row.visible[k];
      }
    });
    row.partial = row.partial || hides;
  }

 private:
  const Heads<T>* heads_;
  int64_t queries_;
};

}  // namespace
}  // namespace posenc::attention_ops
