#pragma once

/// What every device shares of a term. A term is something that scores are made of in addition to scale * query . key.
///
/// A term is a folder, terms/NAME, a word of terms/order.h, and an include in each of the lists of this folder:
///
/// - term.h, term.cpp: its inputs, their rules, and its plain ATen form. It derives from Term, below, and overrides
///   what it takes part in. (terms/list.h)
/// - head.h: plain data, what kernels read of a head and where gradients go. (terms/heads.h)
/// - cpu.h: from the tensors of a call to that data. (terms/cpu.h)
/// - kernel.h: what it does to a tile of scores, and to a block of keys in decoding, with CPU vectors.
///   (terms/kernels.h)

#include "attention/reference/operands.h"

namespace posenc::attention_ops {

struct Term {
  /// The op that a call with this term is named after in messages; null: "attention".
  static const char* op(const Call& /*c*/) { return nullptr; }
  /// Whether the term is a function of the distance, which takes integer positions.
  static constexpr bool kNeedsDistance = false;

  // A term has, in addition to what it overrides:
  //   static bool used(const Call& c);
  //   static void check(const Call& c);      raises unless its inputs fit

  // The plain ATen form, for a block of queries. Scores are (B, H, length, Tk); entries of hidden keys may be anything.

  /// Hides keys: visible = visible and ...
  static void hide(const reference::Operands& /*o*/, const reference::Rows& /*rows*/, Tensor& /*visible*/) {}
  /// Replaces the product query . key, or part of it.
  static void replace_product(const reference::Operands& /*o*/, const reference::Block& /*block*/,
                              Tensor& /*product*/) {}
  /// Adds to the scores.
  static void add_scores(const reference::Operands& /*o*/, const reference::Block& /*block*/, Tensor& /*scores*/) {}
  /// Turns scale * query . key into another number, before anything is added; and scores, after all terms have added.
  static void cap_product(const reference::Operands& /*o*/, Tensor& /*product*/) {}
  static void cap_scores(const reference::Operands& /*o*/, Tensor& /*scores*/) {}
  /// Sets the logits, broadcastable to (B, H, length), that take part in the softmax and have no value.
  static void add_sink(const reference::Operands& /*o*/, const reference::Rows& /*rows*/, OptionalTensor& /*sink*/) {}
  /// Adds to the output, from the weights after dropout.
  static void add_output(const reference::Operands& /*o*/, const reference::Block& /*block*/, const Tensor& /*weights*/,
                         Tensor& /*out*/) {}

  /// Adds to the gradient of the weights after dropout, and to the gradients of what add_output() read.
  static void add_weight_gradients(const reference::Operands& /*o*/, const reference::Block& /*block*/,
                                   const Tensor& /*weights*/, const Tensor& /*grad_out*/, Tensor& /*grad_weights*/,
                                   reference::GradientSums& /*sums*/) {}
  /// Takes the gradient (B, H, length) of those logits.
  static void add_sink_gradient(const reference::Operands& /*o*/, const reference::Rows& /*rows*/,
                                const Tensor& /*grad*/, reference::GradientSums& /*sums*/) {}
  /// From the gradient of what cap_scores() and cap_product() made, `scores` and `product`, to that of what they took.
  static void uncap_scores(const reference::Operands& /*o*/, const Tensor& /*scores*/, Tensor& /*grad*/) {}
  static void uncap_product(const reference::Operands& /*o*/, const Tensor& /*product*/, Tensor& /*grad*/) {}
  /// Adds to the gradients of what add_scores() and replace_product() read. grad: that of the scores, 0 where hidden.
  /// product: what is left of it for query . key.
  static void add_gradients(const reference::Operands& /*o*/, const reference::Block& /*block*/, const Tensor& /*grad*/,
                            reference::ProductGradient& /*product*/, reference::GradientSums& /*sums*/) {}
};

}  // namespace posenc::attention_ops
