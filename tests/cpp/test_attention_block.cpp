/// Attention and KVCache in C++: options, families, module semantics, decoding. Values against references are compared
/// in Python, through the bindings.

#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

using namespace posenc::nn;

namespace {

constexpr int64_t kWidth = 16, kHeads = 4, kKeyHeads = 2, kHeadDim = 4;

AttentionOptions grouped() { return AttentionOptions(kWidth, kHeads).num_kv_heads(kKeyHeads); }

/// Parameters away from zero, so that encodings that start as nothing act.
Attention with_weights(const AttentionOptions& options) {
  torch::manual_seed(2);
  Attention block(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : block->parameters()) {
    parameter.add_(0.3 * torch::rand_like(parameter));
  }
  return block;
}

/// A rotary encoding that posenc does not know: doubles keys.
struct DoublesKeysImpl : torch::nn::Cloneable<DoublesKeysImpl>, RotaryEncoding {
  DoublesKeysImpl() { reset(); }
  void reset() override {}
  std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                            const RotaryForwardOptions&) override {
    return {q, 2 * k};
  }
};
TORCH_MODULE(DoublesKeys);

/// A score encoding that posenc does not know: says what it was asked.
struct RecordsImpl : torch::nn::Cloneable<RecordsImpl>, ScoreEncoding {
  RecordsImpl() { reset(); }
  void reset() override {}
  std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value, const AttendOptions& call) override {
    last = call;
    return posenc::attention_with_lse(query, key, value);
  }
  at::Tensor logits(const at::Tensor& query, const at::Tensor&, const AttendOptions&) override { return query; }
  bool always_causal() const override { return causal; }
  bool takes_positions() const override { return !causal; }
  AttendOptions last;
  bool causal = false;
};
TORCH_MODULE(Records);

TEST(AttentionBlock, IsItsProjectionsRotationAndOp) {
  Rotary rope(kHeadDim);
  auto block = with_weights(grouped().with(rope).bias(true).window(3));
  const auto x = torch::randn({2, 5, kWidth});
  const auto heads = [&](torch::nn::Linear& linear, int64_t count) {
    return linear->forward(x).view({2, 5, count, kHeadDim}).transpose(1, 2);
  };
  const auto [q, k] = rope->forward_qk(heads(block->q_proj, kHeads), heads(block->k_proj, kKeyHeads));
  const auto options = posenc::AttentionFuncOptions().is_causal(true).window(3);
  const auto out = posenc::attention(q, k, heads(block->v_proj, kKeyHeads), options);
  const auto expected = block->o_proj->forward(out.transpose(1, 2).reshape({2, 5, kWidth}));
  EXPECT_TRUE(torch::equal(block->forward(x), expected));
}

TEST(AttentionBlock, EncodingsOfUsersTakePart) {
  Records records;
  auto block = with_weights(grouped().with(DoublesKeys(), records).dropout(0.25).window(4));
  const auto x = torch::randn({2, 5, kWidth}), positions = torch::arange(5);
  const auto mask = torch::ones({2, 5}, torch::kBool);
  const auto y = block->forward(x, AttentionForwardOptions().positions(positions).key_mask(mask));
  EXPECT_TRUE(records->last.is_causal().value());
  EXPECT_EQ(records->last.window().value(), 4);
  EXPECT_EQ(records->last.dropout_p(), 0.25);
  EXPECT_FALSE(records->last.scale().has_value());
  EXPECT_TRUE(torch::equal(records->last.q_positions().value(), positions));
  EXPECT_TRUE(records->last.key_mask().value().is_same(mask));
  {
    const torch::NoGradGuard no_grad;
    block->k_proj->weight.mul_(2);
  }
  auto doubled = with_weights(grouped().with(records));
  {
    const torch::NoGradGuard no_grad;
    doubled->k_proj->weight.mul_(2);
  }
  EXPECT_TRUE(torch::allclose(doubled->forward(x), y));

  block->eval();
  records->causal = true;
  block->forward(x, AttentionForwardOptions().positions(positions));
  EXPECT_EQ(records->last.dropout_p(), 0.0);
  EXPECT_FALSE(records->last.is_causal().has_value());
  EXPECT_FALSE(records->last.q_positions().has_value());
}

