/// FIRE's attention by blocks of queries: its bias depends on the query's position beside the distance, so no table
/// over distances holds it. A block's bias is formed, used and forgotten, and formed again in the backward.

#include "attention/results.h"
#include "common/registration.h"
#include "encodings/bias/checks.h"
#include "encodings/bias/fire_call.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace posenc::bias_ops {

using attention_ops::Call;
using attention_ops::kBias;
using attention_ops::kKey;
using attention_ops::kQuery;
using attention_ops::kValue;

void check_fire_call(const FireCall& f) {
  check_fire(f.parameters(), f.eps, f.span());
  attention_ops::check(f.without_bias());
}

namespace {

/// Numbers that a block's hidden layer, or its scores, may have: they bound the memory of a call.
constexpr int64_t kBlockNumbers = 1 << 20;

/// Makes derivatives available inside an op, which runs below autograd.
class AutogradHere {
  static c10::impl::LocalDispatchKeySet keys() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard keys_{keys()};
  c10::AutoGradMode mode_{true};
};

/// Queries in a block; the same in forward and backward, whose dropout is drawn by block.
int64_t block_rows(const FireCall& f) {
  const auto& query = f.inputs[0];
  const int64_t scores = query.size(0) * query.size(1), hidden = f.parameters().bias_in.size(0);
  return std::max<int64_t>(1, kBlockNumbers / std::max<int64_t>(1, f.inputs[1].size(2) * std::max(scores, hidden)));
}

/// The call of a block, still without its bias. Segments go into the bias: attention() reads a query's segment off the
/// last entries of segment_ids, which are not those of a block.
Call block_call(const FireCall& f, int64_t begin, int64_t length) {
  Call c = f.without_bias();
  const int64_t first = c.key().size(2) - c.query().size(2) + begin;
  c.inputs[kQuery] = c.query().narrow(2, begin, length);
  c.q_positions = c.q_positions ? c.q_positions->narrow(-1, begin, length)
                                : at::arange(first, first + length, c.query().options().dtype(at::kLong));
  c.segment_ids = std::nullopt;
  return c;
}

/// The bias of a block, -infinity where a key is of another segment than the query.
Tensor block_bias(const FireCall& f, const FireParameters& parameters, const Call& block, int64_t begin) {
  const Tensor bias = fire_bias(parameters, f.eps, {block.query(), block.key(), block.q_positions, block.k_positions});
  if (!f.attention.segment_ids) {
    return bias;
  }
  const Tensor& ids = *f.attention.segment_ids;
  const int64_t first = ids.size(1) - f.inputs[0].size(2) + begin;
  const Tensor own = ids.narrow(1, first, block.query().size(2));
  const Tensor others = own.unsqueeze(-1).ne(ids.unsqueeze(-2)).unsqueeze(1);
  return bias.masked_fill(others, -std::numeric_limits<double>::infinity());
}

/// f with query, key and value, whose sums over blocks would else be rounded once for each block, in float32.
FireCall widened(FireCall f) {
  const auto dtype = attention_ops::computing_dtype(f.without_bias());
  for (int64_t i = 0; i < kFirstParameter; ++i) {
    f.inputs[i] = f.inputs[i].to(dtype);
  }
  return f;
}

FireForward fire_forward(const FireCall& f) {
  check_fire_call(f);
  const Call plain = f.without_bias();
  Tensor out = attention_ops::empty_out(plain, attention_ops::computing_dtype(plain));
  Tensor lse = attention_ops::empty_lse(plain);
  const int64_t queries = out.size(2), rows = block_rows(f);
  Tensor seeds = at::zeros({queries}, out.options().dtype(at::kLong));
  const FireCall wide = widened(f);
  for (int64_t begin = 0; begin < queries; begin += rows) {
    const int64_t length = std::min(rows, queries - begin);
    Call block = block_call(wide, begin, length);
    block.inputs[kBias] = block_bias(wide, wide.parameters(), block, begin);
    // What is kept beside lse is let go: weights follow from lse alone then.
    const auto [block_out, block_lse, seed, state] = attention_ops::call_forward<attention_ops::Dot>(block);
    out.narrow(2, begin, length).copy_(block_out);
    lse.narrow(2, begin, length).copy_(block_lse);
    seeds.narrow(0, begin, length).copy_(seed);
  }
  return {out, lse, seeds};
}

OutAndLse fire_public(const FireCall& f) {
  auto [out, lse, seeds] = fire_forward(f);
  return {out.to(f.inputs[0].scalar_type()), std::move(lse)};
}

std::vector<Tensor> fire_backward(const FireSaved& s, const FireCall& f) {
  check_fire_call(f);
  return fire_gradients(s, f, /*differentiable=*/false);
}

}  // namespace

