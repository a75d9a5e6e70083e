/// The attention layer with keys of another sequence, and with caches; what it refuses, and how it prints. Values
/// against formulas in plain ATen. Runs at each instruction-set level.

#include "layer_formula.h"
#include "support.h"

#include <cmath>
#include <sstream>
#include <string>

namespace {

// Keys of another sequence.

AttentionOptions crossing() {
  return normed(kWidth, kKeyHeads * kWidth).cross(true).sinks(true).softcap(1.5).value_dim(5);
}

/// As formula() with these norms, which are of two kinds.
Tensor crossed(Attention& layer, const Tensor& x, const Tensor& context, const Tensor& visible, const Tensor& bias) {
  const Tensor q = rms_normed(heads_of(projected(layer->q_proj, x), kHeads), layer->q_norm.get<RootNorm>()->weight);
  const Tensor k =
      heads_of(rms_normed(projected(layer->k_proj, context), layer->k_norm.get<RootNorm>()->weight), kKeyHeads);
  const Tensor v = heads_of(projected(layer->v_proj, context), kKeyHeads).repeat_interleave(2, 1);
  Tensor s = q.matmul(k.repeat_interleave(2, 1).transpose(-1, -2)) / std::sqrt(static_cast<double>(kWidth));
  s = (1.5 * (s / 1.5).tanh() + bias).masked_fill(~visible, -reference::kInfinity);
  s = at::cat({s, layer->sinks.view({1, -1, 1, 1}).expand({s.size(0), kHeads, s.size(2), 1})}, -1);
  const Tensor out = s.softmax(-1).slice(-1, 0, v.size(2)).matmul(v);
  return projected(layer->o_proj, out.transpose(1, 2).flatten(2));
}

TEST(CrossAttention, KeysAndValuesComeFromTheContext) {
  auto layer = made(crossing());
  layer->eval();
  constexpr int64_t kContext = 133;
  const Tensor x = tokens(), context = tokens(kContext) * 0.7;
  const Tensor everything = at::ones({1}, at::kBool), nothing = at::zeros({1}, kWide);
  const auto given = [&] { return AttentionForwardOptions().context(context); };
  const Tensor plain = crossed(layer, x, context, everything, nothing);
  expect_near(layer->forward(x, given()), plain, 1e-12);

  const Tensor keys = at::rand({2, kContext}) > 0.4, pairs = at::rand({kHeads, kTokens, kContext}) > 0.4,
               bias = at::randn({kTokens, 1}, kWide) * at::randn({kContext}, kWide);
  expect_near(layer->forward(x, given().key_mask(keys).attn_mask(pairs).bias(bias)),
              crossed(layer, x, context, keys.view({2, 1, 1, -1}).logical_and(pairs), bias), 1e-12);

  // The cache keeps them: one call gives the context, the others find its keys and values.
  const at::NoGradGuard no_grad;
  KVCache cache(KVCacheOptions(2, kKeyHeads, kContext, kWidth).value_dim(5).dtype(at::kDouble));
  std::vector<Tensor> parts = {layer->forward(x.slice(1, 0, 100), given().cache(&cache))};
  EXPECT_EQ(cache.length(), kContext);
  for (int64_t begin : {100, 101}) {
    parts.push_back(
        layer->forward(x.slice(1, begin, begin == 100 ? 101 : kTokens), AttentionForwardOptions().cache(&cache)));
    EXPECT_EQ(cache.length(), kContext);
  }
  expect_near(at::cat(parts, 1), plain, 1e-12);
  cache.reset();
  expect_near(layer->forward(x, AttentionForwardOptions().context(context.slice(1, 0, 7)).cache(&cache)),
              crossed(layer, x, context.slice(1, 0, 7), everything, nothing), 1e-12);
}

TEST(CrossAttention, GradientsReachBothSequences) {
  auto layer = made(crossing());
  const Tensor x = tokens().requires_grad_(), context = (tokens(37) * 0.7).detach().requires_grad_();
  const Tensor everything = at::ones({1}, at::kBool), nothing = at::zeros({1}, kWide);
  const Tensor actual = layer->forward(x, AttentionForwardOptions().context(context));
  const Tensor expected = crossed(layer, x, context, everything, nothing), grad = at::randn_like(actual);
  std::vector<Tensor> sources = layer->parameters();
  sources.insert(sources.end(), {x, context});
  const auto grads = torch::autograd::grad({actual}, sources, {grad});
  const auto wanted = torch::autograd::grad({expected}, sources, {grad});
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_LT(reference::error(grads[i], wanted[i]), 1e-11) << i;
  }
}

