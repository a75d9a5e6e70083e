/// The attention layer with each of its options, encodings of every family, and its cache, against formulas written out
/// in float64, at lengths beyond a tile of the kernels. Runs at each instruction-set level.

#include "module_values.h"
#include "rotary_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace posenc::nn;
using at::Tensor;
using reference::Call;

constexpr int64_t kEmbed = 24, kLayerHeads = 4, kKeyHeads = 2, kHeadDim = 6, kTokens = 150;

AttentionOptions layer_options() { return AttentionOptions(kEmbed, kLayerHeads).num_kv_heads(kKeyHeads).bias(true); }

Attention make_layer(const AttentionOptions& options) {
  at::manual_seed(12);
  return prepared(Attention(options));
}

/// (B, T, N * D) -> (B, N, T, D), of a projection.
Tensor project(torch::nn::Linear& linear, const Tensor& x, int64_t heads) {
  const Tensor y = x.matmul(linear->weight.detach().t()) + linear->bias.detach();
  return y.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2).contiguous();
}

Call projected(Attention& layer, const Tensor& x) {
  Call call;
  call.inputs.q = project(layer->q_proj, x, kLayerHeads);
  call.inputs.k = project(layer->k_proj, x, kKeyHeads);
  call.inputs.v = project(layer->v_proj, x, kKeyHeads);
  call.is_causal = true;
  return call;
}

Tensor output(Attention& layer, const Call& call) {
  const Tensor out = reference::attention(call).out.transpose(1, 2).flatten(2);
  return out.matmul(layer->o_proj->weight.detach().t()) + layer->o_proj->bias.detach();
}

Tensor layer_input() {
  at::manual_seed(13);
  return at::randn({2, kTokens, kEmbed}, kWide);
}

TEST(AttentionLayer, EveryOptionActs) {
  const Tensor x = layer_input();
  const auto check = [&](const AttentionOptions& options, const AttentionForwardOptions& call, const auto& change) {
    auto layer = make_layer(options);
    Call expected = projected(layer, x);
    change(layer, expected);
    expect_near(layer->forward(x, call), output(layer, expected), 1e-11);
  };
  const auto nothing = [](Attention&, Call&) {};
  check(layer_options(), {}, nothing);
  check(layer_options().is_causal(false), {}, [](Attention&, Call& c) { c.is_causal = false; });
  check(layer_options().window(40), {}, [](Attention&, Call& c) { c.window = 40; });
  check(layer_options().window(40).is_causal(false).with(ALiBi(kLayerHeads)), {}, [](Attention&, Call& c) {
    c.window = 40;
    c.is_causal = false;
    c.inputs.slopes = posenc::alibi_slopes(kLayerHeads, at::kDouble);
  });
  const Tensor mask = at::rand({2, kTokens}) > 0.2, segments = at::arange(kTokens).ge(70).to(at::kLong).expand({2, -1});
  for (const bool with_score : {false, true}) {
    auto options = layer_options();
    if (with_score) {
      options.with(ALiBi(kLayerHeads));
    }
    check(options, AttentionForwardOptions().key_mask(mask).segment_ids(segments), [&](Attention&, Call& c) {
      c.key_mask = mask;
      c.segment_ids = segments;
      c.inputs.slopes = with_score ? posenc::alibi_slopes(kLayerHeads, at::kDouble) : Tensor();
    });
    const Tensor positions = at::arange(kTokens) * 2 + at::arange(kTokens).ge(80).to(at::kLong) * 9;
    check(options, AttentionForwardOptions().positions(positions), [&](Attention&, Call& c) {
      c.q_positions = c.k_positions = positions;
      c.inputs.slopes = with_score ? posenc::alibi_slopes(kLayerHeads, at::kDouble) : Tensor();
    });
  }
  // A head width of its own, and no output bias.
  const auto narrow = AttentionOptions(kEmbed, kLayerHeads).head_dim(10).bias(true).output_bias(false);
  auto layer = make_layer(narrow);
  EXPECT_EQ(layer->q_proj->weight.size(0), 40);
  EXPECT_FALSE(layer->o_proj->bias.defined());
}

