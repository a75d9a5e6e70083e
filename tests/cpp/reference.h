#pragma once

/// Attention as plain float64 loops, written from the papers' formulas. Nothing here calls posenc: a
/// kernel and its reference form inside posenc may be wrong alike, this is what both are measured with.

#include "reference_call.h"

#include <ATen/Functions.h>

#include <cmath>

namespace reference {

struct Result {
  Tensor out, lse;
};

/// One row of scores: a query of one head.
class Row {
 public:
  Row(const Call& call, int64_t b, int64_t h, int64_t i)
      : c_(call),
        in_(call.inputs),
        b_(b),
        h_(h),
        i_(i),
        keys_(in_.k.size(2)),
        own_(keys_ - in_.q.size(2) + i),
        group_(h / (in_.q.size(1) / in_.k.size(1))),
        width_(in_.q.size(3)),
        scale_(call.scale.value_or(1.0 / std::sqrt(static_cast<double>(width_)))),
        scores_(keys_),
        decays_(keys_ + 1),
        gates_(keys_),
        places_(keys_) {
    for (int64_t t = own_; t >= 0 && in_.log_decay.defined(); --t) {
      decays_[t] = decays_[t + 1] + (same_segment(t) ? *at(in_.log_decay, {b_, h_, t}) : 0.0);
    }
    if (in_.pos_emb.defined()) {
      count_gates();
    }
    for (int64_t j = 0; j < keys_; ++j) {
      scores_[j] = sees(j) ? score(j) : -kInfinity;
    }
    const double largest = std::max(*std::max_element(scores_.begin(), scores_.end()), sink());
    double total = sink() == -kInfinity ? 0.0 : std::exp(sink() - largest);
    for (const double s : scores_) {
      total += s == -kInfinity ? 0.0 : std::exp(s - largest);
    }
    lse_ = total == 0 ? -kInfinity : largest + std::log(total);
  }

  double lse() const { return lse_; }
  const std::vector<double>& scores() const { return scores_; }

  /// Softmax, without dropout.
  double weight(int64_t j) const { return scores_[j] == -kInfinity ? 0.0 : std::exp(scores_[j] - lse_); }

  /// out[d] = sum of weights times values (Shaw's eq. 3).
  void sum_values(double* out) const {
    for (int64_t j = 0; j < keys_; ++j) {
      const double w = weight(j) * kept(j);
      add(w, at(in_.v, {b_, group_, j, 0}), 1, in_.v.size(3), out);
      if (in_.rel_v.defined() && covers(in_.rel_v, j)) {
        add(w, at(in_.rel_v, {h_, entry(in_.rel_v, j), 0}), 1, in_.v.size(3), out);
      }
    }
  }

  /// Adds to `to` the gradients of sum(out * grad_out) + lse * grad_lse.
  void add_gradients(const double* grad_out, double grad_lse, const Inputs& to) const {
    std::vector<double> grad(keys_);
    double mean = 0;
    for (int64_t j = 0; j < keys_; ++j) {
      const double w = weight(j);
      if (w == 0) {
        continue;
      }
      double of_weight = dot(grad_out, at(in_.v, {b_, group_, j, 0}), in_.v.size(3));
      add(w * kept(j), grad_out, 1, in_.v.size(3), at(to.v, {b_, group_, j, 0}));
      if (in_.rel_v.defined() && covers(in_.rel_v, j)) {
        of_weight += dot(grad_out, at(in_.rel_v, {h_, entry(in_.rel_v, j), 0}), in_.v.size(3));
        add(w * kept(j), grad_out, 1, in_.v.size(3), at(to.rel_v, {h_, entry(in_.rel_v, j), 0}));
      }
      grad[j] = of_weight * kept(j);
      mean += w * grad[j];
    }
    for (int64_t j = 0; j < keys_; ++j) {
      grad[j] = weight(j) * (grad[j] - mean + grad_lse);
    }
    if (in_.sinks.defined()) {
      *sink_in(to.sinks) += std::exp(sink() - lse_) * (grad_lse - mean);
    }
    if (c_.softcap && c_.caps_sum) {
      for (int64_t j = 0; j < keys_; ++j) {
        grad[j] *= weight(j) == 0 ? 0.0 : cap_slope(scores_[j]);
      }
    }
    for (int64_t j = 0; j < keys_; ++j) {
      if (sees(j)) {
        add_score_gradients(j, grad[j], to);
      }
    }
    double of_earlier_keys = 0;
    for (int64_t t = 0; t <= own_ && in_.log_decay.defined(); ++t) {
      *at(to.log_decay, {b_, h_, t}) += same_segment(t) ? of_earlier_keys : 0.0;
      of_earlier_keys += grad[t];
    }
    if (in_.pos_emb.defined()) {
      add_gate_gradients(grad, to);
    }
  }