std::vector<Tensor> fire_gradients(const FireSaved& s, const FireCall& f, bool differentiable) {
  const auto wants = [&](int64_t input) { return std::ranges::find(s.wanted, input) != s.wanted.end(); };
  const FireCall wide = widened(f);
  const auto dtype = wide.inputs[0].scalar_type();
  std::array<Tensor, kFireInputs> parameters = f.inputs;
  std::vector<int64_t> slots, learned;
  std::vector<Tensor> leaves;
  for (int64_t i = 0; i < kFireInputs; ++i) {
    if (i >= kFirstParameter && !differentiable) {
      parameters[i] = f.inputs[i].detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_(wants(i));
    }
    if (i < kFirstParameter && wants(i)) {
      slots.push_back(i);  // query, key and value come first among the slots of attention too
    } else if (wants(i)) {
      learned.push_back(i);
      leaves.push_back(parameters[i]);
    }
  }
  if (!learned.empty()) {
    slots.push_back(kBias);
  }
  const FireParameters p = FireCall{parameters, f.eps, f.attention}.parameters();

  std::array<Tensor, kFireInputs> sums;
  std::vector<Tensor> query_blocks;
  const auto add = [&](int64_t input, const Tensor& gradient) {
    Tensor& sum = sums[input];
    sum = !sum.defined() ? gradient : differentiable ? sum + gradient : sum.add_(gradient);
  };
  const int64_t queries = f.inputs[0].size(2), rows = block_rows(f);
  for (int64_t begin = 0; begin < queries; begin += rows) {
    const int64_t length = std::min(rows, queries - begin);
    const auto block_of = [&](const Tensor& x) { return x.narrow(2, begin, length); };
    Call block = block_call(wide, begin, length);
    Tensor bias;
    {
      const AutogradHere here;
      bias = block_bias(wide, p, block, begin);
    }
    block.inputs[kBias] = differentiable ? bias : bias.detach();
    const auto gradients = attention_ops::call_backward<attention_ops::Dot>(
        {block_of(s.grad_out).to(dtype),
         s.grad_lse ? OptionalTensor(block_of(*s.grad_lse)) : std::nullopt,
         block_of(s.out).to(dtype),
         block_of(s.lse),
         s.seeds.select(0, begin),
         {},
         slots},
        block);
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kQuery) {
        query_blocks.push_back(gradients[i]);
      } else if (slots[i] != kBias) {
        add(slots[i], gradients[i]);
      }
    }
    if (!learned.empty()) {
      const AutogradHere here;
      const auto of_parameters =
          torch::autograd::grad({bias}, leaves, {gradients.back()}, /*retain_graph=*/std::nullopt,
                                /*create_graph=*/differentiable);
      for (size_t i = 0; i < learned.size(); ++i) {
        add(learned[i], differentiable ? of_parameters[i] : of_parameters[i].detach());
      }
    }
  }
  if (!query_blocks.empty()) {
    sums[0] = at::cat(query_blocks, 2);
  }

  std::vector<Tensor> result;
  for (const int64_t input : s.wanted) {
    const Tensor& like = f.inputs[input];
    if (!sums[input].defined()) {
      result.push_back(at::zeros_like(like));
    } else {
      result.push_back(differentiable ? sums[input].to(like.scalar_type()) : at::empty_like(like).copy_(sums[input]));
    }
  }
  return result;
}

OutAndLse fire_at_once(const FireCall& f) {
  check_fire_call(f);
  Call c = f.without_bias();
  c.inputs[kBias] = fire_bias(f.parameters(), f.eps, f.span());
  return attention_ops::call_public<attention_ops::Dot>(c);
}

namespace {

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_fire_attention", &flat_fire<fire_public>);
  m.impl("_fire_attention_forward", &flat_fire<fire_forward>);
  m.impl("_fire_attention_backward", &flat_fire_backward<fire_backward>);
}

POSENC_LIBRARY_IMPL(FuncTorchBatched, m) { m.impl("_fire_attention", &flat_fire<fire_at_once>); }

}  // namespace
}  // namespace posenc::bias_ops