TEST(AttentionLayer, EncodingsOfAllFamiliesTakePart) {
  const Tensor x = layer_input(), positions = at::arange(kTokens) + at::arange(kTokens).ge(60).to(at::kLong) * 5;
  auto layer = make_layer(layer_options().with(Sinusoidal(kEmbed), Rotary(kHeadDim), ShawRelative(kHeadDim, 12)));
  const auto* shaw = layer->encodings[2]->as<ShawRelativeImpl>();
  const Tensor embedded = Sinusoidal(kEmbed)->forward(x, AbsoluteForwardOptions().positions(positions));
  Call call = projected(layer, embedded);
  call.inputs.q = reference::rotate(call.inputs.q, positions, reference::inv_freq(kHeadDim));
  call.inputs.k = reference::rotate(call.inputs.k, positions, reference::inv_freq(kHeadDim));
  call.inputs.rel_k = shaw->rel_k.detach();
  call.inputs.rel_v = shaw->rel_v.detach();
  call.q_positions = call.k_positions = positions;
  expect_near(layer->forward(x, AttentionForwardOptions().positions(positions)), output(layer, call), 1e-11);

  // Gate keys are projected and rotated, decays made of the embedded input.
  auto gated = make_layer(
      layer_options().with(Sinusoidal(kEmbed), Rotary(kHeadDim), CoPE(CoPEOptions(kHeadDim, 20).gate(CoPEGate::kKey))));
  const Tensor counted = Sinusoidal(kEmbed)->forward(x), theta = reference::inv_freq(kHeadDim);
  Call cope = projected(gated, counted);
  cope.inputs.gate_key = reference::rotate(project(gated->gate_proj, counted, kKeyHeads), at::arange(kTokens), theta);
  cope.inputs.q = reference::rotate(cope.inputs.q, at::arange(kTokens), theta);
  cope.inputs.k = reference::rotate(cope.inputs.k, at::arange(kTokens), theta);
  cope.inputs.pos_emb = gated->encodings[2]->as<CoPEImpl>()->pos_emb.detach();
  expect_near(gated->forward(x), output(gated, cope), 1e-11);

  auto forgetting = make_layer(layer_options().with(Sinusoidal(kEmbed), ForgettingBias(kEmbed, kLayerHeads)));
  Call decaying = projected(forgetting, counted);
  decaying.inputs.log_decay = forgetting->encodings[1]->as<ForgettingBiasImpl>()->forward(counted).detach();
  expect_near(forgetting->forward(x), output(forgetting, decaying), 1e-11);
}

TEST(AttentionLayer, TermsOfSeveralEncodingsAddUp) {
  const Tensor x = layer_input();
  auto layer = make_layer(layer_options().with(
      CoPE(kHeadDim, 20), ShawRelative(kHeadDim, 12), ShawRelative(ShawRelativeOptions(kHeadDim, 3).values(false)),
      ALiBi(kLayerHeads), ALiBi(kLayerHeads), ForgettingBias(kEmbed, kLayerHeads),
      T5RelativeBias(T5RelativeBiasOptions(kLayerHeads).scale(0.2).max_distance(40)),
      T5RelativeBias(T5RelativeBiasOptions(kLayerHeads).scale(0.2).num_buckets(8).max_distance(9))));
  // The ends of a shorter table go on.
  const auto widened = [](const Tensor& table, int64_t dim, int64_t radius) {
    const int64_t own = table.size(dim) / 2;
    return table.index_select(dim, at::arange(-radius, radius + 1).clamp(-own, own) + own);
  };
  const auto shaw = [&](size_t i) { return layer->encodings[i]->as<ShawRelativeImpl>(); };
  const auto buckets = [&](size_t i, int64_t count, int64_t radius) {
    const Tensor bucket = posenc::t5_bucket(at::arange(-radius, radius + 1), count, radius, /*bidirectional=*/false);
    return layer->encodings[i]->as<T5RelativeBiasImpl>()->weight.detach().index_select(0, bucket).t();
  };
  Call call = projected(layer, x);
  call.scale = 0.2;
  call.inputs.pos_emb = layer->encodings[0]->as<CoPEImpl>()->pos_emb.detach();
  call.inputs.rel_k = shaw(1)->rel_k.detach() + widened(shaw(2)->rel_k.detach(), 0, 12);
  call.inputs.rel_v = shaw(1)->rel_v.detach();
  call.inputs.slopes = 2 * posenc::alibi_slopes(kLayerHeads, at::kDouble);
  call.inputs.log_decay = layer->encodings[5]->as<ForgettingBiasImpl>()->forward(x).detach();
  call.inputs.distance_bias = buckets(6, 32, 40) + widened(buckets(7, 8, 9), 1, 40);
  expect_near(layer->forward(x), output(layer, call), 1e-11);
}

TEST(AttentionLayer, DropoutIsForTrainingAlone) {
  const Tensor x = layer_input();
  for (const bool of_output : {false, true}) {
    for (const bool with_score : {false, true}) {
      auto options = of_output ? layer_options().output_dropout(0.5) : layer_options().dropout(0.5);
      if (with_score) {
        options.with(ALiBi(kLayerHeads));
      }
      auto layer = make_layer(options);
      at::manual_seed(1);
      const Tensor first = layer->forward(x), second = layer->forward(x);
      EXPECT_FALSE(at::equal(first, second));
      at::manual_seed(1);
      EXPECT_TRUE(at::equal(layer->forward(x), first));
      EXPECT_NEAR((first == 0).to(at::kDouble).mean().item<double>(), of_output ? 0.5 : 0.0, 0.03);
      layer->eval();
      EXPECT_TRUE(at::equal(layer->forward(x), layer->forward(x)));
    }
  }
}

/// A layer's tokens in pieces, through a cache, and all at once.
class CachedLayer : public testing::TestWithParam<std::pair<std::string, std::function<AttentionOptions()>>> {};

