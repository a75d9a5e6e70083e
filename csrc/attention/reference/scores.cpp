#include "attention/reference/scores.h"

#include "attention/terms/decay/sums.h"

namespace posenc::attention_ops::reference {
namespace {

/// (H) or (B, H) -> (1 or B, H, 1, 1).
Tensor per_head(const Tensor& x) { return (x.dim() == 1 ? x.unsqueeze(0) : x).unsqueeze(-1).unsqueeze(-1); }

/// Rows of a bias with one for each query.
Tensor bias_rows(const Operands& o, const Block& block) {
  const Tensor& bias = o[kBias];
  return bias.dim() < 2 || bias.sym_size(-2) == 1 ? bias : bias.narrow_symint(-2, block.begin, block.length);
}

/// For long sums. MPS has no float64.
at::ScalarType wide_type(const Operands& o) { return o.call.query().is_mps() ? at::kFloat : at::kDouble; }

/// x (B, H, Tk) of the block's queries, which are the last tokens, less that of each key: (B, H, r, Tk).
Tensor less_keys(const Operands& o, const Block& block, const Tensor& x) {
  const Tensor rows = x.narrow_symint(2, o.keys - o.call.query().sym_size(2) + block.begin, block.length);
  return rows.unsqueeze(-1) - x.unsqueeze(-2);
}

Tensor decay_bias(const Operands& o, const Block& block) {
  const auto [sums, undefined] = sum_decays(o.call, wide_type(o));
  const Tensor bias = less_keys(o, block, sums).to(o.dtype);
  return o.may_be_infinite(kLogDecay) ? at::where(less_keys(o, block, undefined) == 0, bias, kNaN) : bias;
}

/// scale * query . key plus biases.
Tensor dot_scores(const Operands& o, const Block& block) {
  Tensor s = o.scores(block.query, kKey) * o.call.score_scale();
  if (o.call.has(kSlopes)) {
    s = s - per_head(o[kSlopes]) * block.distance->abs();
  }
  if (o.call.has(kDistanceBias)) {
    const Tensor& table = o[kDistanceBias];
    s = s + look_up(o, table.unsqueeze(0).unsqueeze(2), clipped(block, table.sym_size(1)));
  }
  if (o.call.has(kLogDecay)) {
    s = s + decay_bias(o, block);
  }
  return o.call.has(kBias) ? s + bias_rows(o, block) : s;
}

void add_dot_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients) {
  const Tensor scaled = grad * o.call.score_scale();
  if (gradients.wants(kQuery)) {
    gradients.add_rows(kQuery, o.sum_keys(scaled, kKey, block.visible));
  }
  if (gradients.wants(kKey)) {
    gradients.add(kKey, o.sum_queries(scaled, block.query, block.visible));
  }
  if (gradients.wants(kSlopes)) {
    const Tensor by_row = (grad * block.distance->abs()).sum({2, 3}).neg();
    gradients.add(kSlopes, o[kSlopes].dim() == 1 ? by_row.sum(0) : by_row);
  }
  if (gradients.wants(kDistanceBias)) {
    const c10::SymInt entries = o[kDistanceBias].sym_size(1);
    gradients.add(kDistanceBias, sum_bins(o, grad, clipped(block, entries), entries).sum({0, 2}));
  }
  if (gradients.wants(kLogDecay)) {
    const c10::SymInt before = o.keys - o.call.query().sym_size(2) + block.begin;
    const Tensor of_queries = at::constant_pad_nd_symint(grad.sum(3), {before, o.keys - before - block.length});
    const Tensor of_sums = (of_queries - grad.sum(2)).to(wide_type(o));
    gradients.add(kLogDecay, gradient_of_decays(o.call, of_sums).to(o.dtype));
  }
  if (gradients.wants(kBias)) {
    const Tensor rows = grad.sum_to_size_symint(bias_rows(o, block).sym_sizes());
    if (o[kBias].dim() < 2 || o[kBias].sym_size(-2) == 1) {
      gradients.add(kBias, rows);
    } else {
      gradients.add_rows(kBias, rows);
    }
  }
}

/// scale * query . (key + rel_k[distance]).
Tensor relative_scores(const Operands& o, const Block& block) {
  const Tensor& rel_k = o[kRelK];
  const Tensor by_entry = block.query.matmul(rel_k.transpose(-1, -2));
  return (o.scores(block.query, kKey) + look_up(o, by_entry, clipped(block, rel_k.sym_size(-2)))) *
         o.call.score_scale();
}

void add_relative_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients) {
  add_dot_gradients(o, block, grad, gradients);
  const Tensor& rel_k = o[kRelK];
  const c10::SymInt entries = rel_k.sym_size(-2);
  if (gradients.wants(kQuery) || gradients.wants(kRelK)) {
    const Tensor bins = sum_bins(o, grad * o.call.score_scale(), clipped(block, entries), entries);
    if (gradients.wants(kQuery)) {
      gradients.add_rows(kQuery, bins.matmul(rel_k));
    }
    if (gradients.wants(kRelK)) {
      gradients.add(kRelK, bins.transpose(-1, -2).matmul(block.query).sum_to_size_symint(rel_k.sym_sizes()));
    }
  }
}