TEST(CrossAttention, ACallThatRaisesLeavesTheCacheAsItWas) {
  const at::NoGradGuard no_grad;
  auto layer = made(options().cross(true));
  KVCache cache(KVCacheOptions(2, kKeyHeads, 9, kWidth).dtype(at::kDouble));
  const auto call = AttentionForwardOptions().context(tokens(9)).cache(&cache);
  auto wrong = call;
  expect_error([&] { layer->forward(tokens(3), wrong.key_mask(at::ones({2, 4}, at::kBool))); },
               "expected key_mask of shape (2, 9), but got [2, 4]");
  EXPECT_EQ(cache.length(), 0);
  layer->forward(tokens(3), call);
  EXPECT_EQ(cache.length(), 9);
  expect_error([&] { layer->forward(tokens(3), call); }, "whose keys and values the cache holds: reset() forgets them");
  EXPECT_EQ(cache.length(), 9);
}

// Through a cache.

TEST(LayerCalls, PiecesThroughACacheEqualOnePass) {
  const at::NoGradGuard no_grad;
  const Tensor x = tokens(),
               tree = (at::rand({kHeads, kTokens, kTokens}) > 0.3).logical_or(at::eye(kTokens, at::kBool)),
               bias = at::randn({kTokens, kTokens}, kWide);
  const auto expect_equal = [&](const AttentionOptions& given, std::optional<int64_t> window) {
    auto layer = made(given);
    layer->eval();
    const Tensor whole = layer->forward(x, AttentionForwardOptions().attn_mask(tree).bias(bias));
    KVCache cache(KVCacheOptions(2, kKeyHeads, window ? 70 : kTokens, kWidth)
                      .value_dim(given.value_dim().value_or(kWidth))
                      .window(window)
                      .dtype(at::kDouble));
    std::vector<Tensor> parts;
    for (const auto& [begin, end] : {std::pair(0, 50), std::pair(50, 51), std::pair(51, 52), std::pair(52, 90),
                                     std::pair(90, 91), std::pair(91, 110)}) {
      const auto rows = [&, begin = begin, end = end](const Tensor& m) {
        return m.slice(-2, begin, end).slice(-1, 0, end);
      };
      parts.push_back(layer->forward(x.slice(1, begin, end),
                                     AttentionForwardOptions().cache(&cache).attn_mask(rows(tree)).bias(rows(bias))));
    }
    expect_near(at::cat(parts, 1), whole, 1e-11);
    EXPECT_EQ(cache.dropped() > 0, window.has_value());
  };
  const auto all = [] { return normed(kWidth, kKeyHeads * kWidth).sinks(true).softcap(0.9).scale(0.7).value_dim(4); };
  expect_equal(all(), std::nullopt);
  expect_equal(all().with(Rotary(kWidth)), std::nullopt);
  expect_equal(all().with(Rotary(kWidth), CoPE(kWidth, 9)), std::nullopt);
  expect_equal(all().window_left(19).with(Rotary(kWidth)), 20);
  expect_equal(all().window(20).with(ALiBi(kHeads)), 20);
}

TEST(LayerCalls, BlocksGoOnInACache) {
  const at::NoGradGuard no_grad;
  auto layer = made(options().with(Rotary(kWidth)));
  const Tensor x = tokens(), places = at::arange(kTokens);
  const Tensor blocks =
      at::where((places >= 40).logical_and(places < 60), at::scalar_tensor(0, at::kLong), -1).repeat({2, 1});
  const Tensor whole = layer->forward(x, AttentionForwardOptions().block_ids(blocks));
  KVCache cache(KVCacheOptions(2, kKeyHeads, kTokens, kWidth).dtype(at::kDouble));
  std::vector<Tensor> parts;
  for (const auto& [begin, end] : {std::pair(0, 60), std::pair(60, 61), std::pair(61, 110)}) {
    parts.push_back(layer->forward(x.slice(1, begin, end),
                                   AttentionForwardOptions().cache(&cache).block_ids(blocks.slice(1, 0, end))));
  }
  expect_near(at::cat(parts, 1), whole, 1e-11);
}

TEST(LayerCalls, SharedMasksOfAWindowAreSharedByWhatIsLeft) {
  const at::NoGradGuard no_grad;
  auto layer = made(options().window(10));
  KVCache cache(KVCacheOptions(2, kKeyHeads, 30, kWidth).window(10).dtype(at::kDouble));
  const Tensor x = tokens(40);
  Tensor expected;
  {
    const Tensor all = at::cat({at::ones({39, 1}, at::kBool), at::zeros({1, 1}, at::kBool)});
    expected = layer->forward(x, AttentionForwardOptions().attn_mask(all)).slice(1, 39);
  }
  layer->forward(x.slice(1, 0, 20), AttentionForwardOptions().cache(&cache));
  layer->forward(x.slice(1, 20, 39), AttentionForwardOptions().cache(&cache));
  ASSERT_GT(cache.dropped(), 0);
  const auto hidden = AttentionForwardOptions().cache(&cache).attn_mask(at::zeros({1, 1}, at::kBool));
  expect_near(layer->forward(x.slice(1, 39), hidden), expected, 1e-12);
}

