#pragma once

/// CoPE's counting over blocks of keys in decoding, for kernel files only (gates.h says how).

#include "attention/terms/cope/gates.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
class CopeDecode : public DecodeTerm<T> {
 public:
  static int64_t size(const Heads<T>& heads, const DecodeContext<T>& context) {
    const auto& head = std::get<CopeHead<T>>(heads);
    const int64_t row = whole_steps<T>(context.width) + room(head) + Vec<T>::size() + 3 +
                        (head.has_gate_keys || head.copies_product ? kDecodeKeys : 0);
    return head.used() ? context.rows() * row : 0;
  }

  CopeDecode(const Heads<T>* heads, const DecodeRows<T>& rows, const DecodeContext<T>& context, T* at)
      : heads_(heads),
        rows_of_(std::get<CopeRows<T>>(rows)),
        context_(context),
        last_(head(0).entries - 1),
        rows_(context.rows()),
        row_(room(head(0))) {
    query_ = at;
    logits_ = query_ + rows_ * whole_steps<T>(context.width);
    last_logits_ = logits_ + rows_ * row_;
    lacking_ = last_logits_ + rows_ * Vec<T>::size();
    whole_ = reinterpret_cast<Fraction<T>*>(lacking_ + rows_);
    fraction_ = whole_ + rows_;
    gate_scores_ = reinterpret_cast<T*>(fraction_ + rows_);
  }

  bool used() const { return head(0).used(); }
  bool counts_from_query() const { return true; }

  template <typename Product>
  void begin(int64_t /*begin*/, int64_t /*end*/, const Product& /*product*/) {
    arrange_rows(rows_of_.query, rows_, context_.width, query_);
    product(last_, 1, last_logits_, Vec<T>::size());
    std::fill(whole_, whole_ + rows_, static_cast<Fraction<T>>(rows_of_.saturated ? last_ : 0));
    std::fill(fraction_, fraction_ + rows_, Fraction<T>{0});
    std::fill(lacking_, lacking_ + rows_, T(0));
  }

  /// What the scores of a row lack in base 2: in blocks whose keys are all at the last position, its logit.
  T deferred(int64_t r) const { return lacking_[r]; }

  T newly_deferred(int64_t r) {
    const T now = whole_[r] == last_ && !head(0).caps_sum ? last_logit(r) : T(0);
    return now - std::exchange(lacking_[r], now);
  }

  /// Whether all further keys are at the last entry.
  bool stops() const {
    return std::all_of(whole_, whole_ + rows_, [&](int64_t whole) { return whole == last_; });
  }

  template <typename Product>
  void begin_block(const Tile& block, const Product& product, const T* scores) {
    if (stops()) {
      return;
    }
    make_ready(block.keys);
    if (head(0).has_gate_keys) {
      product.of_query(rows_of_.gate_key, gate_scores_);
    } else if (head(0).copies_product) {
      std::copy(scores, scores + rows_ * kDecodeKeys, gate_scores_);
    }
  }

  /// Counts the gates of a row and adds the logits to its scores.
  void add(DecodeRow<T>& row) {
    const int64_t r = row.row, keys = row.block.keys;
    if (whole_[r] == last_) {
      if (head(0).caps_sum) {
        std::transform(row.scores, row.scores + keys, row.scores, [&](T x) { return x + last_logit(r); });
      }
      return;
    }
    const auto& head_of_row = head(r / context_.queries);
    const bool copied = head_of_row.has_gate_keys || head_of_row.copies_product;
    const T* gate_scores = copied ? gate_scores_ + r * kDecodeKeys : row.scores;
    alignas(64) T gates[kDecodeKeys];
    alignas(64) Fraction<T> fractions[kDecodeKeys];
    const Gates<T> gates_of(head_of_row);
    const Vec<T> zero(T(0));
    for (int64_t k = 0; k < keys; k += Vec<T>::size()) {
      Vec<T> gate = gates_of(Vec<T>::loadu(gate_scores + k));
      gate = row.partial ? Vec<T>::blendv(zero, gate, Vec<T>::loadu(row.visible + k) != zero) : gate;
      gate.store(gates + k);
      to_fractions(gate).store(fractions + k);
    }
    count(r, keys, gates, fractions, row.scores);
  }

 private:
  /// Computes the logits of the entries that a block of keys can reach.
  void make_ready(int64_t keys) {
    const int64_t furthest = *std::max_element(whole_, whole_ + rows_) + keys + 1;
    while (ready_ < std::min(furthest + 1, last_)) {
      const int64_t count = std::min(kDecodeKeys, last_ - ready_);
      product(ready_, count, logits_ + ready_, row_);
      ready_ += count;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      logits_[r * row_ + last_] = last_logit(r);
    }
  }

  /// Products write whole vectors of entries.
  static int64_t room(const CopeHead<T>& head) { return head.entries + Vec<T>::size(); }

  const CopeHead<T>& head(int64_t h) const { return std::get<CopeHead<T>>(heads_[h]); }

  T last_logit(int64_t r) const { return last_logits_[r * Vec<T>::size()]; }

  void count(int64_t r, int64_t keys, const T* gates, const Fraction<T>* fractions, T* scores) {
    constexpr T kUnit = T(1) / static_cast<T>(kWhole<T>);
    const T* logits = logits_ + r * row_;
    Fraction<T> whole = whole_[r], fraction = fraction_[r];
    for (int64_t k = keys - 1; k >= 0; --k) {
      if (whole < last_) {
        fraction += fractions[k];
        scores[k] += T(0) * gates[k];  // a gate of NaN makes its row so
      }
      if (fraction >= kWhole<T>) {
        fraction = ++whole < last_ ? fraction - kWhole<T> : 0;
      }
      const T part = static_cast<T>(fraction) * kUnit;
      scores[k] += whole < last_ ? logits[whole] + part * (logits[whole + 1] - logits[whole]) : logits[last_];
    }
    whole_[r] = whole;
    fraction_[r] = fraction;
  }

  void product(int64_t first, int64_t count, T* to, int64_t to_row) const {
    for (int64_t h = 0; h < context_.heads; ++h) {
      multiply_table(head(h).table, first, count, query_ + h * context_.queries * whole_steps<T>(context_.width),
                     context_.queries, context_.width, to + h * context_.queries * to_row, to_row);
    }
  }

  const Heads<T>* heads_;
  const CopeRows<T>& rows_of_;
  DecodeContext<T> context_;
  int64_t last_, rows_, row_, ready_ = 0;
  T *query_, *logits_, *last_logits_, *lacking_, *gate_scores_;
  Fraction<T>*whole_, *fraction_;
};

}  // namespace
}  // namespace posenc::attention_ops
