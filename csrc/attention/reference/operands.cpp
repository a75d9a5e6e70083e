#include "attention/cpu/loops/kernel.h"
#include "attention/reference/scores.h"

#include <limits>

namespace posenc::attention_ops::reference {
namespace {

/// Numbers of a bias up to this one hide a key: -infinity; the lowest finite one of its dtype, with which many models
/// mask; and those near the lowest one of the computing dtype, which kernels, whose scores are in base 2, cannot hold.
double hiding_bound(at::ScalarType type, at::ScalarType computing) {
  const auto lowest = [](at::ScalarType of) {
    switch (of) {
      case at::kDouble:
        return std::numeric_limits<double>::lowest();
      case at::kHalf:
        return static_cast<double>(std::numeric_limits<at::Half>::lowest());
      case at::kBFloat16:
        return static_cast<double>(std::numeric_limits<at::BFloat16>::lowest());
      default:
        return static_cast<double>(std::numeric_limits<float>::lowest());
    }
  };
  return std::max(lowest(type), lowest(computing) * kLn2);
}

/// (T) or (B, T) -> (1 or B, 1, T).
Tensor by_batch(const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0).unsqueeze(0) : x.unsqueeze(1); }

Tensor finite_part(const Tensor& x) { return at::where(x.isfinite(), x, 0.0); }

/// x of a block of rows, where it has a row for each query.
Tensor block_rows(const Tensor& x, const c10::SymInt& begin, const c10::SymInt& length) {
  return x.dim() < 2 || x.sym_size(-2) == 1 ? x : x.narrow_symint(-2, begin, length);
}

}  // namespace

Operands::Operands(const Call& c, Mode mode)
    : call(c),
      mode(mode),
      dtype(computing_dtype(c)),
      batch(c.query().sym_size(0)),
      heads(c.query().sym_size(1)),
      groups(c.key().sym_size(1)),
      keys(c.key().sym_size(2)) {
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    const bool present = c.inputs[slot].has_value();
    wide_[slot] = present ? OptionalTensor(c.inputs[slot]->to(dtype)) : std::nullopt;
    may_be_infinite_[slot] = present && may_be_infinite(*wide_[slot]);
  }
}

bool Operands::may_be_infinite(const Tensor& x) const {
  return mode != Mode::kEager || !x.isfinite().all().item<bool>();
}

Block Operands::block(const c10::SymInt& begin, const c10::SymInt& length) const {
  const auto rows = [&](Slot slot) { return wide_[slot]->narrow_symint(2, begin, length); };
  const auto counted = call.query().options().dtype(at::kLong);
  const auto placed = [&](const OptionalTensor& positions, const c10::SymInt& first, const c10::SymInt& count) {
    if (!positions) {
      return at::arange(first, first + count, counted).unsqueeze(0).unsqueeze(0);
    }
    const Tensor p = by_batch(*positions);
    return at::isFloatingType(p.scalar_type()) ? p : p.to(at::kLong);
  };
  const c10::SymInt queries = call.query().sym_size(2);
  Tensor q = placed(call.q_positions, keys - queries, queries).narrow_symint(2, begin, length).unsqueeze(-1);
  Tensor k = placed(call.k_positions, 0, keys).unsqueeze(-2);
  if (at::isFloatingType(q.scalar_type()) || at::isFloatingType(k.scalar_type())) {
    const auto real = call.query().is_mps() ? at::kFloat : at::kDouble;  // MPS has no float64
    q = q.to(real);
    k = k.to(real);
  }
  Block b{.begin = begin,
          .length = length,
          .query = rows(kQuery),
          .far_query = call.has(kFarQuery) ? OptionalTensor(rows(kFarQuery)) : std::nullopt,
          .visible = visible(begin, length, q, k),
          .distance = {}};
  if (!at::isFloatingType(q.scalar_type())) {
    b.distance = k - q;
  }
  return b;
}

Tensor Operands::visible(const c10::SymInt& begin, const c10::SymInt& length, const Tensor& q, const Tensor& k) const {
  const c10::SymInt one = 1;
  Tensor seen = at::ones_symint({one, one, length, keys}, call.query().options().dtype(at::kBool));
  if (call.is_causal) {
    seen = seen.logical_and(k <= q);
  }
  if (call.window) {
    seen = seen.logical_and(q - k < *call.window);
    if (!call.is_causal) {
      seen = seen.logical_and(k - q < *call.window);
    }
  }
  if (call.key_mask) {
    seen = seen.logical_and(call.key_mask->unsqueeze(1).unsqueeze(1));
  }
  if (call.segment_ids) {
    const Tensor ids = call.segment_ids->unsqueeze(1);
    const c10::SymInt first = keys - call.query().sym_size(2) + begin;
    seen = seen.logical_and(ids.narrow_symint(2, first, length).unsqueeze(-1) == ids.unsqueeze(-2));
  }
  if (call.has(kBias)) {
    const Tensor& bias = call[kBias];
    seen = seen.logical_and((block_rows(bias, begin, length) <= hiding_bound(bias.scalar_type(), dtype)).logical_not());
  }
  return seen;
}

Tensor Operands::scores(const Tensor& a, Slot b) const {
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
  // A gradient of a must not meet keys that are not finite; where such a key is seen, the weights are NaN as they are.
  const c10::SymInt one = 1;
  const Tensor infinite = y.isfinite()
                              .logical_not()
                              .any(-1)
                              .unsqueeze(2)
                              .expand_symint({batch, groups, heads / groups, keys})
                              .reshape_symint({batch, heads, one, keys});
  return at::where(infinite, product(a.detach(), y.detach()), product(a, finite_part(y)));
}

Tensor Operands::sum_keys(const Tensor& weights, Slot b, const Tensor& visible) const {
  const c10::SymInt rows = weights.sym_size(2);
  const Tensor& y = *wide_[b];
  const auto product = [&](const Tensor& w, const Tensor& x) {
    return w.reshape_symint({batch, groups, (heads / groups) * rows, keys})
        .matmul(x)
        .reshape_symint({batch, heads, rows, x.sym_size(3)});
  };
  if (!may_be_infinite_[b]) {
    return product(weights, y);
  }
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
  if (!may_be_infinite(x)) {
    return product(weights, x);
  }
  Tensor sum = product(weights, finite_part(x));
  const Tensor seen = visible.expand_symint({batch, heads, rows, keys}).to(dtype);
  return at::where(product(seen, x.isfinite().logical_not().to(dtype)) > 0, kNaN, sum);
}

}  // namespace posenc::attention_ops::reference
