#include "attention/reference/reference.h"

#include "attention/checks.h"
#include "attention/dropout.h"
#include "attention/reference/scores.h"
#include "attention/registration.h"
#include "common/registration.h"

#include <algorithm>
#include <limits>

namespace posenc::attention_ops::reference {
namespace {

/// Scores that exist at a time.
constexpr int64_t kBlockScores = 1 << 21;

/// The blocks of queries: (begin, length). With symbolic sizes there is one.
std::vector<std::pair<c10::SymInt, c10::SymInt>> blocks_of(const Operands& o) {
  const c10::SymInt queries = o.call.query().sym_size(2);
  const auto count = queries.maybe_as_int(), row = (o.batch * o.heads * o.keys).maybe_as_int();
  if (!count || !row || o.mode == Mode::kComposite) {
    return {{0, queries}};
  }
  const int64_t rows = std::max<int64_t>(1, kBlockScores / std::max<int64_t>(1, *row));
  std::vector<std::pair<c10::SymInt, c10::SymInt>> blocks;
  for (int64_t begin = 0; begin == 0 || begin < *count; begin += rows) {
    blocks.emplace_back(begin, std::min(rows, *count - begin));
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
  const Tensor queries = at::arange(block.begin, block.begin + block.length, counted).unsqueeze(-1);
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
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return mode == Mode::kComposite ? at::randint(kLargest, {}, counted) : at::empty({}, counted).random_(0, kLargest);
}

std::pair<Tensor, Tensor> forward_block(const Operands& o, const Block& block, const Tensor& seed) {
  const Tensor s = at::where(block.visible, scores(o, block), -kInfinity);
  const Tensor largest = s.detach().amax(-1, /*keepdim=*/true);
  const Tensor shift = at::where(largest == -kInfinity, 0.0, largest);
  const Tensor exponentials = (s - shift).exp();
  const Tensor sum = exponentials.sum(-1, /*keepdim=*/true);
  const Tensor empty = sum == 0.0, divisor = at::where(empty, 1.0, sum);
  const Tensor lse = at::where(empty, -kInfinity, divisor.log() + shift).squeeze(-1);
  const Tensor weights = dropped(o, block, seed, exponentials / divisor);
  Tensor out = o.sum_keys(weights, kValue, block.visible);
  if (o.call.has(kRelV)) {
    const c10::SymInt entries = o[kRelV].sym_size(-2);
    out = out + sum_bins(o, weights, clipped(block, entries), entries).matmul(o[kRelV]);
  }
  return {out, lse};
}

/// Gradients of a block (arXiv 2205.14135, appendix B.2): with Delta the sum of weight times its gradient over a row,
/// the gradient of a score is weight * (gradient of the weight - Delta + gradient of lse).
void backward_block(const Operands& o, const Block& block, const Saved& saved, Gradients& gradients) {
  const auto rows = [&](const Tensor& x) { return x.narrow_symint(2, block.begin, block.length); };
  const Tensor lse = rows(saved.lse).unsqueeze(-1);
  // A query that sees no key has weights of 0, which must not meet a gradient that is not finite.
  const Tensor grad_out = at::where(lse == -kInfinity, 0.0, rows(saved.grad_out).to(o.dtype));
  const Tensor shift = at::where(lse == -kInfinity, 0.0, lse);
  const Tensor exponentials = (at::where(block.visible, scores(o, block), -kInfinity) - shift).exp();
  const Tensor weights = at::where(block.visible, exponentials, 0.0);  // where the row's lse is NaN too
  const Tensor used = dropped(o, block, saved.seed, weights);

  if (gradients.wants(kValue)) {
    gradients.add(kValue, o.sum_queries(used, grad_out, block.visible));
  }
  Tensor grad_weights = o.scores(grad_out, kValue);
  if (o.call.has(kRelV)) {
    const Tensor& rel_v = o[kRelV];
    const c10::SymInt entries = rel_v.sym_size(-2);
    const Tensor index = clipped(block, entries);
    if (gradients.wants(kRelV)) {
      gradients.add(
          kRelV,
          sum_bins(o, used, index, entries).transpose(-1, -2).matmul(grad_out).sum_to_size_symint(rel_v.sym_sizes()));
    }
    grad_weights = grad_weights + look_up(o, grad_out.matmul(rel_v.transpose(-1, -2)), index);
  }
  grad_weights = at::where(block.visible, dropped(o, block, saved.seed, grad_weights), 0.0);
  const Tensor delta = (weights * grad_weights).sum(-1, /*keepdim=*/true);
  Tensor grad = grad_weights - delta;
  if (saved.grad_lse) {
    grad = grad + rows(*saved.grad_lse).unsqueeze(-1);
  }
  add_score_gradients(o, block, at::where(block.visible, weights * grad, 0.0), gradients);
  gradients.next_block();
}

/// The state of a forward pass whose backward needs none.
std::vector<Tensor> unused_state(const Call& c) {
  std::vector<Tensor> state = empty_state(c);
  std::transform(state.begin(), state.end(), state.begin(), [](const Tensor& x) { return at::zeros_like(x); });
  return state;
}

/// The result of a call without any key.
Forward without_keys(const Call& c, const Tensor& seed) {
  const Tensor lse = empty_lse(c);
  return {at::zeros_like(empty_out(c, computing_dtype(c))), at::full_like(lse, -kInfinity), seed, unused_state(c)};
}

}  // namespace

Gradients::Gradients(const std::vector<int64_t>& wanted) {
  for (const int64_t slot : wanted) {
    wanted_[slot] = true;
  }
}

void Gradients::add(Slot slot, const Tensor& gradient) {
  sums_[slot] = sums_[slot] ? *sums_[slot] + gradient : gradient;
}

void Gradients::add_rows(Slot slot, const Tensor& gradient) {
  rows_[slot] = rows_[slot] ? *rows_[slot] + gradient : gradient;
}

void Gradients::next_block() {
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    if (rows_[slot]) {
      blocks_[slot].push_back(*rows_[slot]);
      rows_[slot] = std::nullopt;
    }
  }
}

Tensor Gradients::result(const Operands& o, Slot slot) const {
  const Tensor& input = o.call[slot];
  OptionalTensor gradient = sums_[slot];
  if (!blocks_[slot].empty()) {
    gradient = at::cat(blocks_[slot], -2);
  }
  if (!gradient) {
    return at::zeros_like(input);
  }
  if (o.mode == Mode::kComposite) {
    return gradient->to(input.scalar_type());
  }
  return at::empty_like(input).copy_(*gradient);
}

Forward forward(const Call& c, Mode mode) {
  const Tensor seed = drawn_seed(c, mode);
  const Operands o(c, mode);
  if (o.keys == 0) {
    return without_keys(c, seed);
  }
  if (mode == Mode::kComposite) {
    const auto [out, lse] = forward_block(o, o.block(0, c.query().sym_size(2)), seed);
    return {out, lse, seed, unused_state(c)};
  }
  Tensor out = empty_out(c, o.dtype), lse = empty_lse(c);
  for (const auto& [begin, length] : blocks_of(o)) {
    const auto [block_out, block_lse] = forward_block(o, o.block(begin, length), seed);
    out.narrow_symint(2, begin, length).copy_(block_out);
    lse.narrow_symint(2, begin, length).copy_(block_lse);
  }
  return {out, lse, seed, unused_state(c)};
}

std::vector<Tensor> backward(const Saved& saved, const Call& c, Mode mode) {
  const Operands o(c, mode);
  Gradients gradients(saved.wanted);
  if (o.keys != 0) {
    for (const auto& [begin, length] : blocks_of(o)) {
      backward_block(o, o.block(begin, length), saved, gradients);
    }
  }
  std::vector<Tensor> results;
  for (const int64_t slot : saved.wanted) {
    results.push_back(gradients.result(o, static_cast<Slot>(slot)));
  }
  return results;
}

Tensor logits(const Call& c) {
  const Operands o(c, Mode::kComposite);
  const Block block = o.block(0, c.query().sym_size(2));
  return at::where(block.visible, scores(o, block), -kInfinity);
}

namespace {

template <Mode mode>
OutAndLse public_form(const Call& c) {
  check(c);
  auto [out, lse, seed, state] = forward(c, mode);
  return {out.to(c.query().scalar_type()), std::move(lse)};
}

template <Mode mode>
Forward forward_form(const Call& c) {
  check(c);
  return forward(c, mode);
}

template <Mode mode>
std::vector<Tensor> backward_form(const Saved& s, const Call& c) {
  check(c);
  return backward(s, c, mode);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  register_ops<public_form<Mode::kDevice>, forward_form<Mode::kDevice>, backward_form<Mode::kDevice>>(m);
}

POSENC_LIBRARY_IMPL(FuncTorchBatched, m) {
  register_ops<public_form<Mode::kComposite>, forward_form<Mode::kComposite>, backward_form<Mode::kComposite>>(m);
}

}  // namespace
}  // namespace posenc::attention_ops::reference