TEST(AttentionBlock, EncodingsThatDoNotFitTogetherAreRefused) {
  expect_error([] { Attention(grouped().with(ForgettingBias(kWidth, kHeads), ForgettingBias(kWidth, kHeads))); },
               "at most one score encoding with state of tokens of a kind, but got more with log_decay");
  expect_error(
      [] {
        Attention(grouped().with(T5RelativeBias(T5RelativeBiasOptions(kHeads).scale(1.0)),
                                 T5RelativeBias(T5RelativeBiasOptions(kHeads).scale(2.0))));
      },
      "expected scale, as the score encodings multiply q . k by different numbers, 1 and 2");
  expect_error(
      [] { Attention(grouped().with(CoPE(kHeadDim, 5), CoPE(kHeadDim, 5)))->forward(torch::randn({1, 3, kWidth})); },
      "CoPE: expected no other encoding with pos_emb");
  expect_error([] { Attention(grouped().with(FIRE(kHeads), FIRE(kHeads)))->forward(torch::randn({1, 3, kWidth})); },
               "FIRE: expected no other encoding");
  expect_error([] { Attention(grouped().with(Rotary(kHeadDim), ReRoPE(kHeadDim, 4))); },
               "expected no rotary encoding together with a score encoding that rotates");
  expect_error([] { Attention(grouped().with(CoPE(kHeadDim, 5)).is_causal(false)); }, "expected is_causal to be true");
  expect_error<c10::TypeError>([] { Attention(grouped().with(torch::nn::Linear(2, 2))); },
                               "absolute, rotary or score encodings of posenc, but got torch::nn::LinearImpl");
  expect_error([] { Attention(grouped().with(Rotary(2 * kHeadDim))); },
               "RotaryImpl to have head_dim 4, as the block's head_dim is 4, but got 8");
  expect_error([] { Attention(grouped().with(ALiBi(2))); }, "ALiBiImpl to have num_heads 4");
  expect_error([] { Attention(grouped().with(ForgettingBias(8, kHeads))); }, "ForgettingBiasImpl to have embed_dim 16");
  expect_error([] { Attention(grouped().with(Sinusoidal(6))); }, "SinusoidalImpl to have dim 16");
  expect_error([] { Attention(AttentionOptions(kWidth, 3)); }, "embed_dim 16 to be a multiple of num_heads 3");
  expect_error(
      [] {
        KVCache cache(KVCacheOptions(1, kKeyHeads, 4, kHeadDim));
        const auto scaled = RotaryOptions(kHeadDim).scaling(posenc::scaling::DynamicNTK(2.0, 16));
        const torch::NoGradGuard no_grad;
        Attention(grouped().with(Rotary(scaled)))
            ->forward(torch::zeros({1, 1, kWidth}), AttentionForwardOptions().cache(&cache));
      },
      "give the rotary encoding seq_len");
}

TEST(AttentionBlock, NamesOfParameters) {
  const auto cope = CoPEOptions(kHeadDim, 5).gate(CoPEGate::kKey);
  Attention block(grouped().with(Rotary(kHeadDim), CoPE(cope)).output_bias(true));
  std::vector<std::string> names;
  for (const auto& parameter : block->named_parameters()) {
    names.push_back(parameter.key());
  }
  const std::vector<std::string> expected = {"q_proj.weight", "k_proj.weight",    "v_proj.weight",      "o_proj.weight",
                                             "o_proj.bias",   "gate_proj.weight", "encodings.1.pos_emb"};
  EXPECT_EQ(names, expected);
}

TEST(AttentionBlock, CloneIsDeepAndEqual) {
  auto block = with_weights(grouped().with(Rotary(RotaryOptions(kHeadDim).learnable(true)), CoPE(kHeadDim, 5)));
  const auto x = torch::randn({2, 5, kWidth});
  const auto y = block->forward(x);
  auto copy = std::dynamic_pointer_cast<AttentionImpl>(block->clone());
  EXPECT_TRUE(torch::equal(copy->forward(x), y));
  EXPECT_EQ(copy->options.encodings()[1].get(), copy->encodings[1].get()) << "options name the copy's own encodings";
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) {
      parameter.mul_(1.5);
    }
  }
  EXPECT_TRUE(torch::equal(block->forward(x), y));
  EXPECT_FALSE(torch::allclose(copy->forward(x), y));
  // As a part of another module, and once more from a copy.
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth), block);
  const auto twin = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  EXPECT_TRUE(torch::equal(twin->forward(x), model->forward(x)));
  EXPECT_TRUE(torch::equal(std::dynamic_pointer_cast<AttentionImpl>(copy->clone())->forward(x), copy->forward(x)));
}

TEST(AttentionBlock, SavesLoadsMovesAndTrains) {
  auto block = with_weights(grouped().with(T5RelativeBias(kHeads)));
  const auto x = torch::randn({2, 5, kWidth});
  std::stringstream stream;
  torch::save(block, stream);
  Attention other(grouped().with(T5RelativeBias(kHeads)));
  torch::load(other, stream);
  EXPECT_TRUE(torch::equal(other->forward(x), block->forward(x)));

  torch::optim::SGD optimizer(block->parameters(), 0.1);
  const auto loss = [&] { return block->forward(x).square().mean(); };
  const auto before = loss();
  before.backward();
  optimizer.step();
  EXPECT_LT(loss().item<double>(), before.item<double>());

  block->to(torch::kDouble);
  EXPECT_EQ(block->forward(x.to(torch::kDouble)).scalar_type(), torch::kDouble);
  const auto table = block->encodings[0]->as<T5RelativeBiasImpl>()->weight.detach().clone();
  const auto weight = block->q_proj->weight.detach().clone();
  block->reset_parameters();
  EXPECT_TRUE(torch::equal(block->encodings[0]->as<T5RelativeBiasImpl>()->weight, table));
  EXPECT_FALSE(torch::equal(block->q_proj->weight, weight));
}

