#pragma once

/// A mask that the caller holds, one bool for each query and key, for kernel files only.

#include "attention/terms/mask/head.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class MaskTile : public TileTerm<T> {
 public:
  static int64_t size(const MaskHead<T>& /*head*/, const TileContext<T>& /*context*/) { return 0; }

  MaskTile(const MaskHead<T>& head, const MaskGradient<T>* /*grad*/, const TileContext<T>& context, T* /*at*/)
      : head_(head), visible_(*context.visible) {}

  /// Looks at the tile's part of the mask: whether it hides all of it, or some.
  bool hides(const Tile& t) {
    uint8_t all[kTileKeys], any[kTileKeys];
    std::fill(all, all + t.keys, uint8_t{1});
    std::fill(any, any + t.keys, uint8_t{0});
    const int64_t rows = head_.row == 0 ? 1 : t.queries;
    for (int64_t q = 0; q < rows; ++q) {
      const bool* row = row_of(t, q);
      if (head_.column == 1) {
        for (int64_t k = 0; k < t.keys; ++k) {
          all[k] &= static_cast<uint8_t>(row[k]);
          any[k] |= static_cast<uint8_t>(row[k]);
        }
      } else {
        for (int64_t k = 0; k < t.keys; ++k) {
          all[k] &= static_cast<uint8_t>(row[k * head_.column]);
          any[k] |= static_cast<uint8_t>(row[k * head_.column]);
        }
      }
    }
    hides_some_ = std::any_of(all, all + t.keys, [](uint8_t x) { return x == 0; });
    return std::none_of(any, any + t.keys, [](uint8_t x) { return x != 0; });
  }

  /// The largest score is not known from the product where keys are hidden.
  bool changes_scores() const { return hides_some_; }

  void add(Tile& t, const Operands<T>& /*operands*/, T* mask, T* /*scores*/) {
    if (!hides_some_) {
      return;
    }
    if (t.cover != Cover::kSome) {
      fill_mask(visible_, t, mask);
    }
    constexpr int64_t kSide = Vec<T>::size();
    alignas(64) T rows[kSide * kSide], columns[kSide * kSide];
    for (int64_t q = 0; q < t.queries; q += kSide) {
      const int64_t queries = std::min(kSide, t.queries - q);
      std::fill(rows + queries * kSide, rows + kSide * kSide, T(0));
      for (int64_t k = 0; k < t.keys; k += kSide) {
        const int64_t keys = std::min(kSide, t.keys - k);
        for (int64_t i = 0; i < queries; ++i) {
          const bool* from = row_of(t, q + i) + k * head_.column;
          for (int64_t j = 0; j < keys; ++j) {
            rows[i * kSide + j] = from[j * head_.column] ? T(1) : T(0);
          }
        }
        transpose_square(rows, kSide, columns, kSide);
        for (int64_t j = 0; j < keys; ++j) {
          T* to = mask + (k + j) * kTileQueries + q;
          (Vec<T>::loadu(to) * Vec<T>::loadu(columns + j * kSide)).store(to);
        }
      }
    }
    t.cover = Cover::kSome;
    t.diagonal = kNoDiagonal;
  }

 private:
  const bool* row_of(const Tile& t, int64_t q) const {
    return head_.data + (t.first_query + q) * head_.row + t.first_key * head_.column;
  }

  const MaskHead<T>& head_;
  const Visibility& visible_;
  bool hides_some_ = false;
};

template <typename T>
class MaskDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }

  MaskDecode(const Heads<T>* heads, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& context, T* /*at*/)
      : heads_(heads), queries_(context.queries) {}

  bool used() const { return std::get<MaskHead<T>>(*heads_).used(); }
  bool needs_mask() const { return true; }

  void add(DecodeRow<T>& row) {
    const auto& head = std::get<MaskHead<T>>(heads_[row.row / queries_]);
    const bool* mask = head.data + row.query * head.row + row.block.first_key * head.column;
    for (int64_t k = 0; k < row.block.keys; ++k) {
      if (!mask[k * head.column]) {
        row.visible[k] = T(0);
        row.partial = true;
      }
    }
  }

 private:
  const Heads<T>* heads_;
  int64_t queries_;
};

}  // namespace
}  // namespace posenc::attention_ops
