#include "module_values.h"
#include "support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

namespace {

using posenc::nn::ALiBi;
using posenc::nn::ALiBiOptions;
using posenc::nn::AttendOptions;
using posenc::nn::FIRE;
using posenc::nn::FIREOptions;
using posenc::nn::Kerple;
using posenc::nn::KerpleKind;
using posenc::nn::KerpleOptions;
using posenc::nn::Sandwich;
using posenc::nn::SandwichOptions;
using posenc::nn::T5RelativeBias;
using posenc::nn::T5RelativeBiasOptions;

/// What every additive module promises; `other` has the same options.
template <typename Module>
void expect_additive_promises(Module module, Module other, double scale) {
  torch::manual_seed(0);
  const auto q = torch::randn({2, 4, 5, 8}), k = torch::randn({2, 2, 7, 8}), v = torch::randn({2, 2, 7, 3});
  const auto [out, lse] = module->attend_with_lse(q, k, v, causal());
  EXPECT_EQ(out.sizes(), torch::IntArrayRef({2, 4, 5, 3}));
  EXPECT_TRUE(torch::equal(module->attend(q, k, v, causal()), out));

  // attend, logits and bias agree.
  const auto logits = module->logits(q, k, causal());
  EXPECT_TRUE(torch::allclose(logits.softmax(-1).matmul(v.repeat_interleave(2, 1)), out, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(logits.logsumexp(-1), lse, 1e-5, 1e-6));
  const auto hidden = torch::ones({5, 7}, torch::kBool).triu(3);
  const auto scores = q.matmul(k.repeat_interleave(2, 1).transpose(-1, -2)) * scale + module->bias(5, 7);
  EXPECT_TRUE(torch::allclose(logits, scores.masked_fill(hidden, -INFINITY), 1e-5, 1e-5));
  EXPECT_TRUE(torch::equal(module->bias(2, 7), module->bias(7).slice(1, 5)));

  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    EXPECT_EQ(module->attend(q.to(type), k.to(type), v.to(type)).scalar_type(), type);
  }

  // A clone is deep and equal; what one saves the other loads.
  Module clone(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone()));
  EXPECT_TRUE(torch::equal(clone->attend(q, k, v, causal()), out));
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : clone->parameters()) {
      parameter.add_(1.0);
    }
  }
  EXPECT_TRUE(torch::equal(module->attend(q, k, v, causal()), out));
  EXPECT_EQ(torch::equal(clone->attend(q, k, v, causal()), out), module->parameters().empty());
  std::stringstream stored;
  torch::save(module, stored);
  torch::load(other, stored);
  EXPECT_TRUE(torch::equal(other->attend(q, k, v, causal()), out));
  EXPECT_TRUE(module->buffers().empty());

  // Every parameter learns.
  if (!module->parameters().empty()) {
    module->attend(q, k, v, causal()).square().sum().backward();
    for (const auto& parameter : module->named_parameters()) {
      EXPECT_GT(parameter.value().grad().abs().sum().template item<double>(), 0.0) << parameter.key();
    }
  }
  module->to(torch::kHalf);
  EXPECT_EQ(module->bias(3).scalar_type(), torch::kFloat);
  module->to(torch::kDouble);
  EXPECT_EQ(module->bias(3).scalar_type(), module->parameters().empty() ? torch::kFloat : torch::kDouble);

  EXPECT_THROW(module->bias(-1), c10::ValueError);
  EXPECT_THROW(module->bias(2, -1), c10::ValueError);
  EXPECT_THROW(module->attend(q.slice(1, 0, 2), k, v), c10::ValueError);
  EXPECT_THROW(module->attend(q, k, v, AttendOptions().gate_key(k)), c10::ValueError);
  EXPECT_THROW(module->logits(q, k, AttendOptions().dropout_p(0.1)), c10::ValueError);
}

