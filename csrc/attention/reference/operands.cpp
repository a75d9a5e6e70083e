#include "attention/reference/operands.h"

namespace posenc::attention_ops::reference {
namespace {

Tensor finite_part(const Tensor& x) { return at::where(x.isfinite(), x, 0.0); }

}  // namespace

Operands::Operands(const Call& c, Mode mode)
    : call(c),
      mode(mode),
      dtype(computing_dtype(c)),
      batch(c.query().sym_size(0)),
      heads(c.query().sym_size(1)),
      groups(c.key().sym_size(1)),
      keys(c.key().sym_size(2)) {
  for (int64_t input = 0; input < kInputs; ++input) {
    wide_[input] = c.inputs[input] ? OptionalTensor(c.inputs[input]->to(dtype)) : std::nullopt;
  }
}

Tensor Operands::scores(const Tensor& a, Input b) const {
  const c10::SymInt rows = a.sym_size(2);
  const auto product = [&](const Tensor& x, const Tensor& y) {
    return x.reshape_symint({batch, groups, (heads / groups) * rows, x.sym_size(3)})
        .matmul(y.transpose(-1, -2))
        .reshape_symint({batch, heads, rows, keys});
  };
  const Tensor& y = *wide_[b];
  if (mode != Mode::kComposite) {
    return product(a, y);
  }
  // A gradient of a must not meet keys that are not finite; where such a key is visible, the weights are NaN as they
  // are.
  const c10::SymInt one = 1;
  const Tensor nonfinite = y.isfinite()
                               .logical_not()
                               .any(-1)
                               .unsqueeze(2)
                               .expand_symint({batch, groups, heads / groups, keys})
                               .reshape_symint({batch, heads, one, keys});
  return at::where(nonfinite, product(a.detach(), y.detach()), product(a, finite_part(y)));
}

Tensor Operands::sum_keys(const Tensor& weights, Input b, const Tensor& visible) const {
  const c10::SymInt rows = weights.sym_size(2);
  const Tensor& y = *wide_[b];
  const auto product = [&](const Tensor& w, const Tensor& x) {
    return w.reshape_symint({batch, groups, (heads / groups) * rows, keys})
        .matmul(x)
        .reshape_symint({batch, heads, rows, x.sym_size(3)});
  };
  Tensor sum = product(weights, finite_part(y));
  const Tensor seen = visible.expand_symint({batch, heads, rows, keys}).to(dtype);
  for (const auto& [which, number] :
       {std::pair{y.isnan(), kNaN}, {y.isposinf(), kInfinity}, {y.isneginf(), -kInfinity}}) {
    sum = sum + at::where(product(seen, which.to(dtype)) > 0, number, 0.0);
  }
  return sum;
}

Tensor Operands::sum_queries(const Tensor& weights, const Tensor& x, const Tensor& visible) const {
  const c10::SymInt rows = weights.sym_size(2);
  const auto product = [&](const Tensor& w, const Tensor& y) {
    return w.reshape_symint({batch, groups, (heads / groups) * rows, keys})
        .transpose(-1, -2)
        .matmul(y.reshape_symint({batch, groups, (heads / groups) * rows, y.sym_size(3)}));
  };
  Tensor sum = product(weights, finite_part(x));
  const Tensor seen = visible.expand_symint({batch, heads, rows, keys}).to(dtype);
  return at::where(product(seen, x.isfinite().logical_not().to(dtype)) > 0, kNaN, sum);
}

void GradientSums::add(Input input, const Tensor& gradient) {
  sums_[input] = sums_[input] ? *sums_[input] + gradient : gradient;
}

void GradientSums::add_rows(Input input, const Tensor& gradient) {
  rows_[input] = rows_[input] ? *rows_[input] + gradient : gradient;
}

void GradientSums::next_block() {
  for (int64_t input = 0; input < kInputs; ++input) {
    if (rows_[input]) {
      blocks_[input].push_back(*rows_[input]);
      rows_[input] = std::nullopt;
    }
  }
}

Tensor GradientSums::result(const Operands& o, Input input) const {
  const Tensor& like = o.call[input];
  OptionalTensor gradient = sums_[input];
  if (!blocks_[input].empty()) {
    gradient = at::cat(blocks_[input], -2);
  }
  if (!gradient) {
    return at::zeros_like(like);
  }
  if (o.mode == Mode::kComposite) {
    return gradient->to(like.scalar_type());
  }
  return at::empty_like(like).copy_(*gradient);
}

void add_product_gradients(const Operands& o, const Tensor& query, Input query_input, Input key_input,
                           const ProductGradient& product, GradientSums& sums) {
  if (!sums.wants(query_input) && !sums.wants(key_input)) {
    return;
  }
  const Tensor scaled = product.gradient * o.call.score_scale();
  if (sums.wants(query_input)) {
    sums.add_rows(query_input, o.sum_keys(scaled, key_input, product.visible));
  }
  if (sums.wants(key_input)) {
    sums.add(key_input, o.sum_queries(scaled, query, product.visible));
  }
}

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

bool has_row_for_each_query(const Tensor& x) { return x.dim() >= 2 && x.sym_size(-2) != 1; }

Tensor block_rows(const Tensor& x, const Rows& rows) {
  return has_row_for_each_query(x) ? x.narrow_symint(-2, rows.begin, rows.length) : x;
}

Tensor clipped(const Tensor& distance, const c10::SymInt& entries) {
  const c10::SymInt radius = (entries - 1) / 2;
  return distance.clamp(-radius, radius) + radius;
}

Tensor clipped(const Block& block, const c10::SymInt& entries) { return clipped(*block.distance, entries); }

Tensor difference(const Tensor& a, const Tensor& b) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max(), kSmallest = std::numeric_limits<int64_t>::min();
  const Tensor d = a - b;
  const Tensor overflows = (a.bitwise_xor(b) & a.bitwise_xor(d)) < 0;
  return at::where(overflows, at::where(a < b, at::scalar_tensor(kSmallest, d.options()), kLargest), d);
}

at::ScalarType wide_type(const Operands& o) { return o.call.query().is_mps() ? at::kFloat : at::kDouble; }

}  // namespace posenc::attention_ops::reference
