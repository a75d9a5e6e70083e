/// What the attention layer takes of today's models: norms of queries and keys, scale, sinks, caps, values of another
/// width, masks, blocks, biases and windows of two sides. Against formulas in plain ATen, at lengths beyond a tile of
/// the kernels. Runs at each instruction-set level.

#include "layer_formula.h"

#include <torch/nn/modules/normalization.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>

namespace {

TEST(LayerOptions, NormsOfEachHeadComeBeforeTheRotation) {
  expect_formula(normed(kWidth, kWidth), {.norm = Norm::kHead});
  expect_formula(normed(kWidth, kWidth).with(Rotary(kWidth)), {.norm = Norm::kHead, .angles = rotary_angles()});
}

TEST(LayerOptions, NormsAsWideAsAllHeadsTakeThemTogether) {
  const auto flat = [] { return normed(kHeads * kWidth, kKeyHeads * kWidth); };
  expect_formula(flat(), {.norm = Norm::kAllHeads});
  expect_formula(flat().with(Rotary(kWidth)), {.norm = Norm::kAllHeads, .angles = rotary_angles()});
}

TEST(LayerOptions, ANormOfOneHeadIsOneOfAllHeads) {
  const auto one = [] { return AttentionOptions(kWidth, 1).q_norm(AnyModule(RootNorm(kWidth))); };
  at::manual_seed(23);
  auto layer = prepared(Attention(one()));
  const Tensor x = at::randn({2, 5, kWidth}, kWide);
  const Tensor q = rms_normed(projected(layer->q_proj, x), layer->q_norm.get<RootNorm>()->weight);
  const Tensor s = q.matmul(projected(layer->k_proj, x).transpose(1, 2)) / std::sqrt(static_cast<double>(kWidth));
  const Tensor weights = s.masked_fill(~causal_mask(5, 5), -reference::kInfinity).softmax(-1);
  expect_near(layer->forward(x), projected(layer->o_proj, weights.matmul(projected(layer->v_proj, x))), 1e-12);
}

TEST(LayerOptions, AnyModuleOfTorchMayNormOnlyQueries) {
  const auto with_norm = options().q_norm(AnyModule(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
  auto layer = made(with_norm), bare = made(options());
  const Tensor x = tokens();
  const auto& norm = layer->q_norm.get<torch::nn::LayerNorm>();
  EXPECT_TRUE(layer->k_norm.is_empty());
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : bare->named_parameters()) {
      parameter.value().copy_(layer->named_parameters()[parameter.key()]);
    }
  }
  EXPECT_GT(reference::error(layer->forward(x), bare->forward(x)), 1e-3);
  const Tensor q = heads_of(projected(layer->q_proj, x), kHeads);
  const Tensor centred = q - q.mean(-1, true);
  const Tensor by_hand = centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * norm->weight + norm->bias;
  const auto key = heads_of(projected(layer->k_proj, x), kKeyHeads).repeat_interleave(2, 1);
  const auto value = heads_of(projected(layer->v_proj, x), kKeyHeads).repeat_interleave(2, 1);
  const Tensor s = by_hand.matmul(key.transpose(-1, -2)) / std::sqrt(static_cast<double>(kWidth));
  const Tensor out = s.masked_fill(~causal_mask(), -reference::kInfinity).softmax(-1).matmul(value);
  expect_near(layer->forward(x), projected(layer->o_proj, out.transpose(1, 2).flatten(2)), 1e-12);
}

TEST(LayerOptions, NormsAndSinksAreParametersOfTheLayer) {
  Attention layer(normed(kWidth, kKeyHeads * kWidth).bias(false).sinks(true));
  std::vector<std::string> names;
  for (const auto& parameter : layer->named_parameters()) {
    names.push_back(parameter.key());
  }
  const std::vector<std::string> expected = {"sinks",         "q_proj.weight", "k_proj.weight", "v_proj.weight",
                                             "o_proj.weight", "q_norm.weight", "k_norm.weight"};
  EXPECT_EQ(names, expected);
  EXPECT_TRUE(at::equal(layer->sinks, at::zeros({kHeads})));

  // They move with it, and have gradients.
  layer->to(at::kBFloat16);
  EXPECT_EQ(layer->sinks.scalar_type(), at::kBFloat16);
  EXPECT_EQ(layer->q_norm.get<RootNorm>()->weight.scalar_type(), at::kBFloat16);
  const Tensor narrow = layer->forward(tokens().to(at::kBFloat16));
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  layer->to(at::kDouble);
  expect_near(narrow, layer->forward(tokens()), 0.03);
  layer->forward(tokens()).square().sum().backward();
  for (const auto& parameter : layer->named_parameters()) {
    EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 0.0) << parameter.key();
  }