TEST(AttentionBlock, PrettyPrintShowsEveryOption) {
  std::ostringstream stream;
  Attention(grouped().dropout(0.5).window(7))->pretty_print(stream);
  EXPECT_EQ(stream.str(),
            "posenc::nn::Attention(embed_dim=16, num_heads=4, num_kv_heads=2, head_dim=4, dropout=0.5, "
            "output_dropout=0, bias=false, output_bias=false, is_causal=true, window=7, sinks=false, "
            "softcap_on=content, value_dim=4, cross=false)");
}

TEST(AttentionBlock, DecodingEqualsOnePass) {
  const auto expect_equal = [](const AttentionOptions& options) {
    auto block = with_weights(options);
    block->to(torch::kDouble);
    block->eval();
    const torch::NoGradGuard no_grad;
    const auto x = torch::randn({2, 6, kWidth}, torch::kDouble);
    KVCache cache(KVCacheOptions(2, kKeyHeads, 6, kHeadDim).dtype(torch::kDouble));
    std::vector<torch::Tensor> parts;
    for (const auto& [begin, end] : {std::pair(0, 3), std::pair(3, 4), std::pair(4, 6)}) {
      parts.push_back(block->forward(x.slice(1, begin, end), AttentionForwardOptions().cache(&cache)));
    }
    EXPECT_EQ(cache.length(), 6);
    EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), block->forward(x), 1e-9, 1e-9)) << block;
  };
  expect_equal(grouped());
  expect_equal(grouped().with(Sinusoidal(kWidth), Rotary(kHeadDim), FIRE(kHeads)));
  expect_equal(grouped().with(SelfExtend(SelfExtendOptions(kHeadDim).group(2).window(2))));
  expect_equal(grouped().with(Rotary(kHeadDim), ForgettingBias(kWidth, kHeads)));
  expect_equal(grouped().with(XPos(kHeadDim), CoPE(CoPEOptions(kHeadDim, 4).gate(CoPEGate::kKey))));
}

TEST(KVCacheMemory, ACallThatRaisesLeavesItAsItWas) {
  const torch::NoGradGuard no_grad;
  auto block = with_weights(grouped().with(ALiBi(kHeads)));
  KVCache cache(KVCacheOptions(1, kKeyHeads, 6, kHeadDim));
  const auto x = torch::randn({1, 2, kWidth});
  const auto call = AttentionForwardOptions().cache(&cache);
  block->forward(x, call);
  auto floating = call;
  EXPECT_THROW(block->forward(x, floating.positions(torch::arange(2, 4, torch::kFloat))), c10::TypeError);
  EXPECT_EQ(cache.length(), 2);
  EXPECT_FALSE(cache.positions().has_value());
  block->forward(x, call);
  EXPECT_EQ(cache.length(), 4);
}

TEST(KVCacheMemory, WholeAndFloatingPositionsStayExactTogether) {
  KVCache cache(KVCacheOptions(1, 2, 4, 3));
  const auto k = torch::randn({1, 2, 1, 3});
  const auto large = torch::tensor({(int64_t{1} << 24) + 1});
  cache.append(k, k, std::nullopt, torch::tensor({0.5F}));
  cache.append(k, k, std::nullopt, large);
  EXPECT_TRUE(torch::equal(cache.positions().value(), torch::tensor({{0.5, 16777217.0}}, torch::kDouble)));
}

TEST(KVCacheMemory, OverflowCropAndReset) {
  KVCache cache(KVCacheOptions(1, 2, 4, 3));
  const auto k = torch::randn({1, 2, 3, 3});
  const auto [keys, values] = cache.append(k, k + 1, std::nullopt, torch::arange(5, 8));
  EXPECT_TRUE(torch::equal(values, keys + 1));
  EXPECT_TRUE(torch::equal(cache.positions().value(), torch::arange(5, 8).unsqueeze(0)));
  expect_error([&] { cache.append(k, k); }, "at most max_length 4 tokens, but got 3 new after 3 cached, 6 in all");
  EXPECT_EQ(cache.length(), 3);
  cache.crop(1);
  EXPECT_TRUE(torch::equal(std::get<0>(cache.append(k, k)), torch::cat({k.slice(2, 0, 1), k}, 2)));
  KVCache moved = std::move(cache);
  EXPECT_EQ(moved.length(), 4);
  moved.reset();
  EXPECT_EQ(moved.length(), 0);
  EXPECT_FALSE(moved.positions().has_value());
  expect_error<c10::Error>([&] { moved.append(k.clone().requires_grad_(), k); }, "passes no gradient on");
}

}  // namespace
