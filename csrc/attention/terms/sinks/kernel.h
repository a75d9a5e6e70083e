#pragma once

/// A logit for each head in the softmax, without a value, for kernel files only.

#include "attention/terms/sinks/head.h"
#include "attention/tile/term.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class SinksTile : public TileTerm<T> {
 public:
  static int64_t size(const SinksHead<T>& /*head*/, const TileContext<T>& /*context*/) { return 0; }

  SinksTile(const SinksHead<T>& head, const SinksGradient<T>* grad, const TileContext<T>& /*context*/, T* /*at*/)
      : head_(head), grad_(grad) {}

  double sink(int64_t query) const { return head_.at(query); }

  void add_sink_gradient(int64_t query, double grad) {
    if (grad_->sums != nullptr) {
      grad_->sums[query * grad_->of_query] += grad;
    }
  }

 private:
  const SinksHead<T>& head_;
  const SinksGradient<T>* grad_;
};

/// Sinks join after the parts of a decode have been merged.
template <typename T>
class SinksDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& /*heads*/, const DecodeContext<T>& /*context*/) { return 0; }
  SinksDecode(const Heads<T>* /*heads*/, const DecodeRows<T>& /*rows*/, const DecodeContext<T>& /*context*/,
              T* /*at*/) {}
  bool used() const { return false; }
};

}  // namespace
}  // namespace posenc::attention_ops