TEST(AdditiveModules, Promises) {
  torch::manual_seed(1);
  const double scale = 1.0 / std::sqrt(8.0);
  const auto given = ALiBiOptions(4).slopes(std::vector<double>{0.1, 0.2, 0.0, 1.0});
  const auto buckets = T5RelativeBiasOptions(4).num_buckets(8).max_distance(5).bidirectional(true).scale(std::nullopt);
  const auto power = KerpleOptions(4).kind(KerpleKind::kPower);
  const auto fire = FIREOptions(4).hidden_dim(8).threshold(4.5);
  expect_additive_promises(ALiBi(4), ALiBi(4), scale);
  expect_additive_promises(ALiBi(given), ALiBi(given), scale);
  expect_additive_promises(ALiBi(ALiBiOptions(4).learnable(true)), ALiBi(ALiBiOptions(4).learnable(true)), scale);
  expect_additive_promises(T5RelativeBias(4), T5RelativeBias(4), 1.0);
  expect_additive_promises(T5RelativeBias(buckets), T5RelativeBias(buckets), scale);
  expect_additive_promises(Kerple(4), Kerple(4), scale);
  expect_additive_promises(Kerple(power), Kerple(power), scale);
  expect_additive_promises(Sandwich(4), Sandwich(4), scale);
  expect_additive_promises(FIRE(fire), FIRE(fire), scale);
}

TEST(AdditiveModules, PrettyPrintShowsEveryOption) {
  EXPECT_EQ(printed(ALiBi(4)), "posenc::nn::ALiBi(num_heads=4, learnable=false)");
  EXPECT_EQ(printed(ALiBi(ALiBiOptions(2).slopes(std::vector<double>{0.5, 0.25}).learnable(true))),
            "posenc::nn::ALiBi(num_heads=2, slopes=[0.5, 0.25], learnable=true)");
  EXPECT_EQ(printed(T5RelativeBias(4)),
            "posenc::nn::T5RelativeBias(num_heads=4, num_buckets=32, max_distance=128, bidirectional=false, scale=1)");
  EXPECT_EQ(printed(Kerple(KerpleOptions(4).kind(KerpleKind::kPower))), "posenc::nn::Kerple(num_heads=4, kind=power)");
  EXPECT_EQ(printed(Sandwich(4)), "posenc::nn::Sandwich(num_heads=4, dim=128)");
  const auto fire = printed(FIRE(FIREOptions(4).c(0.25)));  // its layers follow
  EXPECT_EQ(fire.substr(0, fire.find(")(")),
            "posenc::nn::FIRE(num_heads=4, hidden_dim=32, c=0.25, threshold=512, eps=1e-06");
}