  std::stringstream stream;
  {
    const at::NoGradGuard no_grad;
    layer->sinks.add_(2.0);
    layer->k_norm.get<RootNorm>()->weight.mul_(3.0);
  }
  torch::save(layer, stream);
  Attention other(normed(kWidth, kKeyHeads * kWidth).bias(false).sinks(true));
  other->to(at::kDouble);
  torch::load(other, stream);
  expect_near(other->forward(tokens()), layer->forward(tokens()), 1e-12);

  const Tensor weight = layer->k_norm.get<RootNorm>()->weight.detach().clone();
  layer->reset_parameters();
  EXPECT_TRUE(at::equal(layer->sinks, at::zeros({kHeads}, at::kDouble)));
  EXPECT_TRUE(at::equal(layer->k_norm.get<RootNorm>()->weight, weight)) << "norms are the caller's";
}

TEST(LayerOptions, ACopyHasNormsAndSinksOfItsOwn) {
  auto layer = made(normed(kWidth, kKeyHeads * kWidth).sinks(true));
  const Tensor x = tokens(), y = layer->forward(x);
  auto copy = std::dynamic_pointer_cast<AttentionImpl>(layer->clone());
  auto second = std::dynamic_pointer_cast<AttentionImpl>(copy->clone());
  EXPECT_TRUE(at::equal(copy->forward(x), y));
  EXPECT_NE(copy->q_norm.ptr(), layer->q_norm.ptr());
  EXPECT_EQ(copy->q_norm.ptr(), copy->named_children()["q_norm"]);
  EXPECT_EQ(copy->options.k_norm().ptr(), copy->k_norm.ptr()) << "options name the copy's own norms";
  {
    const at::NoGradGuard no_grad;
    copy->k_norm.get<RootNorm>()->weight.mul_(2.0);
  }
  EXPECT_TRUE(at::equal(layer->forward(x), y));
  EXPECT_FALSE(at::allclose(copy->forward(x), y));
  EXPECT_TRUE(at::equal(second->forward(x), y));
  {
    const at::NoGradGuard no_grad;
    second->sinks.add_(1.0);
  }
  EXPECT_FALSE(at::allclose(second->forward(x), y));
  EXPECT_TRUE(at::equal(layer->forward(x), y));
}

TEST(LayerOptions, ScaleCapAndSinksEqualTheFormula) {
  expect_formula(options().scale(0.9), {.scale = 0.9});
  expect_formula(options().scale(0.0), {.scale = 0.0});
  expect_formula(options().sinks(true), {});
  expect_formula(options().softcap(0.6), {.softcap = 0.6});
  expect_formula(options().scale(-0.7).softcap(0.6).sinks(true).value_dim(5), {.scale = -0.7, .softcap = 0.6});
  const Tensor bias = at::randn({2, kHeads, kTokens, kTokens}, kWide);
  const auto call = AttentionForwardOptions().bias(bias);
  expect_formula(options().softcap(0.6), {.bias = bias, .softcap = 0.6}, call);
  expect_formula(options().softcap(0.6).softcap_on("sum"), {.bias = bias, .softcap = 0.6, .caps_sum = true}, call);
}

TEST(LayerOptions, ValuesMayHaveAnotherWidth) {
  auto layer = made(options().value_dim(11));
  EXPECT_EQ(layer->v_proj->weight.size(0), kKeyHeads * 11);
  EXPECT_EQ(layer->o_proj->weight.size(1), kHeads * 11);
  expect_formula(options().value_dim(11), {});
  expect_formula(options().value_dim(1).with(Rotary(kWidth)), {.angles = rotary_angles()});
}

