/// State of tokens that an encoding names itself: Attention passes it to the encoding, KVCache stores it by name.

#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

using namespace posenc::nn;

namespace {

constexpr int64_t kWidth = 8, kHeads = 2;

/// Adds a number of each key's token to its scores, "salience" (B, H, T), made of the layer's input.
class SalienceImpl : public torch::nn::Cloneable<SalienceImpl>, public ScoreEncoding {
 public:
  SalienceImpl() { reset(); }
  void reset() override {}

  TokenState token_state(const at::Tensor& x) override {
    return {{"salience", x.slice(2, 0, kHeads).transpose(1, 2).contiguous()}};
  }
  std::vector<std::string> token_state_names() const override { return {"salience"}; }
  std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value, const AttendOptions& call) override {
    seen = call.token_state();
    return posenc::attention_with_lse(
        query, key, value,
        posenc::AttentionFuncOptions().is_causal(true).bias(call.state("salience").value().unsqueeze(2)));
  }
  at::Tensor logits(const at::Tensor& query, const at::Tensor&, const AttendOptions&) override { return query; }

  /// That of the last call.
  TokenState seen;
};
TORCH_MODULE(Salience);

TEST(TokenState, AttentionPassesWhatAnEncodingMakesOfItsInput) {
  torch::manual_seed(1);
  Salience encoding;
  Attention attention(AttentionOptions(kWidth, kHeads).with(encoding));
  const auto x = torch::randn({3, 5, kWidth});
  attention->forward(x);
  ASSERT_EQ(encoding->seen.size(), 1U);
  EXPECT_TRUE(torch::equal(encoding->seen.at("salience"), encoding->token_state(x).at("salience")));
}

TEST(TokenState, DecodingSeesTheStateOfAllTokens) {
  torch::manual_seed(1);
  Salience encoding;
  Attention attention(AttentionOptions(kWidth, kHeads).with(encoding));
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({3, 5, kWidth});
  const auto whole = attention->forward(x);
  KVCache cache(KVCacheOptions(3, kHeads, 5, kWidth / kHeads));
  std::vector<at::Tensor> parts;
  for (const auto& part : {x.slice(1, 0, 3), x.slice(1, 3, 4), x.slice(1, 4, 5)}) {
    parts.push_back(attention->forward(part, AttentionForwardOptions().cache(&cache)));
  }
  EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), whole, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(cache.token_state().at("salience"), encoding->token_state(x).at("salience")));
  EXPECT_FALSE(cache.gate_keys() || cache.log_decay());
}

TEST(TokenState, IsRefusedByEncodingsThatDoNotTakeIt) {
  const auto q = torch::randn({1, kHeads, 4, 8});
  const auto call = AttendOptions().set_state("salience", torch::zeros({1, kHeads, 4}));
  const auto refused = [&](ScoreEncoding& encoding, const std::string& name) {
    const std::string expected = name + ": expected no salience, which " + name + " does not take";
    expect_error([&] { encoding.attend(q, q, q, call); }, expected);
    expect_error([&] { encoding.logits(q, q, call); }, expected);
  };
  refused(*ALiBi(kHeads), "ALiBi");
  refused(*FIRE(kHeads), "FIRE");
  refused(*ShawRelative(8, 2), "ShawRelative");
  refused(*TransformerXL(8, kHeads), "TransformerXL");
  refused(*ReRoPE(8), "ReRoPE");
  refused(*CoPE(8, 4), "CoPE");
  refused(*ForgettingBias(8, kHeads), "ForgettingBias");
}

TEST(TokenState, ComesWithEveryTokenOrWithNone) {
  KVCache cache(KVCacheOptions(1, kHeads, 6, 4));
  const auto k = torch::randn({1, kHeads, 2, 4});
  const auto state = [&](const char* name) {
    return KVCacheAppendOptions().token_state({{name, torch::ones({1, 3, 2})}});
  };
  cache.append(k, k, state("salience"));
  expect_error([&] { cache.append(k, k); },
               "KVCache: expected salience with every token or with none, but the cached ones came with");
  expect_error([&] { cache.append(k, k, state("weight")); },
               "KVCache: expected salience with every token or with none");
  EXPECT_EQ(cache.length(), 2);
  cache.append(k, k, state("salience"));
  EXPECT_EQ(cache.token_state().at("salience").sizes(), at::IntArrayRef({1, 3, 4}));
  cache.crop(1);
  EXPECT_EQ(cache.token_state().at("salience").sizes(), at::IntArrayRef({1, 3, 1}));
  cache.reset();
  EXPECT_TRUE(cache.token_state().empty());
  cache.append(k, k);
  expect_error([&] { cache.append(k, k, state("weight")); },
               "KVCache: expected weight with every token or with none, but the cached ones came without");
}

}  // namespace
