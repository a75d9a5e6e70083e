#pragma once

/// The policies of a job, each used where the head has it, for kernel files only: what they add to a tile of scores and
/// what they take from its gradients. The kernels know no encoding.

#include "attention/terms/bias/tile.h"
#include "attention/terms/cope/tile.h"
#include "attention/terms/decay/tile.h"
#include "attention/terms/distance/tile.h"
#include "attention/terms/piecewise/tile.h"
#include "attention/terms/relative/tile.h"
#include "attention/tile/tile.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
int64_t relative_size(const Shape& s, bool backward) {
  const int64_t tables = (s.relative_values ? 2 : 1) * (backward ? 2 : 1);
  return s.relative_entries == 0 ? 0 : tables * SkewedRows<T>::size(s.relative_entries);
}

/// Elements of T that the policies of a job need.
template <typename T>
int64_t policies_size(const Shape& s, bool backward) {
  return kStrip + relative_size<T>(s, backward) + Contextual<T>::size(s, backward) + Piecewise<T>::size(s, backward);
}

/// What both passes do to scores.
template <typename T>
class Policies {
 public:
  Policies(const Shape& shape, const Scores<T>& scores, const Visibility& visible, bool backward, T*& at)
      : shape_(shape),
        scores_(scores),
        visible_(visible),
        strip_(std::exchange(at, at + kStrip)),
        contextual_(scores.contextual, shape, backward, std::exchange(at, at + Contextual<T>::size(shape, backward))),
        piecewise_(scores.far, visible, shape, backward, std::exchange(at, at + Piecewise<T>::size(shape, backward))) {
    if (is_relative()) {
      relative_key_ = skewed_rows(at);
    }
  }

  /// Whether no query of a tile sees any of its keys.
  bool hides(const Tile& t) const {
    return t.cover == Cover::kHidden || (scores_.bias.bias.data != nullptr && hides_all<T>(scores_.bias.bias, t));
  }

  /// To be called first for each tile that is seen.
  void meet(const Tile& t) {
    if (piecewise_.used()) {
      piecewise_.meet(t);
    }
  }

  /// Whether the tile's scores are one product, which keeps its running maximum then.
  bool plain() const {
    return !depends_on_distance(scores_.bias) && scores_.bias.decay_sums == nullptr &&
           scores_.bias.bias.data == nullptr && !is_relative() && !piecewise_.crossed();
  }

 protected:
  bool is_relative() const { return scores_.relative.key.data != nullptr; }
  bool has_relative_values() const { return scores_.relative.value.data != nullptr; }

  SkewedRows<T> skewed_rows(T*& at) const {
    return {std::exchange(at, at + SkewedRows<T>::size(shape_.relative_entries)), scores_.relative.radius, visible_};
  }

  /// Everything but contextual positions. Fills `mask` where the cover needs one; a bias that hides keys changes the
  /// cover.
  void score(Tile& t, const Operands<T>& operands, T* scores, T* mask, T* largest) {
    if (piecewise_.used()) {
      piecewise_.score(t, operands, scores, largest);
    } else if (operands.key_pairs.data != nullptr) {
      pair_product(operands.key_pairs.from(t.first_key), operands.query_pairs, t.keys, t.lanes, shape_.width,
                   t.diagonal, scores, largest, operands.scale);
    } else {
      product(t, operands.key, operands.query, scores, largest);
    }
    if (depends_on_distance(scores_.bias)) {
      add_distance_bias(scores_.bias, visible_, t, strip_, scores);
    }
    if (scores_.bias.decay_sums != nullptr) {
      add_decay(scores_.bias, visible_, t, scores);
    }
    if (is_relative()) {
      relative_key_.add_to(t, scores);
    }
    if (t.cover == Cover::kSome) {
      fill_mask(visible_, t, mask);
    }
    if (scores_.bias.bias.data != nullptr && add_bias(scores_.bias.bias, visible_, t, mask, scores)) {
      t.cover = Cover::kSome;
      t.diagonal = kNoDiagonal;
    }
  }