 private:
  double kept(int64_t j) const { return c_.kept.defined() ? *at(c_.kept, {b_, h_, i_, j}) : 1.0; }
  double* sink_in(const Tensor& x) const { return x.dim() == 1 ? at(x, {h_}) : at(x, {b_, h_, i_}); }
  double sink() const { return in_.sinks.defined() ? *sink_in(in_.sinks) : -kInfinity; }
  double capped(double x) const { return *c_.softcap * std::tanh(x / *c_.softcap); }
  /// The derivative of a capped number.
  double cap_slope(double x) const { return 1.0 - x / *c_.softcap * (x / *c_.softcap); }

  double q_position() const {
    if (c_.q_start.defined()) {
      return *at(c_.q_start, {b_}) + static_cast<double>(i_);
    }
    return c_.q_positions.defined() ? *at(c_.q_positions, {b_, i_}) : static_cast<double>(own_);
  }
  double k_position(int64_t j) const {
    return c_.k_positions.defined() ? *at(c_.k_positions, {b_, j}) : static_cast<double>(j);
  }
  /// Query position minus key position.
  double distance(int64_t j) const { return q_position() - k_position(j); }
  bool same_segment(int64_t j) const {
    if (!c_.segment_ids.defined()) {
      return true;
    }
    const double own = c_.q_segment_ids.defined() ? *at(c_.q_segment_ids, {b_, i_}) : *at(c_.segment_ids, {b_, own_});
    return *at(c_.segment_ids, {b_, j}) == own;
  }
  bool one_block(int64_t j) const {
    return c_.block_ids.defined() && *at(c_.block_ids, {b_, j}) >= 0 &&
           *at(c_.block_ids, {b_, j}) == *at(c_.block_ids, {b_, own_});
  }

  /// By positions alone: query i sees key i - n.
  bool reaches(double n) const {
    const bool causal = c_.is_causal || in_.pos_emb.defined();
    const auto left = c_.window ? std::make_optional(*c_.window - 1) : c_.window_left,
               right = c_.window ? left : c_.window_right;
    return !(causal && n < 0) && !(left && n > static_cast<double>(*left)) &&
           !(right && !causal && -n > static_cast<double>(*right));
  }

  bool sees(int64_t j) const {
    return (reaches(distance(j)) || one_block(j)) && (!c_.key_mask.defined() || *at(c_.key_mask, {b_, j}) != 0) &&
           (!c_.attn_mask.defined() || *at(c_.attn_mask, {b_, h_, i_, j}) != 0) && same_segment(j) &&
           !(in_.bias.defined() && *at(in_.bias, {b_, h_, i_, j}) == -kInfinity);
  }

  bool is_far(int64_t j) const { return in_.q_far.defined() && distance(j) >= static_cast<double>(c_.threshold); }
  const double* query(bool far = false) const { return at(far ? in_.q_far : in_.q, {b_, h_, i_, 0}); }
  const double* rel_query() const { return in_.rel_query.defined() ? at(in_.rel_query, {b_, h_, i_, 0}) : query(); }
  const double* key(int64_t j, bool far = false) const { return at(far ? in_.k_far : in_.k, {b_, group_, j, 0}); }