/// Those of a call reach plain attention and a score encoding alike.
TEST(LayerOptions, MasksBlocksAndBiasesEqualTheFormula) {
  const Tensor bias = at::randn({kHeads, 1, kTokens}, kWide), seen = at::rand({2, 1, kTokens, kTokens}) > 0.3;
  const Tensor itself = at::eye(kTokens, at::kBool), places = at::arange(kTokens);
  const Tensor mask = seen.logical_or(itself);
  Tensor blocks = places.div(20, "floor").masked_fill(places.remainder(20) >= 15, -1).repeat({2, 1});
  blocks.select(0, 1).masked_fill_(places < 30, -3);
  const Tensor in_block = (blocks.unsqueeze(1) == blocks.unsqueeze(2)).logical_and((blocks >= 0).unsqueeze(1));
  const Tensor visible = causal_mask().logical_or(in_block.unsqueeze(1));
  const Tensor slopes = posenc::alibi_slopes(kHeads, at::kDouble).view({-1, 1, 1});
  const Tensor of_slopes = -slopes * (places.unsqueeze(0) - places.unsqueeze(1)).abs();
  for (const bool with_score : {false, true}) {
    auto plain = options();
    if (with_score) {
      plain.with(ALiBi(kHeads));
    }
    const Tensor own = with_score ? of_slopes : at::zeros({1, 1, 1}, kWide);
    const auto call = [] { return AttentionForwardOptions(); };
    expect_formula(plain, {.visible = causal_mask().logical_and(mask), .bias = own}, call().attn_mask(mask));
    expect_formula(plain, {.visible = visible, .bias = own}, call().block_ids(blocks));
    expect_formula(plain, {.bias = own + bias}, call().bias(bias));
    expect_formula(plain, {.visible = visible.logical_and(mask), .bias = own + bias},
                   call().attn_mask(mask).block_ids(blocks).bias(bias));
  }
}

TEST(LayerOptions, WindowsOfTwoSidesEqualTheFormula) {
  const Tensor back = at::arange(kTokens).unsqueeze(1) - at::arange(kTokens).unsqueeze(0);
  expect_formula(options().window_left(20), {.visible = (back >= 0).logical_and(back <= 20)});
  expect_formula(options().window_left(0), {.visible = back == 0});
  expect_formula(options().is_causal(false).window_left(20).window_right(3),
                 {.visible = (back >= -3).logical_and(back <= 20)});
  expect_formula(options().is_causal(false).window_right(0), {.visible = back >= 0});
}

TEST(LayerOptions, OptionsReachEveryScoreEncoding) {
  Tensor tree = causal_mask().clone();
  tree.slice(0, 1).select(1, 0).fill_(false);
  const Tensor bias = at::randn({kHeads, kTokens, kTokens}, kWide);
  const Tensor hiding = bias.masked_fill(~tree, -reference::kInfinity);
  const auto expect_same = [&](const auto& encoding) {
    const auto with = [&] { return options().with(encoding()); };
    const Tensor x = tokens();
    const auto call = AttentionForwardOptions().attn_mask(tree).bias(bias);
    auto layer = made(with().sinks(true).softcap(0.8).value_dim(3).window_left(10));
    expect_near(layer->forward(x, call), layer->forward(x, AttentionForwardOptions().bias(hiding)), 1e-12);
    const Tensor y = layer->forward(x, call);
    const auto changes = [&](auto changed) {
      const at::NoGradGuard no_grad;
      auto other = made(changed);
      for (auto& parameter : other->named_parameters()) {
        parameter.value().copy_(layer->named_parameters()[parameter.key()]);
      }
      EXPECT_GT(reference::error(other->forward(x, call), y), 1e-6) << layer;
    };
    changes(with().softcap(0.8).value_dim(3).window_left(10));
    changes(with().sinks(true).value_dim(3).window_left(10));
    changes(with().sinks(true).softcap(0.8).softcap_on("sum").value_dim(3).window_left(10));
    changes(with().sinks(true).softcap(0.8).value_dim(3));
    changes(with().sinks(true).softcap(0.8).value_dim(3).window_left(10).scale(0.9));
    EXPECT_GT(reference::error(layer->forward(x, AttentionForwardOptions().bias(bias)), y), 1e-6) << "without the mask";
  };
  expect_same([] { return ALiBi(kHeads); });
  expect_same([] { return T5RelativeBias(kHeads); });
  expect_same([] { return FIRE(kHeads); });
  expect_same([] { return ShawRelative(ShawRelativeOptions(kWidth, 9).values(false)); });
  expect_same([] { return ReRoPE(kWidth, 30); });
  expect_same([] { return CoPE(kWidth, 20); });
  expect_same([] { return ForgettingBias(kEmbed, kHeads); });
}

}  // namespace
