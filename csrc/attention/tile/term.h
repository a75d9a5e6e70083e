#pragma once

/// What a term of the scores may do in a kernel, for kernel files only. A term's class derives from TileTerm or
/// DecodeTerm and overrides (hides: nothing is virtual) what it takes part in; terms/kernels.h calls all terms that a
/// head has.
///
/// Scores are in base 2: what is added to them is multiplied by kLog2E. Gradients are those of the natural scores.

#include "attention/tile/gemv.h"
#include "attention/tile/operands.h"
#include "attention/tile/sink.h"

namespace posenc::attention_ops {
namespace {

/// What all terms of a job share.
template <typename T>
struct TileContext {
  int64_t width, value_width;
  double scale;
  const Visibility* visible;
  bool backward;
};

/// The queries of a job, before its first tile of keys.
template <typename T>
struct TileRows {
  /// The tile's queries; its keys are not set.
  const Tile& tile;
  /// Keys begin .. end - 1 follow.
  int64_t begin, end;
  const Operands<T>& operands;
  /// The queries in rows of the padded width, and the gradients of out as score_product() takes them (backward only).
  const T *query_rows, *grad_out;
  /// A tile.
  T* scratch;
};

/// The sums of a job, after its last tile of keys.
template <typename T>
struct ForwardSums {
  const Tile& tile;
  int64_t begin;
  /// Sums of values, rows of `row` elements.
  T* values;
  int64_t row;
  T* scratch;
};

template <typename T>
struct BackwardSums {
  const Tile& tile;
  /// The queries, without the factor scale, and the gradients of out; rows of the padded widths.
  const T *query_rows, *grad_out_rows;
  /// Those of the queries' gradients, with the factor scale; null: not wanted.
  T* grad_query;
  /// The sum of each row's score gradients.
  const T* total;
  /// Whether a query has no key with a weight: what its rows hold must not meet weights of 0.
  const bool* blind;
  T* scratch;
};

/// A term X has, in addition to what it overrides, the elements of T that it needs and a constructor that takes them:
///   static int64_t size(const XHead<T>& head, const TileContext<T>& context);
///   XTile(const XHead<T>& head, const XGradient<T>* gradient, const TileContext<T>& context, T* memory);
/// gradient: null in the forward pass.
template <typename T>
struct TileTerm {
  // Both passes.

  /// Whether no query of a tile sees any of its keys.
  bool hides(const Tile& /*t*/) const { return false; }
  /// Takes over the queries of a job.
  void begin(const TileRows<T>& /*rows*/) {}
  /// To be called first for each tile that is visible.
  void begin_tile(const Tile& /*t*/) {}
  /// Whether the term changes the scores of the tile after their product.
  bool changes_scores() const { return false; }
  /// Writes the scores in place of the product query . key. False where the term leaves that alone.
  bool make_product(const Tile& /*t*/, const Operands<T>& /*operands*/, T* /*scores*/, T* /*largest*/) { return false; }
  /// Looks at the product, to which other terms will add.
  void take_product(const Tile& /*t*/, const T* /*scores*/) {}
  /// Turns the product into another number, before anything is added; and scores, after all terms have added.
  void cap_product(const Tile& /*t*/, T* /*scores*/) {}
  void cap_scores(const Tile& /*t*/, T* /*scores*/) {}
  /// Adds to the scores of a tile, in base 2. A term that hides keys clears their entries of the mask and sets the
  /// cover.
  void add(Tile& /*t*/, const Operands<T>& /*operands*/, T* /*mask*/, T* /*scores*/) {}

  // Forward.

  /// Subtracts from the running maximum of each query what its scores will leave out in the tiles that follow.
  void defer(const Tile& /*t*/, T* /*largest*/) {}
  /// What is to be added to the running maximum of a query at the end, in base 2.
  T deferred(int64_t /*q*/) const { return T(0); }
  /// A logit, in base 2, that takes part in the softmax of a query of the head and has no value.
  double sink(int64_t /*query*/) const { return kNoSink; }
  /// Takes the weights of a tile, after dropout; those of the tiles before have been multiplied by `factor` since.
  void accumulate_weights(const Tile& /*t*/, const T* /*weights*/, const T* /*factor*/) {}
  void finish(const ForwardSums<T>& /*sums*/) {}

  // Backward.