  /// R + clip(key position - query position, -R, R), for a table of 2R + 1 entries along `dim` from the end.
  int64_t clipped(int64_t entries, int64_t j) const {
    const auto radius = static_cast<double>((entries - 1) / 2);
    return static_cast<int64_t>(radius + std::clamp(-distance(j), -radius, radius));
  }
  /// The same by coordinates on an axis; without those of queries these are the last keys.
  int64_t clipped_on(int64_t axis, int64_t entries, int64_t j) const {
    const auto radius = static_cast<double>((entries - 1) / 2);
    const double own = c_.q_grid.defined() ? *at(c_.q_grid, {axis, b_, i_}) : *at(c_.k_grid, {axis, b_, own_});
    return static_cast<int64_t>(radius + std::clamp(*at(c_.k_grid, {axis, b_, j}) - own, -radius, radius));
  }
  int64_t grid_entry(const Tensor& rows, int64_t axis, int64_t j) const { return clipped_on(axis, rows.size(-2), j); }
  double* grid_cell(const Tensor& table, int64_t j) const {
    return at(table, {h_, clipped_on(0, table.size(1), j), clipped_on(1, table.size(2), j)});
  }
  double grid_scale() const { return c_.grid_rel_scale.value_or(scale_); }
  int64_t entry(const Tensor& rows, int64_t j) const {
    if (!c_.max_distance) {
      return clipped(rows.size(-2), j);
    }
    const auto left = static_cast<double>(c_.max_distance->first), right = static_cast<double>(c_.max_distance->second);
    return static_cast<int64_t>(left + std::clamp(-distance(j), -left, right));
  }
  /// Whether a table of relative vectors has something for key j.
  bool covers(const Tensor& rows, int64_t j) const {
    const int64_t radius = (rows.size(-2) - 1) / 2;
    const auto [left, right] = c_.max_distance.value_or(std::pair(radius, radius));
    return !c_.zero_beyond || (distance(j) <= static_cast<double>(left) && -distance(j) <= static_cast<double>(right));
  }

  double product(int64_t j) const { return scale_ * dot(query(is_far(j)), key(j, is_far(j)), width_); }

  double score(int64_t j) const {
    double s = product(j);
    if (c_.softcap && !c_.caps_sum) {
      s = capped(s);
    }
    if (in_.slopes.defined()) {
      s -= *at(in_.slopes, {b_, h_}) * std::abs(distance(j));
    }
    if (in_.distance_bias.defined()) {
      s += *at(in_.distance_bias, {h_, clipped(in_.distance_bias.size(-1), j)});
    }
    if (in_.bias.defined()) {
      s += *at(in_.bias, {b_, h_, i_, j});
    }
    if (in_.log_decay.defined()) {
      s += decays_[j + 1];
    }
    if (in_.rel_k.defined() && covers(in_.rel_k, j)) {
      s += scale_ * dot(rel_query(), at(in_.rel_k, {h_, entry(in_.rel_k, j), 0}), in_.rel_k.size(-1));
    }
    if (in_.rel_q.defined() && covers(in_.rel_q, j)) {
      s += scale_ * dot(key(j), at(in_.rel_q, {h_, entry(in_.rel_q, j), 0}), width_);
    }
    if (in_.grid_bias.defined()) {
      s += *grid_cell(in_.grid_bias, j);
    }
    if (in_.grid_rel_y.defined()) {
      s += grid_scale() * dot(query(), at(in_.grid_rel_y, {h_, grid_entry(in_.grid_rel_y, 0, j), 0}), width_);
      s += grid_scale() * dot(query(), at(in_.grid_rel_x, {h_, grid_entry(in_.grid_rel_x, 1, j), 0}), width_);
    }
    if (in_.pos_emb.defined()) {
      const int64_t low = lower(j);
      const double part = places_[j] - static_cast<double>(low);
      s += (part == 1.0 ? 0.0 : (1.0 - part) * logit(low)) + (part == 0.0 ? 0.0 : part * logit(low + 1));
    }
    return c_.softcap && c_.caps_sum ? capped(s) : s;
  }

