/// The attention ops from C++: shapes around every tile size against plain float64 sums, outputs and gradients;
/// threads; memory that threads keep. Runs at each instruction-set level.

#include <posenc/ops.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using posenc::attention;
using posenc::attention_with_lse;
using posenc::AttentionFuncOptions;
using torch::Tensor;

const auto kDouble = torch::TensorOptions().dtype(torch::kDouble);

/// softmax(scale q k^T + biases) v in float64, with hidden keys left out.
std::tuple<Tensor, Tensor> plain(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionFuncOptions& o) {
  const auto wide = [](const Tensor& x) { return x.to(torch::kDouble); };
  const int64_t share = q.size(1) / k.size(1), queries = q.size(2), keys = k.size(2);
  const Tensor key = wide(k).repeat_interleave(share, 1), value = wide(v).repeat_interleave(share, 1);
  Tensor scores = wide(q).matmul(key.transpose(2, 3)) * o.scale().value_or(1.0 / std::sqrt(q.size(3)));
  const Tensor distance = torch::arange(keys).view({1, keys}) - torch::arange(keys - queries, keys).view({queries, 1});
  if (o.alibi_slopes()) {
    scores = scores - wide(*o.alibi_slopes()).view({1, -1, 1, 1}) * distance.abs();
  }
  if (o.distance_bias()) {
    const int64_t radius = (o.distance_bias()->size(1) - 1) / 2;
    scores = scores + wide(*o.distance_bias())
                          .index_select(1, (distance.clamp(-radius, radius) + radius).flatten())
                          .view({1, -1, queries, keys});
  }
  if (o.bias()) {
    scores = scores + wide(*o.bias());
  }
  Tensor seen = torch::ones({1, 1, queries, keys}, torch::kBool);
  if (o.is_causal()) {
    seen = seen.logical_and(distance <= 0);
  }
  if (o.window()) {
    seen = seen.logical_and(distance > -*o.window());
    if (!o.is_causal()) {
      seen = seen.logical_and(distance < *o.window());
    }
  }
  if (o.key_mask()) {
    seen = seen.logical_and(o.key_mask()->view({-1, 1, 1, keys}));
  }
  scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  return {torch::nan_to_num(scores.softmax(-1), 0.0).matmul(value), scores.logsumexp(-1)};
}

struct Shape {
  int64_t heads, groups, queries, keys, width, value_width;
};

std::ostream& operator<<(std::ostream& stream, const Shape& s) {
  return stream << s.heads << "/" << s.groups << " heads, " << s.queries << " x " << s.keys << ", widths " << s.width
                << " and " << s.value_width;
}

class AttentionShapes : public testing::TestWithParam<Shape> {};

TEST_P(AttentionShapes, EqualPlainSums) {
  const Shape s = GetParam();
  torch::manual_seed(4);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const double bound = type == torch::kFloat ? 5e-6 : 1e-12;
    const auto made = [&](std::vector<int64_t> sizes) {
      return torch::randn(sizes, kDouble).to(type).requires_grad_();
    };
    const Tensor q = made({2, s.heads, s.queries, s.width}), k = made({2, s.groups, s.keys, s.width});
    const Tensor v = made({2, s.groups, s.keys, s.value_width});
    const Tensor slopes = torch::rand({s.heads}, kDouble).to(type).requires_grad_(), table = made({s.heads, 31}),
                 bias = made({1, s.heads, s.queries, s.keys});
    const Tensor mask = torch::rand({2, s.keys}) > 0.3;
    for (const auto& options : {AttentionFuncOptions(), AttentionFuncOptions().is_causal(true),
                                AttentionFuncOptions().is_causal(true).window(20).alibi_slopes(slopes),
                                AttentionFuncOptions().window(9).key_mask(mask).distance_bias(table),
                                AttentionFuncOptions().is_causal(true).bias(bias).alibi_slopes(slopes).scale(0.1)}) {
      std::vector<Tensor> inputs{q, k, v};
      for (const auto& x : {options.alibi_slopes(), options.distance_bias(), options.bias()}) {
        if (x) {
          inputs.push_back(*x);
        }
      }
      const auto [out, lse] = attention_with_lse(q, k, v, options);
      const auto [expected, expected_lse] = plain(q, k, v, options);
      EXPECT_LT((out - expected).abs().max().item<double>(), bound);
      EXPECT_TRUE(torch::allclose(lse.to(torch::kDouble), expected_lse, bound, bound));
      const Tensor seen = lse.isfinite(), zero = torch::zeros_like(lse);
      const Tensor grad = torch::randn_like(out);
      const auto computed = torch::autograd::grad({(out * grad).sum() + torch::where(seen, lse, zero).sum()}, inputs);
      const auto wanted = torch::autograd::grad(
          {(expected * grad).sum() + torch::where(seen, expected_lse, zero.to(torch::kDouble)).sum()}, inputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const double size = std::max(1.0, wanted[i].abs().max().item<double>());
        EXPECT_LT((computed[i] - wanted[i]).abs().max().item<double>(), 4 * bound * size) << "input " << i;
      }
    }
  }
}