  void product(const Tile& t, const PackedRows<T>& keys, const T* query, T* scores, T* largest) const {
    score_product(keys.from(t.first_key), query, t.keys, t.lanes, shape_.width, t.diagonal, scores, largest);
  }

  /// What gates follow from: the scores, or a product of their own.
  const T* gate_scores(const Tile& t, const T* query, const T* scores) {
    if (scores_.contextual.gate_key.data == nullptr) {
      return scores;
    }
    product(t, scores_.contextual.gate_key, query, contextual_.gate_scores(), nullptr);
    return contextual_.gate_scores();
  }

  const Shape& shape_;
  const Scores<T>& scores_;
  const Visibility& visible_;
  T* strip_;
  Contextual<T> contextual_;
  Piecewise<T> piecewise_;
  SkewedRows<T> relative_key_;
};

template <typename T>
class ForwardPolicies : public Policies<T> {
 public:
  ForwardPolicies(const ForwardJob<T>& job, T* at) : Policies<T>(job.shape, job.scores, job.visible, false, at) {
    if (this->has_relative_values()) {
      relative_value_ = this->skewed_rows(at);
    }
  }

  /// Before the first tile, whose queries those of the others are: `rows` are the queries, `scratch` a tile. Keys begin
  /// .. end - 1 follow.
  void begin(const Tile& t, int64_t begin, int64_t end, const Operands<T>& operands, const T* rows, double scale,
             T* scratch) {
    const int64_t width = this->shape_.width;
    if (this->is_relative()) {
      this->relative_key_.reach(t, begin, end);
      this->relative_key_.fill(this->scores_.relative.key, operands.query, t, width, scratch);
    }
    if (this->has_relative_values()) {
      relative_value_.reach(t, begin, end);
      relative_value_.clear();
    }
    if (this->contextual_.used()) {
      this->contextual_.begin(t, rows);
      this->contextual_.start(t, this->visible_.keys);
    }
    if (this->piecewise_.used()) {
      this->piecewise_.begin(t, scale);
    }
  }

  /// Where a query's positions are all the last one from this tile on, its scores lack the logit of that, and so does
  /// its running maximum. This hangs on the query alone, so that no bit of a row depends on its neighbours.
  void meet(const Tile& t, T* largest) {
    Policies<T>::meet(t);
    if (!this->contextual_.used()) {
      return;
    }
    counts_ = this->contextual_.counts(t);
    for (int64_t q = 0; q < t.queries; ++q) {
      if (this->contextual_.is_done(q) && !lacks_[q]) {
        lacks_[q] = true;
        largest[q] -= this->contextual_.lacking(q);
      }
    }
  }

  bool plain() const { return Policies<T>::plain() && !counts_; }

  void score(Tile& t, const Operands<T>& operands, T* scores, T* mask, T* largest) {
    Policies<T>::score(t, operands, scores, mask, largest);
    if (counts_) {
      this->contextual_.add(t, mask, this->gate_scores(t, operands.query, scores), scores);
    }
  }

  /// Takes the weights of a tile, after dropout; those of the tiles before have been multiplied by `factor` since.
  void weigh(const Tile& t, const T* weights, const T* factor) {
    if (this->has_relative_values()) {
      if (std::any_of(factor, factor + t.queries, [](T x) { return x != T(1); })) {
        relative_value_.rescale(t, factor);
      }
      relative_value_.add(t, weights);
    }
  }

  /// Ends the sums of values, rows of `row` elements. Keys from `begin` on have been seen.
  void finish(const Tile& t, int64_t begin, int64_t row, T* sums, T* scratch) {
    if (this->has_relative_values()) {
      const PackedRows<T>& table = this->scores_.relative.value;
      relative_value_.for_each_sum(t, scratch, [&](int64_t first, int64_t count, const T* weights) {
        sum_over_keys<T>(weights, table.from(first), count, t.queries, row, kNoDiagonal, nullptr, sums);
      });
    }
    if (this->contextual_.used()) {
      this->contextual_.save(t, begin);
    }
  }