  /// Whether the scores of some tiles may leave something out, and what those of a query leave out in a tile, in
  /// base 2.
  bool may_defer() const { return false; }
  T deferred(const Tile& /*t*/, int64_t /*q*/) const { return T(0); }
  /// Takes the gradient of the sink of a query of the head.
  void add_sink_gradient(int64_t /*query*/, double /*grad*/) {}
  /// Adds to the gradients of a tile of weights.
  void add_weight_gradients(const Tile& /*t*/, T* /*grad*/) const {}
  /// Takes the weights of a tile, after dropout.
  void accumulate_weights(const Tile& /*t*/, const T* /*weights*/) {}
  /// From the gradients of a tile of scores to those of the scores before cap_scores().
  void uncap_scores(const Tile& /*t*/, T* /*grad*/) {}
  /// Takes the gradients of a tile of scores: 0 where hidden, and not written where for_each_vector() (tile/tile.h)
  /// says that no lane sees the key.
  void accumulate_gradients(const Tile& /*t*/, const T* /*mask*/, const T* /*grad*/) {}
  /// Calls body(tile, mask, grad, operands) with the gradients of products other than query . key, and takes them from
  /// `grad`, or adds to it what joins that product. True where `grad` is spent.
  template <typename Body>
  bool take_products(const Tile& /*t*/, const T* /*mask*/, const Operands<T>& /*operands*/, T* /*grad*/,
                     const Body& /*body*/) {
    return false;
  }
  /// Whether finish() reads the queries.
  bool has_sums() const { return false; }
  void finish(const BackwardSums<T>& /*sums*/) {}
};

/// Decoding: a row is a query of one of the heads that share keys, in the order head * queries + query.
template <typename T>
struct DecodeContext {
  int64_t width, value_width, heads, queries;
  const Visibility* visible;
  /// Times scale * log2 e.
  PackedRows<T> query;

  int64_t rows() const { return heads * queries; }
};

/// A row and the keys of a block.
template <typename T>
struct DecodeRow {
  const Tile& block;
  /// The row, and its query.
  int64_t row, query;
  /// key - query for each key, where some term needs distances.
  const int64_t* distance;
  /// For each key whether it is visible, where needs_mask() or the block's cover says so.
  T* visible;
  T* scores;
  /// Whether `visible` counts.
  bool partial;
};

/// A term X has, in addition to what it overrides:
///   static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context);
///   XDecode(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* memory);
///   bool used() const;
template <typename T>
struct DecodeTerm {
  static constexpr bool kNeedsDistance = false;

  // Product is a function object: product(queries, keys, scores) multiplies rows of queries, arranged by
  // product.arrange(rows, to), with the block's keys; product.of_query(keys, scores) multiplies query with other keys,
  // product.near(scores) with key. product.of_rows(row_of, scores) multiplies each key with a row of its own, of those
  // that product.arrange(rows, count, to) has arranged.

  /// Keys begin .. end - 1 follow.
  template <typename Product>
  void begin(int64_t /*begin*/, int64_t /*end*/, const Product& /*product*/) {}
  /// Whether blocks are to be walked from the last key to the first.
  bool counts_from_query() const { return false; }
  /// Whether the job may end before its first key, as nothing that the term looks for is to come.
  bool stops() const { return false; }
  /// Whether the visibility of each key is to be known, whatever the block's cover.
  bool needs_mask() const { return false; }
  /// Writes the scores of a block. False: query . key is wanted.
  template <typename Product>
  bool make_product(const Tile& /*block*/, const Product& /*product*/, T* /*scores*/) {
    return false;
  }
  /// Looks at the products of a block before anything is added to them.
  template <typename Product>
  void begin_block(const Tile& /*block*/, const Product& /*product*/, const T* /*scores*/) {}
  /// What to subtract from the running maximum of a row, as its scores leave it out in the blocks that follow; and what
  /// they have left out at the end.
  T newly_deferred(int64_t /*row*/) { return T(0); }
  T deferred(int64_t /*row*/) const { return T(0); }
  /// Turns a row of products into other numbers, before anything is added; and scores, after all terms have added.
  void cap_product(DecodeRow<T>& /*row*/) {}
  void cap_scores(DecodeRow<T>& /*row*/) {}
  /// Adds to a row of scores, in base 2. A term that hides keys clears their entries of row.visible and sets
  /// row.partial.
  void add(DecodeRow<T>& /*row*/) {}
  /// Takes the weights of a row; those of the blocks before have been multiplied by `factor` since.
  void accumulate_weights(const DecodeRow<T>& /*row*/, T /*factor*/) {}
  /// Adds to the sums of values, rows of `row` elements.
  void finish(T* /*sums*/, int64_t /*row*/) const {}
};

}  // namespace
}  // namespace posenc::attention_ops