// Tiles are 96 x 96, vectors up to 16 lanes, register tiles 6 or 12 rows; few queries take the decode kernel.
INSTANTIATE_TEST_SUITE_P(, AttentionShapes,
                         testing::Values(Shape{1, 1, 1, 1, 1, 1}, Shape{4, 2, 1, 150, 33, 17},
                                         Shape{4, 1, 3, 70, 64, 64}, Shape{2, 2, 20, 20, 7, 5},
                                         Shape{2, 1, 96, 96, 16, 16}, Shape{1, 1, 97, 193, 80, 48},
                                         Shape{2, 2, 200, 131, 20, 100}, Shape{2, 1, 100, 300, 300, 257}));

TEST(AttentionOps, SixteenBitsAreOneRoundingOfFloat) {
  torch::manual_seed(4);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const int64_t queries : {1, 130}) {
      const Tensor q = torch::randn({1, 4, queries, 40}).to(type), k = torch::randn({1, 2, 200, 40}).to(type);
      const Tensor out = attention(q, k, k, AttentionFuncOptions().is_causal(true));
      const Tensor wide = attention(q.to(torch::kFloat), k.to(torch::kFloat), k.to(torch::kFloat),
                                    AttentionFuncOptions().is_causal(true));
      EXPECT_TRUE(torch::allclose(out.to(torch::kFloat), wide, type == torch::kHalf ? 1e-3 : 8e-3, 1e-5));
    }
  }
}

TEST(AttentionOps, MoreThreadsThanHeadsGiveTheSameNumbers) {
  torch::manual_seed(4);
  const Tensor q = torch::randn({1, 1, 700, 64}, torch::requires_grad()), k = torch::randn({1, 1, 900, 64});
  const Tensor last = torch::randn({1, 4, 1, 64}), key = k.clone().requires_grad_();
  const int threads = at::get_num_threads();
  const auto run = [&](int count) {
    at::set_num_threads(count);
    const Tensor out = attention(q, key, k, AttentionFuncOptions().is_causal(true));
    auto results = torch::autograd::grad({out.square().sum()}, {q, key});
    results.push_back(out);
    results.push_back(attention(last, k, k));
    return results;
  };
  const auto one = run(1), four = run(4), again = run(4);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::allclose(one[i], four[i], 1e-4, 1e-5)) << i;
    EXPECT_TRUE(torch::equal(four[i], again[i])) << i << ": the same threads give the same bits";
  }
}

TEST(AttentionOps, WhatAThreadKeepsOfOneCallDoesNotReachTheNext) {
  torch::manual_seed(4);
  const auto call = [](int64_t tokens, int64_t width) {
    torch::manual_seed(tokens);
    const Tensor x = torch::randn({1, 2, tokens, width}).transpose(1, 2).contiguous().transpose(1, 2);
    return attention(x, x, x, AttentionFuncOptions().is_causal(true));
  };
  const Tensor first = call(130, 24);
  call(260, 64);
  attention(torch::full({1, 2, 150, 40}, NAN), torch::full({1, 2, 150, 40}, NAN), torch::full({1, 2, 150, 40}, NAN));
  EXPECT_TRUE(torch::equal(call(130, 24), first));
}

TEST(AttentionOps, EveryOpHasItsFunctions) {
  torch::manual_seed(4);
  const Tensor q = torch::randn({1, 2, 5, 8}), table = torch::randn({3, 8});
  EXPECT_TRUE(torch::equal(posenc::relative_attention(q, q, q, table, table),
                           std::get<0>(posenc::relative_attention_with_lse(q, q, q, table, table))));
  const Tensor pos_emb = torch::randn({1, 8, 4});
  EXPECT_TRUE(torch::equal(posenc::cope_attention(q, q, q, pos_emb),
                           std::get<0>(posenc::cope_attention_with_lse(q, q, q, pos_emb))));
  EXPECT_TRUE(torch::equal(posenc::piecewise_attention(q, q, q, q, q, 2),
                           std::get<0>(posenc::piecewise_attention_with_lse(q, q, q, q, q, 2))));
  // Near and far alike, a piecewise score is the plain one.
  EXPECT_TRUE(torch::allclose(posenc::piecewise_attention(q, q, q, q, q, 2),
                              attention(q, q, q, AttentionFuncOptions().is_causal(true)), 1e-5, 1e-6));
}

TEST(AttentionOps, ErrorsNameOpArgumentRuleAndValue) {
  const Tensor q = torch::randn({1, 2, 5, 8});
  try {
    attention(q, q, q, AttentionFuncOptions().window(0));
    FAIL() << "a window of 0 was accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("attention: expected window to be at least 1, but got 0"),
              std::string::npos);
  }
}

}  // namespace