  /// What the running maximum of a query lacks, in base 2.
  T lacking(int64_t q) const { return lacks_[q] ? this->contextual_.lacking(q) : T(0); }

 private:
  bool counts_ = false, lacks_[kTileQueries] = {};
  SkewedRows<T> relative_value_;
};

template <typename T>
class BackwardPolicies : public Policies<T> {
 public:
  BackwardPolicies(const BackwardJob<T>& job, T* at)
      : Policies<T>(job.shape, job.scores, job.visible, true, at), grad_(job.grad_scores), scale_(job.scale) {
    if (this->is_relative()) {
      grad_relative_key_ = this->skewed_rows(at);
    }
    if (this->has_relative_values()) {
      relative_value_ = this->skewed_rows(at);
      grad_relative_value_ = this->skewed_rows(at);
    }
  }

  /// As in the forward pass, with the gradients of out as score_product() takes them.
  void begin(const Tile& t, int64_t begin, int64_t end, const Operands<T>& operands, const T* rows, const T* grad_out,
             T* scratch) {
    const Shape& shape = this->shape_;
    const RelativeTables<T>& relative = this->scores_.relative;
    if (this->is_relative()) {
      this->relative_key_.reach(t, begin, end);
      this->relative_key_.fill(relative.key, operands.query, t, shape.width, scratch);
      grad_relative_key_.reach(t, begin, end);
      grad_relative_key_.clear();
    }
    if (this->has_relative_values()) {
      relative_value_.reach(t, begin, end);
      grad_relative_value_.reach(t, begin, end);
      relative_value_.fill(relative.value, grad_out, t, shape.value_width, scratch);
      grad_relative_value_.clear();
    }
    if (this->contextual_.used()) {
      this->contextual_.begin(t, rows);
      this->contextual_.load(t, begin, this->visible_.keys);
    }
    if (this->piecewise_.used()) {
      this->piecewise_.begin(t, scale_);
    }
  }

  /// Whether scores of some tiles lack something.
  bool may_lack() const { return this->contextual_.used(); }
  /// What the tile's scores of a query lack, in base 2.
  T lacking(const Tile& t, int64_t q) const {
    return this->contextual_.reaches(t, q) ? T(0) : this->contextual_.lacking(q);
  }

  void score(Tile& t, const Operands<T>& operands, T* scores, T* mask) {
    Policies<T>::score(t, operands, scores, mask, nullptr);
    counts_ = this->contextual_.used() && this->contextual_.reaches(t);
    if (counts_) {
      this->contextual_.retrace(t, mask, this->gate_scores(t, operands.query, scores), scores);
    }
  }

  /// Adds to the gradients of a tile of weights.
  void add_to_weight_gradients(const Tile& t, T* grad) const {
    if (this->has_relative_values()) {
      relative_value_.add_to(t, grad);
    }
  }

  /// Takes the weights of a tile, after dropout.
  void take_weights(const Tile& t, const T* weights) {
    if (grad_.relative_value.data != nullptr) {
      grad_relative_value_.add(t, weights);
    }
  }

