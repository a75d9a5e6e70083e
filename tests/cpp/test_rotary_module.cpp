#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <vector>

namespace {

using posenc::nn::Rotary;
using posenc::nn::RotaryForwardOptions;
using posenc::nn::RotaryImpl;
using posenc::nn::RotaryOptions;
namespace scaling = posenc::scaling;

std::vector<RotaryOptions> every_configuration() {
  return {
      RotaryOptions(8),
      RotaryOptions(8).interleaved(true),
      RotaryOptions(10).rotary_dim(6),
      RotaryOptions(5).rotary_dim(0),
      RotaryOptions(8).base(500000.0).exact(false),
      RotaryOptions(8).scaling(scaling::Linear(4.0)),
      RotaryOptions(8).scaling(scaling::NTK(4.0)),
      RotaryOptions(8).scaling(scaling::DynamicNTK(2.0, 4)),
      RotaryOptions(8).scaling(scaling::DynamicNTK(2.0, 16)).seq_len(17),
      RotaryOptions(8).scaling(scaling::Yarn(4.0, 64)),
      RotaryOptions(8).learnable(true),
      RotaryOptions(9).rotary_dim(6).interleaved(true).learnable(true),
  };
}

/// Every promise of a posenc module, for every configuration: `optionals` (the parameter) absent and present.
class RotaryModule : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { torch::manual_seed(0); }

  RotaryOptions options() const { return every_configuration()[GetParam()]; }
  torch::Tensor input(at::ScalarType type = torch::kFloat) const {
    return torch::randn({2, 3, 7, options().head_dim()}).to(type);
  }
  /// A module whose parameter, if any, is away from its initial value.
  Rotary changed() const {
    Rotary module(options());
    torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) {
      parameter.mul_(1.25);
    }
    return module;
  }
};

TEST_P(RotaryModule, ForwardIsTheOp) {
  Rotary module = changed();
  const auto frequencies = module->frequencies(options().seq_len().value_or(7));
  const auto inv_freq = options().learnable() ? module->inv_freq.detach() : frequencies.inv_freq;
  const auto call = posenc::RotaryFuncOptions()
                        .attention_scaling(frequencies.attention_scaling)
                        .interleaved(options().interleaved())
                        .exact(options().exact());
  torch::NoGradGuard no_grad;
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const auto x = input(type);
    const auto y = module(x);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(torch::equal(y, posenc::rotary(x, std::nullopt, inv_freq, call)));
    const auto [q, k] = module->forward_qk(x, x.narrow(1, 0, 1));
    EXPECT_TRUE(torch::equal(q, y));
    EXPECT_TRUE(torch::equal(k, y.narrow(1, 0, 1)));
  }
}

TEST_P(RotaryModule, CloneIsDeepAndEqual) {
  Rotary module = changed();
  const auto x = input().requires_grad_();
  const auto expected = module(x);
  expected.square().sum().backward();
  const auto clone = std::dynamic_pointer_cast<RotaryImpl>(module->clone());
  ASSERT_TRUE(clone);
  EXPECT_TRUE(torch::equal(clone->forward(x), expected));
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : clone->parameters()) {
      parameter.zero_();
    }
  }
  EXPECT_TRUE(torch::equal(module(x), expected));
  if (options().learnable()) {
    EXPECT_TRUE(torch::equal(clone->forward(x), x)) << "the clone computes with its own parameter";
    EXPECT_EQ(clone->inv_freq.const_data_ptr(), clone->named_parameters()["inv_freq"].const_data_ptr());
  }
}

TEST_P(RotaryModule, MovesReachEveryTensorAndRoundNothingDerived) {
  Rotary module(options());
  const auto x = input();
  const auto expected = module(x);
  module->to(torch::kHalf);
  EXPECT_EQ(module(x.to(torch::kHalf)).scalar_type(), torch::kHalf);
  module->to(torch::kDouble);
  for (const auto& parameter : module->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kDouble);
  }
  EXPECT_EQ(module(x.to(torch::kDouble)).scalar_type(), torch::kDouble);
  module->to(torch::kFloat);
  if (!options().learnable()) {
    EXPECT_TRUE(torch::equal(module(x), expected));
  }
  module->to(torch::kCPU);
  module->zero_grad();
  module->eval();
  module->train();
}

TEST_P(RotaryModule, WhatOneSavesTheOtherLoads) {
  Rotary module = changed(), other(options());
  std::stringstream stored;
  torch::save(module, stored);
  torch::load(other, stored);
  const auto x = input();
  EXPECT_TRUE(torch::equal(other(x), module(x)));
}

TEST_P(RotaryModule, OptimizerStepLowersTheLoss) {
  torch::nn::Linear projection(options().head_dim(), options().head_dim());
  Rotary module(options());
  std::vector<torch::Tensor> parameters = projection->parameters();
  for (const auto& parameter : module->parameters()) {
    parameters.push_back(parameter);
  }
  EXPECT_EQ(parameters.size(), options().learnable() ? 3U : 2U);
  torch::optim::Adam optimizer(parameters, 0.05);
  const auto x = input(), target = input();
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const auto loss = (module(projection(x)) - target).square().mean();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  if (options().learnable()) {
    EXPECT_FALSE(torch::equal(module->inv_freq, Rotary(options())->inv_freq));
    module->reset_parameters();
    EXPECT_TRUE(torch::equal(module->inv_freq, Rotary(options())->inv_freq));
    EXPECT_TRUE(module->inv_freq.requires_grad());
  }
}