  void add_score_gradients(int64_t j, double g, const Inputs& to) const {
    const bool far = is_far(j);
    const double of_product = g * scale_ * (c_.softcap && !c_.caps_sum ? cap_slope(capped(product(j))) : 1.0);
    add(of_product, key(j, far), 1, width_, at(far ? to.q_far : to.q, {b_, h_, i_, 0}));
    add(of_product, query(far), 1, width_, at(far ? to.k_far : to.k, {b_, group_, j, 0}));
    if (in_.slopes.defined()) {
      *at(to.slopes, {b_, h_}) -= g * std::abs(distance(j));
    }
    if (in_.distance_bias.defined()) {
      *at(to.distance_bias, {h_, clipped(in_.distance_bias.size(-1), j)}) += g;
    }
    if (in_.bias.defined()) {
      *at(to.bias, {b_, h_, i_, j}) += g;
    }
    if (in_.rel_k.defined() && covers(in_.rel_k, j)) {
      const int64_t e = entry(in_.rel_k, j);
      const int64_t width = in_.rel_k.size(-1);
      const Tensor& to_query = in_.rel_query.defined() ? to.rel_query : to.q;
      add(g * scale_, at(in_.rel_k, {h_, e, 0}), 1, width, at(to_query, {b_, h_, i_, 0}));
      add(g * scale_, rel_query(), 1, width, at(to.rel_k, {h_, e, 0}));
    }
    if (in_.rel_q.defined() && covers(in_.rel_q, j)) {
      const int64_t e = entry(in_.rel_q, j);
      add(g * scale_, at(in_.rel_q, {h_, e, 0}), 1, width_, at(to.k, {b_, group_, j, 0}));
      add(g * scale_, key(j), 1, width_, at(to.rel_q, {h_, e, 0}));
    }
    if (in_.grid_bias.defined()) {
      *grid_cell(to.grid_bias, j) += g;
    }
    for (int64_t axis = 0; axis < 2 && in_.grid_rel_y.defined(); ++axis) {
      const Tensor& table = axis == 0 ? in_.grid_rel_y : in_.grid_rel_x;
      const int64_t e = grid_entry(table, axis, j);
      add(g * grid_scale(), at(table, {h_, e, 0}), 1, width_, at(to.q, {b_, h_, i_, 0}));
      add(g * grid_scale(), query(), 1, width_, at(axis == 0 ? to.grid_rel_y : to.grid_rel_x, {h_, e, 0}));
    }
  }

  // CoPE (arXiv 2405.18719, eq. 3 to 5).
  int64_t last_place() const { return in_.pos_emb.size(2) - 1; }
  double logit_scale() const { return c_.scale_position_logits ? scale_ : 1.0; }
  const Tensor& gate_keys() const { return in_.gate_key.defined() ? in_.gate_key : in_.k; }

  /// The entry at or below a place; the last interval where the place is the last entry.
  int64_t lower(int64_t j) const {
    return std::max<int64_t>(std::min(static_cast<int64_t>(places_[j]), last_place() - 1), 0);
  }
  double logit(int64_t p) const {
    return logit_scale() * dot(query(), at(in_.pos_emb, {h_, 0, p}), width_, in_.pos_emb.size(2));
  }

  void count_gates() {
    double sum = 0;
    for (int64_t j = keys_ - 1; j >= 0; --j) {
      if (sees(j)) {
        const double x = scale_ * dot(query(), at(gate_keys(), {b_, group_, j, 0}), width_) +
                         (in_.gate_bias.defined() ? *at(in_.gate_bias, {h_}) : 0.0);
        gates_[j] = 1.0 / (1.0 + std::exp(-x));
        sum += gates_[j];
      }
      places_[j] = std::min(sum, static_cast<double>(last_place()));
    }
  }

  void add_gate_gradients(const std::vector<double>& grad, const Inputs& to) const {
    const int64_t row = in_.pos_emb.size(2);
    double of_later_gates = 0;  // sum over keys up to this one of what moves with their places
    for (int64_t j = 0; j < keys_; ++j) {
      if (!sees(j)) {
        continue;
      }
      const int64_t low = lower(j);
      const double part = places_[j] - static_cast<double>(low);
      const auto add_entry = [&](int64_t p, double g) {
        if (g != 0) {
          add(g * logit_scale(), at(in_.pos_emb, {h_, 0, p}), row, width_, at(to.q, {b_, h_, i_, 0}));
          add(g * logit_scale(), query(), 1, width_, at(to.pos_emb, {h_, 0, p}), row);
        }
      };
      add_entry(low, grad[j] * (1.0 - part));
      add_entry(low + 1, grad[j] * part);
      if (places_[j] < static_cast<double>(last_place())) {
        of_later_gates += grad[j] * (logit(low + 1) - logit(low));
      }
      const double of_gate_logit = of_later_gates * gates_[j] * (1.0 - gates_[j]);
      add(of_gate_logit * scale_, at(gate_keys(), {b_, group_, j, 0}), 1, width_, at(to.q, {b_, h_, i_, 0}));
      add(of_gate_logit * scale_, query(), 1, width_,
          at(in_.gate_key.defined() ? to.gate_key : to.k, {b_, group_, j, 0}));
      if (in_.gate_bias.defined()) {
        *at(to.gate_bias, {h_}) += of_gate_logit;
      }
    }
  }