  /// Takes the gradients of a tile of scores, and calls body(tile, mask, grad, operands) for each product that they are
  /// the gradients of. `grad` is spent.
  template <typename Body>
  void take(const Tile& t, const T* mask, const Operands<T>& operands, T* grad, const Body& body) {
    if (grad_.table != nullptr || grad_.slope != nullptr) {
      add_distance_gradients(this->scores_.bias, this->visible_, t, grad, this->strip_, grad_.table, grad_.slope);
    }
    if (grad_.decay_sums != nullptr) {
      add_decay_gradients(this->visible_, t, grad, grad_.decay_sums);
    }
    if (grad_.bias.data != nullptr) {
      add_bias_gradients(grad_.bias, t, mask, grad);
    }
    if (this->is_relative()) {
      grad_relative_key_.add(t, grad);
    }
    if (this->piecewise_.used()) {
      this->piecewise_.for_each_side(t, mask, operands, grad_.far_key, grad_.far_query.data != nullptr, grad, body);
      return;
    }
    if (counts_) {
      take_gates(t, mask, operands, grad, body);
    }
    body(t, mask, grad, operands);
  }

  /// Whether there are sums to end.
  bool has_sums() const { return this->is_relative() || this->contextual_.used(); }

  /// Ends the sums. rows: the queries, without the factor scale. grad_query: theirs so far, rows of the padded width.
  /// grad_rows: the gradients of out. total: the sum of each row's score gradients.
  void finish(const Tile& t, const T* rows, T* grad_query, const T* grad_rows, const T* total, T* scratch) {
    const int64_t row = padded<T>(this->shape_.width), value_row = padded<T>(this->shape_.value_width);
    if (this->is_relative()) {
      grad_relative_key_.for_each_sum(t, scratch, [&](int64_t first, int64_t count, T* sums) {
        scale_rows(sums, count * kTileQueries, scale_);
        add_to_table_and_queries(this->scores_.relative.key, first, count, t, sums, rows, row, grad_.relative_key,
                                 grad_query);
      });
    }
    if (grad_.relative_value.data != nullptr) {
      grad_relative_value_.for_each_sum(t, scratch, [&](int64_t first, int64_t count, T* sums) {
        add_to_table_and_queries(this->scores_.relative.value, first, count, t, sums, grad_rows, value_row,
                                 grad_.relative_value, nullptr);
      });
    }
    if (this->contextual_.used()) {
      this->contextual_.finish(t, total, [&](int64_t first, int64_t count, T* sums) {
        add_to_table_and_queries(this->scores_.contextual.rows, first, count, t, sums, rows, row, grad_.contextual,
                                 grad_query);
      });
    }
  }

  /// Gradients of the far queries, without the factor scale. null: not wanted.
  T* grad_far_query() { return grad_.far_query.data == nullptr ? nullptr : this->piecewise_.grad_query(); }

 private:
  template <typename Body>
  void take_gates(const Tile& t, const T* mask, const Operands<T>& operands, T* grad, const Body& body) {
    const PackedRows<T>& gate_key = this->scores_.contextual.gate_key;
    if (gate_key.data == nullptr) {
      this->contextual_.take(t, grad, grad, grad_.gate_bias);
      return;
    }
    T* gate_grad = this->contextual_.gate_gradients();
    this->contextual_.take(t, grad, gate_grad, grad_.gate_bias);
    Operands<T> gates = operands;
    gates.key = gate_key;
    gates.grad_key = grad_.gate_key;
    body(t, mask, gate_grad, gates);
  }

  /// sums[entry - first][query]: gradients of products of table rows and queries.
  static void add_to_table_and_queries(const PackedRows<T>& table, int64_t first, int64_t count, const Tile& t,
                                       const T* sums, const T* queries, int64_t row, const GradientRows<T>& grad_table,
                                       T* grad_query) {
    if (grad_query != nullptr) {
      sum_over_keys<T>(sums, table.from(first), count, t.queries, row, kNoDiagonal, nullptr, grad_query);
    }
    if (grad_table.data != nullptr) {
      sum_over_queries<T>(sums, queries, count, t.queries, row, kNoDiagonal, grad_table.from(first).data,
                          grad_table.row);
    }
  }

  const ScoreGradients<T>& grad_;
  double scale_;
  bool counts_ = false;
  SkewedRows<T> grad_relative_key_, relative_value_, grad_relative_value_;
};

}  // namespace
}  // namespace posenc::attention_ops