TEST_P(CachedLayer, PiecesEqualOnePass) {
  auto layer = make_layer(GetParam().second());
  layer->eval();
  const at::NoGradGuard no_grad;
  const Tensor x = layer_input();
  Tensor mask = at::rand({2, kTokens}) > 0.2;
  mask.select(1, 0).fill_(true);
  const auto whole = AttentionForwardOptions().key_mask(mask);
  const Tensor expected = layer->forward(x, whole);
  KVCache cache(KVCacheOptions(2, kKeyHeads, kTokens, kHeadDim).dtype(at::kDouble));
  for (int round = 0; round < 2; ++round) {
    std::vector<Tensor> parts;
    for (const auto& [begin, end] :
         {std::pair(0, 110), std::pair(110, 111), std::pair(111, 135), std::pair(135, 150)}) {
      parts.push_back(layer->forward(x.slice(1, begin, end),
                                     AttentionForwardOptions().cache(&cache).key_mask(mask.slice(1, 0, end))));
      EXPECT_EQ(cache.length(), end);
    }
    expect_near(at::cat(parts, 1), expected, 1e-11);
    // Cropped, it goes on as if later tokens had never come.
    cache.crop(120);
    const auto rest = AttentionForwardOptions().cache(&cache).key_mask(mask);
    expect_near(layer->forward(x.slice(1, 120, kTokens), rest), expected.slice(1, 120, kTokens), 1e-11);
    cache.reset();
    EXPECT_EQ(cache.length(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , CachedLayer,
    testing::Values(
        std::pair("Plain", [] { return layer_options(); }),
        std::pair("Window", [] { return layer_options().window(50).with(Rotary(kHeadDim)); }),
        std::pair("Absolute",
                  [] { return layer_options().with(Sinusoidal(kEmbed), LearnedAbsolute(kTokens, kEmbed)); }),
        std::pair("XPos", [] { return layer_options().with(XPos(kHeadDim)); }),
        std::pair("ALiBi", [] { return layer_options().with(ALiBi(kLayerHeads)); }),
        std::pair("T5", [] { return layer_options().with(T5RelativeBias(kLayerHeads)); }),
        std::pair("Fire", [] { return layer_options().with(FIRE(FIREOptions(kLayerHeads).threshold(60.0))); }),
        std::pair("Shaw", [] { return layer_options().with(Rotary(kHeadDim), ShawRelative(kHeadDim, 9)); }),
        std::pair("TransformerXL", [] { return layer_options().with(TransformerXL(kHeadDim, kLayerHeads)); }),
        std::pair("ReRoPE", [] { return layer_options().with(ReRoPE(ReRoPEOptions(kHeadDim, 30).leak(4.0))); }),
        std::pair("SelfExtend",
                  [] { return layer_options().with(SelfExtend(SelfExtendOptions(kHeadDim).group(4).window(30))); }),
        std::pair("CoPE", [] { return layer_options().with(CoPE(kHeadDim, 20)); }),
        std::pair("CoPEOfGateKeys",
                  [] {
                    const auto cope = CoPEOptions(kHeadDim, 20).gate(CoPEGate::kKey);
                    return layer_options().with(Rotary(kHeadDim), CoPE(cope));
                  }),
        std::pair("CoPEOfGateKeysAndForgetting",
                  [] {
                    const auto cope = CoPEOptions(kHeadDim, 20).gate(CoPEGate::kKey);
                    return layer_options().with(Rotary(kHeadDim), ALiBi(kLayerHeads), CoPE(cope),
                                                ForgettingBias(kEmbed, kLayerHeads));
                  }),
        std::pair("FireAndDeBERTa",
                  [] {
                    const auto deberta = DisentangledRelativeOptions(kHeadDim, kLayerHeads, 30).buckets(16);
                    return layer_options().with(FIRE(kLayerHeads), DisentangledRelative(deberta));
                  }),
        std::pair("Forgetting",
                  [] { return layer_options().with(Rotary(kHeadDim), ForgettingBias(kEmbed, kLayerHeads)); })),
    [](const auto& info) { return info.param.first; });

TEST(CachedPositions, AreStoredWithTheTokens) {
  const at::NoGradGuard no_grad;
  const Tensor x = layer_input(), positions = at::arange(kTokens) * 3 + at::tensor({5, 70}, at::kLong).view({2, 1});
  for (const bool with_score : {false, true}) {
    auto options = layer_options().with(Rotary(kHeadDim));
    if (with_score) {
      options.with(ALiBi(kLayerHeads));
    }
    auto layer = make_layer(options);
    const Tensor expected = layer->forward(x, AttentionForwardOptions().positions(positions));
    KVCache cache(KVCacheOptions(2, kKeyHeads, kTokens, kHeadDim).dtype(at::kDouble));
    std::vector<Tensor> parts;
    for (const auto& [begin, end] : {std::pair(0, 100), std::pair(100, 101), std::pair(101, 150)}) {
      parts.push_back(layer->forward(
          x.slice(1, begin, end), AttentionForwardOptions().cache(&cache).positions(positions.slice(1, begin, end))));
    }
    expect_near(at::cat(parts, 1), expected, 1e-11);
    EXPECT_TRUE(at::equal(cache.positions().value(), positions));
  }
}

}  // namespace