  const Call& c_;
  const Inputs& in_;
  int64_t b_, h_, i_, keys_, own_, group_, width_;
  double scale_, lse_ = 0;
  /// decays_[t]: the sum of log_decay over the tokens t .. own_ of the query's segment.
  std::vector<double> scores_, decays_, gates_, places_;
};

/// The call with everything in float64.
inline Call widened(Call call) {
  for (const auto& [name, tensor] : kMembers) {
    call.inputs.*tensor = wide(call.inputs.*tensor);
  }
  for (Tensor* x : {&call.key_mask, &call.segment_ids, &call.q_positions, &call.k_positions, &call.attn_mask,
                    &call.q_segment_ids, &call.block_ids, &call.q_start, &call.q_grid, &call.k_grid, &call.kept}) {
    *x = wide(*x);
  }
  return call;
}

template <typename Body>
void for_each_row(const Call& call, const Body& body) {
  const Tensor& q = call.inputs.q;
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(1); ++h) {
      for (int64_t i = 0; i < q.size(2); ++i) {
        body(b, h, i, Row(call, b, h, i));
      }
    }
  }
}

inline Result attention(const Call& given) {
  const Call call = widened(given);
  const Tensor &q = call.inputs.q, &v = call.inputs.v;
  Result r{at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, at::kDouble),
           at::zeros({q.size(0), q.size(1), q.size(2)}, at::kDouble)};
  for_each_row(call, [&](int64_t b, int64_t h, int64_t i, const Row& row) {
    row.sum_values(at(r.out, {b, h, i, 0}));
    *at(r.lse, {b, h, i}) = row.lse();
  });
  return r;
}

/// Final scores (B, H, Tq, Tk), hidden keys -infinity.
inline Tensor logits(const Call& given) {
  const Call call = widened(given);
  Tensor all = at::zeros({call.inputs.q.size(0), call.inputs.q.size(1), call.inputs.q.size(2), call.inputs.k.size(2)},
                         at::kDouble);
  for_each_row(call, [&](int64_t b, int64_t h, int64_t i, const Row& row) {
    std::copy(row.scores().begin(), row.scores().end(), at(all, {b, h, i, 0}));
  });
  return all;
}

/// The gradients of sum(out * grad_out) + sum(lse * grad_lse), without the lse of queries that see no key.
inline Inputs gradients(const Call& given, const Tensor& grad_out, const Tensor& grad_lse) {
  const Call call = widened(given);
  const Tensor of_out = wide(grad_out), of_lse = wide(grad_lse);
  Inputs grads;
  for (const auto& [name, tensor] : kMembers) {
    const Tensor& x = call.inputs.*tensor;
    grads.*tensor = x.defined() ? at::zeros_like(x) : x;
  }
  for_each_row(call, [&](int64_t b, int64_t h, int64_t i, const Row& row) {
    row.add_gradients(at(of_out, {b, h, i, 0}), *at(of_lse, {b, h, i}), grads);
  });
  return grads;
}

/// The largest difference, relative to the largest number expected or to 1.
inline double error(const Tensor& actual, const Tensor& expected) {
  const Tensor a = wide(actual), e = wide(expected);
  if (a.sizes() != e.sizes()) {
    return kInfinity;
  }
  double largest = 1, difference = 0;
  for (int64_t i = 0; i < e.numel(); ++i) {
    const double x = a.const_data_ptr<double>()[i], y = e.const_data_ptr<double>()[i];
    if (std::isfinite(x) && std::isfinite(y)) {
      largest = std::max(largest, std::abs(y));
      difference = std::max(difference, std::abs(x - y));
    } else if (x != y) {
      return kInfinity;
    }
  }
  return difference / largest;
}

}  // namespace reference
