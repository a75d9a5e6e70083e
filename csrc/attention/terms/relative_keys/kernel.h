#pragma once

/// A table over distances that is multiplied with keys (DeBERTa), for kernel files only. The products of a head's keys
/// with all entries are there before its tiles: a tile reads its scores from them, and adds the scores' gradients to
/// theirs.

#include "attention/terms/heads.h"
#include "attention/tile/diagonals.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class RelativeKeysTile : public TileTerm<T> {
 public:
  static int64_t size(const RelativeKeysHead<T>& /*head*/, const TileContext<T>& /*context*/) { return 0; }

  RelativeKeysTile(const RelativeKeysHead<T>& head, const RelativeKeysGradient<T>* grad, const TileContext<T>& context,
                   T* /*at*/)
      : head_(head), grad_(grad), visible_(*context.visible) {}

  bool changes_scores() const { return true; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* /*mask*/, T* scores) {
    if (!visible_.by_index()) {
      for_each_pair(t, [&](int64_t k, int64_t q) { scores[k * kTileQueries + q] += head_.product[place(t, k, q)]; });
      return;
    }
    for_each_row(t, head_.product, [&](int64_t k, int64_t q, int64_t place) {
      T* to = scores + k * kTileQueries + q;
      (Vec<T>::loadu(to) + Vec<T>::loadu(head_.product + place)).store(to);
    });
  }

  void accumulate_gradients(const Tile& t, const T* /*mask*/, const T* grad) {
    T* sums = grad_->product;
    if (sums == nullptr) {
      return;
    }
    if (!visible_.by_index()) {
      for_each_pair(t, [&](int64_t k, int64_t q) { sums[place(t, k, q)] += grad[k * kTileQueries + q]; });
      return;
    }
    for_each_row(t, sums, [&](int64_t k, int64_t q, int64_t place) {
      T* to = sums + place;
      (Vec<T>::loadu(to) + Vec<T>::loadu(grad + k * kTileQueries + q)).store(to);
    });
  }

 private:
  /// Rows of products that are asked for before they are read: they are too far apart for the processor to see them
  /// coming.
  static constexpr int64_t kRowsAhead = 4;

  /// Calls body(k, q, place) for the vectors of queries q that see a key k, where positions count up by one.
  template <typename Body>
  void for_each_row(const Tile& t, const T* products, const Body& body) const {
    for (int64_t k = 0; k < t.keys; ++k) {
      cpu::prefetch(products + first_place(t, std::min(k + kRowsAhead, t.keys - 1)), kTileQueries);
      const int64_t place = first_place(t, k);
      for (int64_t q = std::max<int64_t>(0, k + t.diagonal) / kGroup<T> * kGroup<T>; q < t.lanes; q += Vec<T>::size()) {
        body(k, q, place + q);
      }
    }
  }

  /// Of query 0 of the tile, where positions count up by one.
  int64_t first_place(const Tile& t, int64_t k) const {
    const int64_t key = t.first_key + k, distance = t.first_query + visible_.offset - key;
    return key * product_row(head_.radius) + kRepeatedEntries + head_.radius +
           std::clamp(distance, -(head_.radius + kRepeatedEntries), head_.radius + 1);
  }

  int64_t place(const Tile& t, int64_t k, int64_t q) const {
    return (t.first_key + k) * product_row(head_.radius) + kRepeatedEntries +
           clipped_entry(-distance_of(visible_, t, k, q), head_.radius);
  }

  const RelativeKeysHead<T>& head_;
  const RelativeKeysGradient<T>* grad_;
  const Visibility& visible_;
};

template <typename T>
class RelativeKeysDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
    const auto& head = std::get<RelativeKeysHead<T>>(heads);
    return head.used() ? context.heads * table_size(head) + context.rows() * kDecodeKeys : 0;
  }

  RelativeKeysDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* at)
      : heads_(heads), context_(context), tables_(at), scores_(at + context.heads * table_size(head(0))) {}

  bool used() const { return head(0).used(); }

  template <typename Product>
  void begin(int64_t begin, int64_t end, const Product& product) {
    if (begin == end) {
      return;
    }
    Tile t{};
    t.queries = context_.queries;
    t.first_key = begin;
    t.keys = end - begin;
    const Range<int64_t> distances = range_of_distances(*context_.visible, t);
    first_ = entry(distances.largest);
    const int64_t count = entry(distances.smallest) + 1 - first_;
    for (int64_t h = 0; h < context_.heads; ++h) {
      product.arrange(head(h).table.from(first_), count, tables_ + h * table_size(head(0)));
    }
  }

  template <typename Product>
  void begin_block(const Tile& block, const Product& product, const T* /*scores*/) {
    int64_t distance[kDecodeKeys];
    for (int64_t q = 0; q < context_.queries; ++q) {
      fill_distances(*context_.visible, block, q, distance);
      for (int64_t h = 0; h < context_.heads; ++h) {
        const T* table = tables_ + h * table_size(head(0));
        const auto row = [&](int64_t k) {
          return table + (entry(distance[k]) - first_) * whole_steps<T>(head(0).width);
        };
        product.of_rows(row, scores_ + (h * context_.queries + q) * kDecodeKeys);
      }
    }
  }

  void add(DecodeRow<T>& row) {
    const T* more = scores_ + row.row * kDecodeKeys;
    for (int64_t k = 0; k < row.block.keys; ++k) {
      row.scores[k] += more[k];
    }
  }

 private:
  static int64_t table_size(const RelativeKeysHead<T>& head) {
    return head.used() ? head.entries() * whole_steps<T>(head.width) : 0;
  }

  const RelativeKeysHead<T>& head(int64_t h) const { return std::get<RelativeKeysHead<T>>(heads_[h]); }
  int64_t entry(int64_t distance) const { return clipped_entry(-distance, head(0).radius); }

  const Heads<T>* heads_;
  DecodeContext<T> context_;
  /// The entries in reach for each head, arranged as rows of queries are, and what a block's scores get of them.
  T *tables_, *scores_;
  int64_t first_ = 0;
};

}  // namespace
}  // namespace posenc::attention_ops
