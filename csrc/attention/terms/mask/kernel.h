#pragma once

/// A mask that the caller holds, one bool for each query and key, for kernel files only.

#include "attention/terms/mask/head.h"
#include "attention/tile/term.h"

#include <cstring>

namespace posenc::attention_ops {
namespace {

/// Bytes of a word.
constexpr int64_t kMaskSide = 8;
static_assert(kTileQueries % kMaskSide == 0, "rows of a tile are whole words");

/// Byte j of word i becomes byte i of word j, where byte 0 is the lowest: blocks of 4 x 4 bytes change places, in these
/// blocks of 2 x 2, in these bytes.
inline void transpose_bytes(uint64_t (&words)[kMaskSide]) {
  constexpr uint64_t kLow[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
  for (int64_t step = 0, side = kMaskSide / 2; side > 0; ++step, side /= 2) {
    for (int64_t i = 0; i < kMaskSide; ++i) {
      if ((i & side) == 0) {
        uint64_t &low = words[i], &high = words[i + side];
        const uint64_t changed = ((low >> (8 * side)) ^ high) & kLow[step];
        low ^= changed << (8 * side);
        high ^= changed;
      }
    }
  }
}

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
    const bool hides_alone = t.cover == Cover::kAll;
    if (t.cover == Cover::kDiagonal) {
      fill_mask(visible_, t, mask);
    }
    uint8_t seen[kMaskSide][kTileQueries];
    for (int64_t k = 0; k < t.keys; k += kMaskSide) {
      const int64_t keys = std::min(kMaskSide, t.keys - k);
      take_keys(t, k, keys, seen);
      for (int64_t j = 0; j < keys; ++j) {
        T* to = mask + (k + j) * kTileQueries;
        for (int64_t q = 0; q < t.lanes; ++q) {
          to[q] = seen[j][q] == 0 ? T(0) : hides_alone ? T(1) : to[q];
        }
      }
    }
    t.cover = Cover::kSome;
    t.diagonal = kNoDiagonal;
  }

 private:
  /// What each query sees of `keys` keys from the tile's k-th on, a row for each key.
  void take_keys(const Tile& t, int64_t k, int64_t keys, uint8_t (&seen)[kMaskSide][kTileQueries]) const {
    if (head_.row == 0) {
      for (int64_t j = 0; j < keys; ++j) {
        std::fill_n(seen[j], t.queries, static_cast<uint8_t>(row_of(t, 0)[(k + j) * head_.column]));
        std::fill(seen[j] + t.queries, seen[j] + t.lanes, uint8_t{0});
      }
      return;
    }
    for (int64_t q = 0; q < t.lanes; q += kMaskSide) {
      uint64_t rows[kMaskSide] = {};
      for (int64_t i = 0; i < std::min(kMaskSide, t.queries - q); ++i) {
        const bool* from = row_of(t, q + i) + k * head_.column;
        if (head_.column == 1) {
          std::memcpy(&rows[i], from, keys == kMaskSide ? kMaskSide : keys);
        } else {
          for (int64_t j = 0; j < keys; ++j) {
            rows[i] |= static_cast<uint64_t>(from[j * head_.column]) << (8 * j);
          }
        }
      }
      transpose_bytes(rows);
      for (int64_t j = 0; j < keys; ++j) {
        std::memcpy(seen[j] + q, &rows[j], kMaskSide);
      }
    }
  }

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
