#include "attention/reference.h"

#include "attention/checks.h"
#include "attention/dropout.h"
#include "attention/registration.h"
#include "attention/terms/list.h"

#include <algorithm>
#include <limits>

namespace posenc::attention_ops::reference {
namespace {

/// Scores that exist at a time.
constexpr int64_t kBlockScores = 1 << 21;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max(), kSmallest = std::numeric_limits<int64_t>::min();

/// (T) or (B, T) -> (1 or B, 1, T).
Tensor by_batch(const Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0).unsqueeze(0) : x.unsqueeze(1); }

/// True where the position a is at most `reach` after b, or less than reach + 1 where that is not `included` itself, as
/// positions may be fractions. Equal positions are, infinite ones too.
Tensor within(const Tensor& a, const Tensor& b, int64_t reach, bool included) {
  if (at::isFloatingType(a.scalar_type())) {
    const Tensor near = included ? a - b <= reach : a - b < reach + 1;
    return near.logical_or(a == b);
  }
  return a.clamp_min(kSmallest + reach) - reach <= b;  // a - b may overflow
}

/// True where the windows of a call let a query at q see a key at k.
Tensor in_windows(const Call& c, const Tensor& q, const Tensor& k) {
  const bool included = !c.window;
  const auto left = c.window ? std::make_optional(*c.window - 1) : c.window_left,
             right = c.window ? left : c.window_right;
  Tensor visible = at::ones({}, q.options().dtype(at::kBool));
  if (left) {
    visible = visible.logical_and(within(q, k, *left, included));
  }
  if (right && !c.is_causal) {
    visible = visible.logical_and(within(k, q, *right, included));
  }
  return visible;
}

Block block_of(const Operands& o, const Rows& rows) {
  const Call& call = o.call;
  const auto counted = call.query().options().dtype(at::kLong);
  const bool given = call.q_places() || call.k_places() || call.q_start;
  const auto placed = [&](const OptionalTensor& positions, const c10::SymInt& first, const c10::SymInt& count) {
    if (!positions) {
      return at::arange(first, first + count, counted).unsqueeze(0).unsqueeze(0);
    }
    const Tensor p = by_batch(*positions);
    return at::isFloatingType(p.scalar_type()) ? p : p.to(at::kLong);
  };
  const c10::SymInt queries = call.query().sym_size(2), one = 1;
  Tensor q = placed(call.q_places(), o.keys - queries, queries);
  if (call.q_start) {
    q = call.q_start->reshape({-1, 1, 1}) + at::arange(queries, counted);
  }
  q = q.narrow_symint(2, rows.begin, rows.length).unsqueeze(-1);
  Tensor k = placed(call.k_places(), 0, o.keys).unsqueeze(-2);
  const bool floating = at::isFloatingType(q.scalar_type()) || at::isFloatingType(k.scalar_type());
  if (floating) {
    q = q.to(wide_type(o));
    k = k.to(wide_type(o));
  }
  Tensor visible = at::ones_symint({one, one, rows.length, o.keys}, call.query().options().dtype(at::kBool));
  if (call.is_causal) {
    visible = visible.logical_and(k <= q);
  }
  visible = visible.logical_and(in_windows(call, q, k));
  const auto equal_ids = [&](const Tensor& of_queries, const c10::SymInt& first, const Tensor& of_keys) {
    return of_queries.narrow_symint(1, first, rows.length).unsqueeze(1).unsqueeze(-1) ==
           of_keys.unsqueeze(1).unsqueeze(-2);
  };
  if (call.block_ids) {
    const Tensor& ids = *call.block_ids;
    const Tensor same = equal_ids(ids, o.own_key(rows), ids).logical_and((ids >= 0).unsqueeze(1).unsqueeze(-2));
    visible = visible.logical_or(same);
  }
  if (call.key_mask) {
    visible = visible.logical_and(call.key_mask->unsqueeze(1).unsqueeze(1));
  }
  if (call.segment_ids) {
    const Tensor& ids = *call.segment_ids;
    visible = visible.logical_and(call.q_segment_ids ? equal_ids(*call.q_segment_ids, rows.begin, ids)
                                                     : equal_ids(ids, o.own_key(rows), ids));
  }
  for_each_used_term(call, [&](auto term) { term.hide(o, rows, visible); });
  Block b{.rows = rows, .query = o.rows_of(kQuery, rows), .visible = visible, .distance = {}};
  if (!floating) {
    b.distance = given ? difference(k, q) : k - q;
  }
  return b;
}

/// The blocks of queries. With symbolic sizes there is one.
std::vector<Rows> blocks_of(const Operands& o) {
  const c10::SymInt queries = o.call.query().sym_size(2);
  const auto count = queries.maybe_as_int(), row = (o.batch * o.heads * o.keys).maybe_as_int();
  if (!count || !row || o.mode == Mode::kComposite) {
    return {Rows{0, queries}};
  }
  const int64_t rows = std::max<int64_t>(1, kBlockScores / std::max<int64_t>(1, *row));
  std::vector<Rows> blocks;
  for (int64_t begin = 0; begin == 0 || begin < *count; begin += rows) {
    blocks.push_back({begin, std::min(rows, *count - begin)});
  }
  return blocks;
}

/// A round of two multiplications of the mixer in dropout.h, on int64 tensors that hold 32 bits.
Tensor mixed(Tensor x) {
  using namespace dropout;
  x = (x.bitwise_xor(x.bitwise_right_shift(16)) * kFirst) & kMask;
  x = (x.bitwise_xor(x.bitwise_right_shift(15)) * kSecond) & kMask;
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

/// True where a weight is kept, (B, H, length, Tk).
Tensor kept(const Operands& o, const Block& block, const Tensor& seed) {
  using namespace dropout;
  const auto counted = seed.options();
  const Tensor low = seed & kMask, high = seed.bitwise_right_shift(32) & kMask;
  const Tensor heads = at::arange(o.batch * o.heads, counted).reshape_symint({o.batch, o.heads, 1, 1});
  const Tensor queries = at::arange(block.rows.begin, block.rows.begin + block.rows.length, counted).unsqueeze(-1);
  const Tensor keys = (at::arange(o.keys, counted) * kStep) & kMask;
  const Tensor by_head = mixed((mixed(low.bitwise_xor(heads)) + high) & kMask);
  return mixed(mixed(by_head.bitwise_xor(queries)).bitwise_xor(keys)) >= threshold(o.call.dropout_p);
}

/// Weights after dropout.
Tensor dropped(const Operands& o, const Block& block, const Tensor& seed, const Tensor& weights) {
  const double p = o.call.dropout_p;
  if (p == 0.0) {
    return weights;
  }
  return p == 1.0 ? at::zeros_like(weights) : at::where(kept(o, block, seed), weights / (1.0 - p), 0.0);
}

/// An int64 scalar that dropout's mask follows from, from torch's generator.
Tensor drawn_seed(const Call& c, Mode mode) {
  const auto counted = c.query().options().dtype(at::kLong);
  if (c.dropout_p == 0.0) {
    return at::zeros({}, counted);
  }
  return mode == Mode::kComposite ? at::randint(kLargest, {}, counted) : at::empty({}, counted).random_(0, kLargest);
}

/// Final scores, and the product of queries and keys that they begin with. Entries of hidden keys may be anything.
struct Scores {
  Tensor product, all;
};

Scores scores(const Operands& o, const Block& block) {
  Tensor s = o.scores(block.query, kKey);
  for_each_used_term(o.call, [&](auto term) { term.replace_product(o, block, s); });
  s = s * o.call.score_scale();
  for_each_used_term(o.call, [&](auto term) { term.cap_product(o, s); });
  const Tensor product = s;
  for_each_used_term(o.call, [&](auto term) { term.add_scores(o, block, s); });
  for_each_used_term(o.call, [&](auto term) { term.cap_scores(o, s); });
  return {product, s};
}

/// The logits without a value, broadcastable to (B, H, length, 1).
OptionalTensor sink_of(const Operands& o, const Rows& rows) {
  OptionalTensor sink;
  for_each_used_term(o.call, [&](auto term) { term.add_sink(o, rows, sink); });
  return sink ? OptionalTensor(sink->unsqueeze(-1)) : std::nullopt;
}

/// The weights of a block, before dropout, and what a backward pass needs to form them again.
struct Softmax {
  Tensor weights, lse, largest, total;
};

Softmax softmax(const Block& block, const Scores& scores, const OptionalTensor& sink) {
  const Tensor s = at::where(block.visible, scores.all, -kInfinity);
  Tensor largest = s.detach().amax(-1, /*keepdim=*/true);
  if (sink) {
    largest = at::maximum(largest, sink->detach());
  }
  const Tensor shift = at::where(largest == -kInfinity, 0.0, largest);
  const Tensor exponentials = (s - shift).exp();
  Tensor total = exponentials.sum(-1, /*keepdim=*/true);
  if (sink) {
    total = total + (*sink - shift).exp();
  }
  const Tensor empty = total == 0.0, divisor = at::where(empty, 1.0, total);
  return {exponentials / divisor, at::where(empty, -kInfinity, divisor.log() + shift).squeeze(-1), shift.squeeze(-1),
          divisor.squeeze(-1)};
}

struct BlockResult {
  Tensor out, lse, largest, total;
};

BlockResult forward_block(const Operands& o, const Block& block, const Tensor& seed) {
  const Softmax found = softmax(block, scores(o, block), sink_of(o, block.rows));
  const Tensor weights = dropped(o, block, seed, found.weights);
  Tensor out = o.sum_keys(weights, kValue, block.visible);
  for_each_used_term(o.call, [&](auto term) { term.add_output(o, block, weights, out); });
  return {out, found.lse, found.largest, found.total};
}

/// The weights of the forward pass, of keys and of a sink. A composite form makes them anew, since its own derivatives
/// go through all that they depend on.
struct Weights {
  Tensor of_keys;
  /// (B, H, length).
  OptionalTensor of_sink;
};

Weights weights_again(const Operands& o, const Block& block, const Scores& scores, const Residuals& saved) {
  const auto rows = [&](const Tensor& x) {
    return x.narrow_symint(2, block.rows.begin, block.rows.length).unsqueeze(-1);
  };
  const OptionalTensor sink = sink_of(o, block.rows);
  Tensor largest, total;
  if (o.mode == Mode::kComposite) {
    const Softmax found = softmax(block, scores, sink);
    largest = found.largest.unsqueeze(-1);
    total = found.total.unsqueeze(-1);
  } else {
    largest = rows(saved.largest);
    total = rows(saved.total);
  }
  const auto weight = [&](const Tensor& score) { return (score - largest).exp() / total; };
  const Tensor of_keys = weight(at::where(block.visible, scores.all, -kInfinity));
  return {at::where(block.visible, of_keys, 0.0),  // where the row's lse is NaN too
          sink ? OptionalTensor(weight(*sink).squeeze(-1)) : std::nullopt};
}

/// Gradients of a block (arXiv 2205.14135, appendix B.2): with Delta the sum of weight times its gradient over a row,
/// the gradient of a score is weight * (gradient of the weight - Delta + gradient of lse).
void backward_block(const Operands& o, const Block& block, const BackwardArgs& b, GradientSums& sums) {
  const auto rows = [&](const Tensor& x) { return x.narrow_symint(2, block.rows.begin, block.rows.length); };
  const Tensor sees_no_key = rows(b.saved.lse).unsqueeze(-1) == -kInfinity;
  // Weights of 0 must not meet a gradient that is not finite.
  const Tensor grad_out = at::where(sees_no_key, 0.0, rows(b.grad_out).to(o.dtype));
  const Scores s = scores(o, block);
  const auto [weights, of_sink] = weights_again(o, block, s, b.saved);
  const Tensor used = dropped(o, block, b.saved.seed, weights);

  if (sums.wants(kValue)) {
    sums.add(kValue, o.sum_queries(used, grad_out, block.visible));
  }
  Tensor grad_weights = o.scores(grad_out, kValue);
  for_each_used_term(o.call,
                     [&](auto term) { term.add_weight_gradients(o, block, used, grad_out, grad_weights, sums); });
  grad_weights = at::where(block.visible, dropped(o, block, b.saved.seed, grad_weights), 0.0);
  const Tensor delta = (weights * grad_weights).sum(-1, /*keepdim=*/true);
  Tensor common = -delta;
  if (b.grad_lse) {
    common = common + rows(*b.grad_lse).unsqueeze(-1);
  }
  if (of_sink) {
    const Tensor of_logit = *of_sink * common.squeeze(-1);
    for_each_used_term(o.call, [&](auto term) { term.add_sink_gradient(o, block.rows, of_logit, sums); });
  }
  Tensor grad = at::where(block.visible, weights * (grad_weights + common), 0.0);
  for_each_used_term(o.call, [&](auto term) { term.uncap_scores(o, s.all, grad); });
  ProductGradient product{grad, block.visible};
  for_each_used_term(o.call, [&](auto term) { term.uncap_product(o, s.product, product.gradient); });
  for_each_used_term(o.call, [&](auto term) { term.add_gradients(o, block, grad, product, sums); });
  add_product_gradients(o, block.query, kQuery, kKey, product, sums);
  sums.next_block();
}

/// A call without keys: its softmax has the sink alone, if there is one.
Residuals without_keys(const Operands& o, const Tensor& seed) {
  const Call& c = o.call;
  const Tensor lse = empty_lse(c);
  const OptionalTensor sink = sink_of(o, {0, c.query().sym_size(2)});
  const Tensor of_sink = sink ? sink->squeeze(-1) + at::zeros_like(lse) : at::full_like(lse, -kInfinity);
  return {at::zeros_like(empty_out(c, o.dtype)),
          of_sink,
          seed,
          at::where(of_sink == -kInfinity, 0.0, of_sink.detach()),
          at::ones_like(lse),
          empty_counts(c)};
}

}  // namespace

Residuals forward(const Call& c, Mode mode) {
  const Tensor seed = drawn_seed(c, mode);
  const Operands o(c, mode);
  if (o.keys == 0) {
    return without_keys(o, seed);
  }
  const Tensor counts = at::zeros_like(empty_counts(c));  // the plain form counts gates anew
  if (mode == Mode::kComposite) {
    const auto [out, lse, largest, total] = forward_block(o, block_of(o, {0, c.query().sym_size(2)}), seed);
    return {out, lse, seed, largest, total, counts};
  }
  Residuals r{empty_out(c, o.dtype), empty_lse(c), seed, empty_lse(c), empty_lse(c), counts};
  for (const Rows& rows : blocks_of(o)) {
    const BlockResult found = forward_block(o, block_of(o, rows), seed);
    const auto write = [&](const Tensor& to, const Tensor& from) {
      to.narrow_symint(2, rows.begin, rows.length).copy_(from);
    };
    write(r.out, found.out);
    write(r.lse, found.lse);
    write(r.largest, found.largest);
    write(r.total, found.total);
  }
  return r;
}

Gradients backward(const BackwardArgs& b, const Call& c, Mode mode) {
  const Operands o(c, mode);
  GradientSums sums(b.wanted);
  if (o.keys != 0) {
    for (const Rows& rows : blocks_of(o)) {
      backward_block(o, block_of(o, rows), b, sums);
    }
  } else if (b.grad_lse) {
    const Rows all{0, c.query().sym_size(2)};
    for_each_used_term(c, [&](auto term) { term.add_sink_gradient(o, all, b.grad_lse->to(o.dtype), sums); });
  }
  Gradients results;
  for (int64_t input = 0; input < kInputs; ++input) {
    if (b.wanted[input]) {
      results[input] = sums.result(o, static_cast<Input>(input));
    }
  }
  return results;
}

OutAndLse attention(const Call& c, Mode mode) {
  const Residuals r = forward(c, mode);
  return {r.out.to(c.query().scalar_type()), r.lse};
}

Tensor logits(const Call& c) {
  const Operands o(c, Mode::kComposite);
  const Block block = block_of(o, {0, c.query().sym_size(2)});
  return at::where(block.visible, scores(o, block).all, -kInfinity);
}

namespace {

template <Mode mode>
OutAndLse public_form(const Call& c) {
  check(c);
  return attention(c, mode);
}

template <Mode mode>
Residuals forward_form(const Call& c) {
  check(c);
  return forward(c, mode);
}

template <Mode mode>
Gradients backward_form(const BackwardArgs& b, const Call& c) {
  check(c);
  return backward(b, c, mode);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  register_ops<public_form<Mode::kDevice>, forward_form<Mode::kDevice>, backward_form<Mode::kDevice>>(m);
}

POSENC_LIBRARY_IMPL(FuncTorchBatched, m) {
  register_ops<public_form<Mode::kComposite>, forward_form<Mode::kComposite>, backward_form<Mode::kComposite>>(m);
}

}  // namespace
}  // namespace posenc::attention_ops::reference
