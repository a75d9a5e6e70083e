/// ForgettingBias in C++: the module, its sums, what it and the others refuse. Values against references are compared
/// in Python, through the bindings.

#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

using namespace posenc::nn;

namespace {

constexpr int64_t kHeads = 4, kGroups = 2, kHeadDim = 8, kEmbedDim = 6;

struct Operands {
  torch::Tensor q, k, v, x;
};

Operands operands(int64_t length) {
  return {torch::randn({2, kHeads, length, kHeadDim}, torch::kDouble),
          torch::randn({2, kGroups, length, kHeadDim}, torch::kDouble),
          torch::randn({2, kGroups, length, kHeadDim}, torch::kDouble),
          torch::randn({2, length, kEmbedDim}, torch::kDouble)};
}

ForgettingBias build(ForgettingKind kind) {
  ForgettingBias module(ForgettingBiasOptions(kEmbedDim, kHeads).kind(kind));
  module->to(torch::kDouble);
  return module;
}

AttendOptions with_decay(const torch::Tensor& log_decay) { return AttendOptions().log_decay(log_decay); }

TEST(ForgettingBias, DecaysAddUpFromTheQueryBack) {
  for (const auto kind : {ForgettingKind::kFoX, ForgettingKind::kCABLE}) {
    auto module = build(kind);
    const auto [q, k, v, x] = operands(7);
    const auto z = torch::matmul(x, module->weight.t()).transpose(1, 2);
    const auto decay = module->forward(x);
    const auto expected = kind == ForgettingKind::kFoX ? torch::log(torch::sigmoid(z)) : torch::log(torch::sigmoid(-z));
    EXPECT_TRUE(torch::allclose(decay, expected, 1e-12, 1e-12));
    EXPECT_TRUE(torch::equal(module->token_state(x).at("log_decay"), decay));

    const auto sums = decay.cumsum(-1);
    const auto bias = (sums.unsqueeze(-1) - sums.unsqueeze(-2));
    const auto causal = posenc::AttentionFuncOptions().is_causal(true).bias(bias);
    const auto [out, lse] = module->attend_with_lse(q, k, v, with_decay(decay));
    EXPECT_TRUE(torch::allclose(out, posenc::attention(q, k, v, causal), 1e-10, 1e-10));
    EXPECT_TRUE(torch::allclose(torch::logsumexp(module->logits(q, k, with_decay(decay)), -1), lse, 1e-10, 1e-10));
    for (int64_t t = 0; t < 7; ++t) {
      const auto row = module->attend(q.narrow(2, t, 1), k.narrow(2, 0, t + 1), v.narrow(2, 0, t + 1),
                                      with_decay(decay.narrow(2, 0, t + 1)));
      EXPECT_TRUE(torch::allclose(row, out.narrow(2, t, 1), 1e-10, 1e-10));
    }
  }
}

TEST(ForgettingBias, IsAModule) {
  auto module = build(ForgettingKind::kFoX);
  EXPECT_EQ(module->parameters().size(), 2);
  EXPECT_EQ(build(ForgettingKind::kCABLE)->parameters().size(), 1);
  EXPECT_TRUE(torch::equal(module->bias, torch::zeros({kHeads}, torch::kDouble)));
  EXPECT_LE(module->weight.abs().max().item<double>(), 1 / std::sqrt(kEmbedDim));
  const auto [q, k, v, x] = operands(5);
  const auto decay = module->forward(x);
  ForgettingBias clone(std::dynamic_pointer_cast<ForgettingBiasImpl>(module->clone()));
  EXPECT_TRUE(torch::equal(clone->forward(x), decay));
  std::stringstream stored;
  torch::save(module, stored);
  auto other = build(ForgettingKind::kFoX);
  torch::load(other, stored);
  EXPECT_TRUE(torch::equal(other->forward(x), decay));

  module->attend(q, k, v, with_decay(module->forward(x))).square().sum().backward();
  for (const auto& parameter : module->parameters()) {
    EXPECT_GT(parameter.grad().abs().sum().item<double>(), 0);
  }
  other->to(torch::kHalf);
  EXPECT_EQ(other->forward(x.to(torch::kHalf)).scalar_type(), torch::kFloat) << "sums stay wide";
  other->reset_parameters();
  EXPECT_FALSE(torch::equal(other->weight.to(torch::kDouble), module->weight));

  EXPECT_EQ(printed(module) + printed(build(ForgettingKind::kCABLE)),
            "posenc::nn::ForgettingBias(embed_dim=6, num_heads=4, kind=fox)"
            "posenc::nn::ForgettingBias(embed_dim=6, num_heads=4, kind=cable)");
  EXPECT_TRUE(module->always_causal());
  EXPECT_EQ(module->token_state_names(), std::vector<std::string>{"log_decay"});
  EXPECT_FALSE(module->takes_positions() || module->needs_gate_key() || module->rotates());
  EXPECT_EQ(module->embed_dim(), kEmbedDim);
  EXPECT_TRUE(ALiBi(2)->token_state(x).empty() && ALiBi(2)->token_state_names().empty());
}

TEST(ForgettingBias, WhatCannotBeHonouredIsRefused) {
  const auto [q, k, v, x] = operands(5);
  auto module = build(ForgettingKind::kFoX);
  const auto call = with_decay(module->forward(x));
  const auto refused = [&](AttendOptions wrong, const std::string& message) {
    expect_error([&] { module->attend(q, k, v, wrong); }, "ForgettingBias: " + message);
    expect_error([&] { module->logits(q, k, wrong); }, "ForgettingBias: " + message);
  };
  refused({}, "expected log_decay of shape (2, 4, 5), what forward() makes of the layer's input, but got None");
  refused(AttendOptions(call).is_causal(false), "expected is_causal not to be false");
  refused(AttendOptions(call).q_positions(torch::arange(5)), "expected no q_positions or k_positions");
  refused(AttendOptions(call).gate_key(k), "expected no gate_key");
  expect_error([&] { module->logits(q, k, AttendOptions(call).dropout_p(0.5)); }, "expected no dropout_p in logits");
  expect_error([] { ForgettingBias(0, 2); }, "ForgettingBias: expected embed_dim to be at least 1");

  const auto refuses_decays = [](const std::string& name, const auto& act) {
    expect_error(act, name + ": expected no log_decay, which " + name + " does not take");
  };
  refuses_decays("CoPE", [&] { CoPE(kHeadDim, 4)->attend(q, k, v, call); });
  refuses_decays("ALiBi", [&] { ALiBi(kHeads)->attend(q, k, v, call); });
  refuses_decays("FIRE", [&] { FIRE(kHeads)->attend(q, k, v, call); });
  refuses_decays("ShawRelative", [&] { ShawRelative(kHeadDim, 2)->logits(q, k, call); });
  refuses_decays("ReRoPE", [&] { ReRoPE(kHeadDim)->attend(q, k, v, call); });
}

}  // namespace