// Errors and printing.

TEST(LayerCalls, WhatDoesNotFitIsRefused) {
  const auto refused = [](const AttentionOptions& given, const char* part) {
    expect_error([&] { Attention layer(given); }, part);
  };
  refused(options().cross(true).is_causal(true), "Attention: expected is_causal to be false with cross");
  refused(options().cross(true).window(3), "Attention: expected no window with cross");
  refused(options().cross(true).window_right(3), "Attention: expected no window with cross");
  refused(options().cross(true).with(Rotary(kWidth)), "Attention: expected no encodings with cross");
  refused(options().softcap(-1.0), "Attention: expected softcap to be positive and finite, but got -1");
  refused(options().softcap(0.0), "Attention: expected softcap to be positive and finite, but got 0");
  refused(options().softcap(INFINITY), "Attention: expected softcap to be positive and finite, but got inf");
  refused(options().softcap(NAN), "Attention: expected softcap to be positive and finite, but got nan");
  refused(options().softcap_on("sum"),
          "Attention: expected softcap_on to be 'content', or 'sum' with softcap, but got "
          "'sum'");
  refused(options().softcap(1.0).softcap_on("product"), "but got 'product'");
  refused(options().scale(INFINITY), "Attention: expected a finite scale, but got inf");
  refused(options().scale(NAN), "Attention: expected a finite scale, but got nan");
  refused(options().value_dim(0), "Attention: expected value_dim to be at least 1, but got 0");
  refused(options().window_left(-1), "Attention: expected window_left to be at least 0, but got -1");
  refused(options().window_right(-2), "Attention: expected window_right to be at least 0, but got -2");
  refused(options().window(3).window_left(2), "Attention: expected either window or window_left and window_right");

  const auto raises = [](const AttentionOptions& given, const AttentionForwardOptions& call, const char* part) {
    auto layer = made(given);
    expect_error([&] { layer->forward(tokens(5), call); }, part);
  };
  const auto call = [] { return AttentionForwardOptions(); };
  raises(options(), call().context(tokens(5)), "Attention: expected no context in a layer that was made without cross");
  raises(options().cross(true), call(),
         "Attention: expected context (batch, length, embed_dim) with cross, but got none");
  raises(options().cross(true), call().context(tokens(5).slice(0, 0, 1)),
         "Attention: expected context of shape (2, length, 24), but got [1, 5, 24]");
  raises(options().cross(true), call().context(tokens(5)).positions(at::arange(5)),
         "Attention: expected neither positions nor block_ids in a layer with cross");
  raises(options().cross(true), call().context(tokens(5)).block_ids(at::zeros({2, 5}, at::kLong)),
         "Attention: expected neither positions nor block_ids in a layer with cross");
  raises(options(), call().attn_mask(at::ones({5, 4}, at::kBool)),
         "expected attn_mask to be broadcastable to (2, 4, 5, 5), but got [5, 4]");
  raises(options(), call().block_ids(at::zeros({2, 4}, at::kLong)),
         "expected block_ids of shape (2, 5), but got [2, 4]");
  raises(options().with(CoPE(kWidth, 4)), call().block_ids(at::zeros({2, 5}, at::kLong)), "block_ids");
  KVCache cache(KVCacheOptions(2, kKeyHeads, 20, kWidth).window(8).dtype(at::kDouble));
  const at::NoGradGuard no_grad;
  raises(options().window_left(8), call().cache(&cache), "expected a window of at most 8, that of the cache");
  raises(options().window_right(2), call().cache(&cache), "but got none");
  EXPECT_EQ(cache.length(), 0);
}

TEST(LayerCalls, PrintingShowsThoseThatAreSet) {
  std::ostringstream stream;
  made(options().scale(0.5).sinks(true).softcap(50.0).value_dim(3).window_left(7).window_right(0))
      ->pretty_print(stream);
  EXPECT_EQ(stream.str(),
            "posenc::nn::Attention(embed_dim=24, num_heads=4, num_kv_heads=2, head_dim=6, dropout=0, output_dropout=0, "
            "bias=true, output_bias=true, is_causal=true, window_left=7, window_right=0, scale=0.5, sinks=true, "
            "softcap=50, softcap_on=content, value_dim=3, cross=false)");
}

}  // namespace