TEST_P(RotaryModule, InSequentialAndInParents) {
  Rotary module = changed();
  const auto x = input();
  torch::nn::Sequential sequential(torch::nn::Linear(options().head_dim(), options().head_dim()), module,
                                   torch::nn::Dropout(0.0));
  const auto y = sequential->forward(x);
  EXPECT_TRUE(torch::equal(y, module(sequential->at<torch::nn::LinearImpl>(0).forward(x))));
  EXPECT_EQ(sequential->named_parameters().contains("1.inv_freq"), options().learnable());
  EXPECT_EQ(sequential->buffers().size(), 0U);

  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(sequential->clone());
  EXPECT_TRUE(torch::equal(clone->forward(x), y));
  sequential->to(torch::kDouble);
  EXPECT_EQ(sequential->forward(x.to(torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST_P(RotaryModule, PrettyPrintShowsEveryOption) {
  std::ostringstream stream;
  stream << *Rotary(options());
  const auto text = stream.str();
  const auto o = options();
  EXPECT_NE(text.find("Rotary("), std::string::npos);
  EXPECT_NE(text.find(std::to_string(o.head_dim())), std::string::npos);
  for (const auto& [name, shown] : std::vector<std::pair<std::string, bool>>{
           {"rotary_dim", o.rotary_dim().has_value()},
           {"base", o.base() != 10000.0},
           {"interleaved", o.interleaved()},
           {"scaling", o.scaling() != scaling::Scaling()},
           {"exact", !o.exact()},
           {"seq_len", o.seq_len().has_value()},
           {"learnable", o.learnable()},
       }) {
    EXPECT_TRUE(!shown || text.find(name) != std::string::npos) << name << " is not in " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, RotaryModule, testing::Range<size_t>(0, every_configuration().size()));

TEST(RotaryCall, PositionsOffsetsAndLengths) {
  torch::manual_seed(0);
  const auto x = torch::randn({2, 3, 5, 8});
  const auto counted = torch::arange(5, torch::kLong);
  Rotary plain(8);
  EXPECT_TRUE(torch::equal(plain(x, RotaryForwardOptions().offset(3)),
                           plain(x, RotaryForwardOptions().positions(counted + 3))));
  const auto rows = torch::tensor({1, 9}, torch::kLong);
  EXPECT_TRUE(torch::equal(plain(x, RotaryForwardOptions().offsets(rows)),
                           plain(x, RotaryForwardOptions().positions(counted + rows.unsqueeze(1)))));

  const auto dynamic = RotaryOptions(8).scaling(scaling::DynamicNTK(2.0, 4));
  const auto at_length = [&](int64_t length, const torch::Tensor& positions) {
    return posenc::rotary(x, positions, scaling::frequencies(8, 10000.0, scaling::DynamicNTK(2.0, 4), length).inv_freq);
  };
  Rotary module(dynamic);
  EXPECT_TRUE(torch::equal(module(x), at_length(5, counted)));
  EXPECT_TRUE(torch::equal(module(x, RotaryForwardOptions().offset(20)), at_length(25, counted + 20)));
  EXPECT_TRUE(torch::equal(module(x, RotaryForwardOptions().positions(counted * 7)), at_length(29, counted * 7)));
  EXPECT_TRUE(torch::equal(module(x, RotaryForwardOptions().seq_len(64)), at_length(64, counted)));
  Rotary fixed(RotaryOptions(dynamic).seq_len(100));
  EXPECT_TRUE(torch::equal(fixed(x, RotaryForwardOptions().offset(20)), at_length(100, counted + 20)));
  EXPECT_TRUE(torch::equal(fixed(x, RotaryForwardOptions().seq_len(64)), at_length(64, counted)));
  EXPECT_TRUE(torch::equal(module(x), at_length(5, counted))) << "earlier calls leave nothing behind";
}

TEST(RotaryCall, CloneOfChangedOptionsFollowsThem) {
  Rotary module(RotaryOptions(8).base(500.0));
  const auto clone = std::dynamic_pointer_cast<RotaryImpl>(module->clone());
  EXPECT_EQ(clone->options.base(), 500.0);
}

TEST(RotaryErrors, OptionsAreChecked) {
  EXPECT_THROW(Rotary(RotaryOptions(65).rotary_dim(33)), c10::ValueError);
  EXPECT_THROW(Rotary(RotaryOptions(4).rotary_dim(6)), c10::ValueError);
  EXPECT_THROW(Rotary(7), c10::ValueError);
  EXPECT_THROW(Rotary(0), c10::ValueError);
  EXPECT_THROW(Rotary(RotaryOptions(8).base(-1.0)), c10::ValueError);
  EXPECT_THROW(Rotary(RotaryOptions(8).scaling(scaling::Linear(0.0))), c10::ValueError);
  EXPECT_THROW(Rotary(RotaryOptions(8).seq_len(0)), c10::ValueError);
}

}  // namespace