/// True where q_position - k_position < threshold.
Tensor nearby(const Operands& o, const Block& block) {
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  return *block.distance > -std::max(o.call.threshold, -kLongest);
}

Tensor piecewise_scores(const Operands& o, const Block& block) {
  const Tensor near = o.scores(block.query, kKey), far = o.scores(*block.far_query, kFarKey);
  return at::where(nearby(o, block), near, far) * o.call.score_scale();
}

void add_piecewise_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients) {
  const Tensor near = nearby(o, block), scaled = grad * o.call.score_scale();
  const auto add = [&](Slot query_slot, Slot key_slot, const Tensor& query, const Tensor& used) {
    if (!gradients.wants(query_slot) && !gradients.wants(key_slot)) {
      return;
    }
    const Tensor part = at::where(used, scaled, 0.0), seen = block.visible.logical_and(used);
    if (gradients.wants(query_slot)) {
      gradients.add_rows(query_slot, o.sum_keys(part, key_slot, seen));
    }
    if (gradients.wants(key_slot)) {
      gradients.add(key_slot, o.sum_queries(part, query, seen));
    }
  };
  add(kQuery, kKey, block.query, near);
  add(kFarQuery, kFarKey, *block.far_query, near.logical_not());
}

}  // namespace

Tensor look_up(const Operands& o, const Tensor& table, const Tensor& index) {
  const c10::SymInt rows = index.sym_size(2);
  return table.expand_symint({o.batch, o.heads, rows, table.sym_size(3)})
      .gather(3, index.expand_symint({o.batch, o.heads, rows, o.keys}));
}

Tensor sum_bins(const Operands& o, const Tensor& x, const Tensor& index, const c10::SymInt& n) {
  const c10::SymInt rows = x.sym_size(2);
  return at::zeros_symint({o.batch, o.heads, rows, n}, x.options())
      .scatter_add(3, index.expand_symint({o.batch, o.heads, rows, o.keys}), x);
}

Tensor clipped(const Block& block, const c10::SymInt& entries) {
  const c10::SymInt radius = (entries - 1) / 2;
  return block.distance->clamp(-radius, radius) + radius;
}

Tensor scores(const Operands& o, const Block& block) {
  if (o.call.has(kRelK)) {
    return relative_scores(o, block);
  }
  if (o.call.has(kPosEmb)) {
    return cope_scores(o, block);
  }
  return o.call.has(kFarQuery) ? piecewise_scores(o, block) : dot_scores(o, block);
}

void add_score_gradients(const Operands& o, const Block& block, const Tensor& grad, Gradients& gradients) {
  if (o.call.has(kRelK)) {
    add_relative_gradients(o, block, grad, gradients);
  } else if (o.call.has(kPosEmb)) {
    add_cope_gradients(o, block, grad, gradients);
  } else if (o.call.has(kFarQuery)) {
    add_piecewise_gradients(o, block, grad, gradients);
  } else {
    add_dot_gradients(o, block, grad, gradients);
  }
}

}  // namespace posenc::attention_ops::reference