TEST(AdditiveModules, ParameterNames) {
  const auto fire = FIRE(FIREOptions(3).hidden_dim(5));
  EXPECT_EQ(fire->named_parameters().keys(),
            (std::vector<std::string>{"c", "threshold", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"}));
  EXPECT_EQ(fire->c.sizes(), torch::IntArrayRef({1}));
  EXPECT_EQ(Kerple(3)->named_parameters().keys(), (std::vector<std::string>{"r1", "r2"}));
  EXPECT_EQ(T5RelativeBias(3)->weight.sizes(), torch::IntArrayRef({32, 3}));
  EXPECT_TRUE(ALiBi(3)->parameters().empty());
}

TEST(AdditiveModules, ResetDrawsAnewOrRestores) {
  torch::manual_seed(2);
  const auto learned = [](const auto& module) { return torch::nn::utils::parameters_to_vector(module->parameters()); };
  T5RelativeBias t5(4);
  Kerple kerple(4);
  auto before = learned(t5);
  t5->reset_parameters();
  EXPECT_FALSE(torch::equal(learned(t5), before));
  before = learned(kerple);
  kerple->reset_parameters();
  EXPECT_FALSE(torch::equal(learned(kerple), before));

  ALiBi alibi(ALiBiOptions(4).learnable(true));
  FIRE fire(4);
  {
    torch::NoGradGuard no_grad;
    alibi->slopes.zero_();
    fire->c.zero_();
  }
  alibi->reset_parameters();
  fire->reset_parameters();
  EXPECT_TRUE(torch::equal(alibi->slopes.detach(), posenc::alibi_slopes(4)));
  EXPECT_FLOAT_EQ(fire->c.item<float>(), 0.1F);
}

TEST(ALiBiSlopes, AnyNumberOfHeads) {
  EXPECT_TRUE(torch::equal(posenc::alibi_slopes(6), torch::tensor({0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125})));
  EXPECT_TRUE(torch::equal(posenc::alibi_slopes(3), torch::tensor({0.0625, 0.00390625, 0.25})));
  EXPECT_TRUE(torch::equal(posenc::alibi_slopes(1), torch::tensor({0.00390625})));
  EXPECT_NEAR(posenc::alibi_slopes(71, torch::kDouble)[70].item<double>(), 0.56939432, 5e-9);
  EXPECT_EQ(posenc::alibi_slopes(3, torch::kHalf).scalar_type(), torch::kHalf);
  EXPECT_THROW(posenc::alibi_slopes(0), c10::ValueError);
  EXPECT_THROW(posenc::alibi_slopes(2, torch::kLong), c10::TypeError);
}

TEST(ALiBiSlopes, NoCastRoundsThem) {
  ALiBi module(12);
  const auto exact = module->slopes.clone();
  module->to(torch::kHalf);
  module->to(torch::kFloat);
  EXPECT_TRUE(torch::equal(module->slopes, exact));
  EXPECT_EQ(exact.scalar_type(), torch::kDouble);
}

TEST(ALiBiCache, DecodingEqualsTheLastRows) {
  const auto bias = ALiBi(2)->bias(2, 5);
  EXPECT_TRUE(torch::equal(bias[0][1], torch::tensor({-0.25, -0.1875, -0.125, -0.0625, 0.0})));
  EXPECT_TRUE(torch::equal(ALiBi(2)->bias(1, 4)[0][0], torch::tensor({-0.1875, -0.125, -0.0625, 0.0})));
}

TEST(T5Buckets, SignIsKeyMinusQuery) {
  const auto relative = torch::tensor({-1, 0, 1, 5, -16, -1000, 1000}, torch::kLong);
  EXPECT_TRUE(torch::equal(posenc::t5_bucket(relative), torch::tensor({1, 0, 17, 21, 10, 15, 31}, torch::kLong)));
  EXPECT_TRUE(
      torch::equal(posenc::t5_bucket(relative, 32, 128, false), torch::tensor({1, 0, 0, 0, 16, 31, 0}, torch::kLong)));
  EXPECT_THROW(posenc::t5_bucket(relative.to(torch::kFloat)), c10::TypeError);
  EXPECT_THROW(posenc::t5_bucket(relative, 3), c10::ValueError);
}

TEST(T5Buckets, RowsOfACacheAreTheLastOnes) {
  T5RelativeBias module(1);
  {
    torch::NoGradGuard no_grad;
    module->weight.copy_(torch::arange(32).unsqueeze(1));
  }
  EXPECT_TRUE(torch::equal(module->bias(1, 4).flatten(), torch::tensor({3.0, 2.0, 1.0, 0.0})));
  EXPECT_TRUE(torch::equal(module->bias(2, 5), module->bias(5).slice(1, 3)));
}

TEST(AdditiveErrors, TablesReachAsFarAsTheDistancesOfARow) {
  const auto x = torch::randn({2, 2, 3, 4});
  const auto near = torch::arange(3), apart = torch::tensor({{0}, {1000000000}}) + near;
  const auto call = [](const torch::Tensor& q, const torch::Tensor& k) {
    return AttendOptions().q_positions(q).k_positions(k);
  };
  Kerple kerple(2);
  EXPECT_TRUE(torch::equal(kerple->attend(x, x, x, call(apart, apart)), kerple->attend(x, x, x, call(near, near))));
  EXPECT_THROW(kerple->attend(x, x, x, call(near, apart)), c10::ValueError);
  EXPECT_THROW(Sandwich(2)->attend(x, x, x, call(near, apart)), c10::ValueError);
}

TEST(AdditiveErrors, OptionsAreChecked) {
  EXPECT_THROW(ALiBi(0), c10::ValueError);
  EXPECT_THROW(ALiBi(ALiBiOptions(2).slopes(std::vector<double>{1.0})), c10::ValueError);
  EXPECT_THROW(T5RelativeBias(T5RelativeBiasOptions(2).max_distance(16)), c10::ValueError);
  EXPECT_THROW(T5RelativeBias(T5RelativeBiasOptions(2).num_buckets(7).bidirectional(true)), c10::ValueError);
  EXPECT_THROW(Kerple(0), c10::ValueError);
  EXPECT_THROW(Sandwich(SandwichOptions(2).dim(5)), c10::ValueError);
  EXPECT_THROW(FIRE(FIREOptions(2).hidden_dim(0)), c10::ValueError);
  EXPECT_THROW(FIRE(FIREOptions(2).threshold(0.0)), c10::ValueError);
}

}  // namespace
