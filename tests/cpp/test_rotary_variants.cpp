#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace {

using posenc::nn::AxialRotary;
using posenc::nn::AxialRotaryOptions;
using posenc::nn::MultimodalRotary;
using posenc::nn::MultimodalRotaryOptions;
using posenc::nn::Rotary;
using posenc::nn::RotaryForwardOptions;
using posenc::nn::RotaryOptions;
using posenc::nn::XPos;
using posenc::nn::XPosOptions;
namespace scaling = posenc::scaling;

torch::Tensor numbers(std::initializer_list<int64_t> sizes, at::ScalarType type = torch::kFloat) {
  return torch::randn(sizes, torch::kDouble).to(type);
}

RotaryForwardOptions at_positions(const torch::Tensor& positions) {
  return RotaryForwardOptions().positions(positions);
}

template <typename Module>
torch::Tensor turned(Module& module, const torch::Tensor& x, const RotaryForwardOptions& call) {
  return module->forward(x, call);
}

template <typename Module>
Module clone_of(const Module& module) {
  return Module(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone()));
}

template <typename Module>
void change_parameters(const Module& module, double factor) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.mul_(factor);
  }
}

/// What every module promises; `call` goes with x (2, 4, 7, head_dim).
template <typename Module, typename Options>
void expect_module_promises(const Options& options, const RotaryForwardOptions& call) {
  torch::manual_seed(0);
  Module module(options);
  change_parameters(module, 1.25);
  const bool learnable = !module->parameters().empty();
  const auto x = numbers({2, 4, 7, options.head_dim()});
  const auto y = turned(module, x, call);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(module->buffers().size(), 0U);

  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const auto typed = x.to(type);
    const auto [q, k] = module->forward_qk(typed, typed, call);
    EXPECT_EQ(q.scalar_type(), type);
    EXPECT_EQ(k.scalar_type(), type);
    EXPECT_TRUE(torch::equal(q, turned(module, typed, call)));
  }

  Module clone = clone_of(module);
  EXPECT_TRUE(torch::equal(turned(clone, x, call), y));
  EXPECT_EQ(printed(clone), printed(module));
  change_parameters(clone, 2.0);
  EXPECT_TRUE(torch::equal(turned(module, x, call), y));
  EXPECT_EQ(torch::equal(turned(clone, x, call), y), !learnable) << "the clone computes with its own parameter";

  std::stringstream stored;
  torch::save(module, stored);
  Module loaded(options);
  torch::load(loaded, stored);
  EXPECT_TRUE(torch::equal(turned(loaded, x, call), y));

  Module moved = clone_of(module);
  moved->to(torch::kHalf);
  EXPECT_EQ(turned(moved, x.to(torch::kHalf), call).scalar_type(), torch::kHalf);
  moved->to(torch::kDouble);
  for (const auto& parameter : moved->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kDouble);
  }
  EXPECT_EQ(turned(moved, x.to(torch::kDouble), call).scalar_type(), torch::kDouble);
  moved->to(torch::kFloat);
  if (!learnable) {
    EXPECT_TRUE(torch::equal(turned(moved, x, call), y)) << "no cast rounds what is derived";
  }

  auto wide = numbers({2, 4, 7, options.head_dim()}, torch::kDouble).requires_grad_();
  const auto grad = torch::randn_like(wide);
  const auto result = torch::autograd::grad({turned(module, wide, call)}, {wide}, {grad})[0];
  const auto direction = torch::randn_like(wide);
  torch::NoGradGuard no_grad;
  const auto expected = (turned(module, wide + direction, call) - turned(module, wide, call)).mul(grad).sum();
  EXPECT_TRUE(torch::allclose(result.mul(direction).sum(), expected, 1e-9, 1e-9)) << "the rotation is linear in x";
}

torch::Tensor grid() { return torch::tensor({0, 1, 1, 1, 2, 2, 2, 0, 1, 2, 3, 1, 2, 3}, torch::kLong).view({2, 7}); }
torch::Tensor spans() { return torch::stack({torch::arange(7), torch::arange(7) % 3, torch::arange(7) / 2 % 2}); }

TEST(RotaryVariants, XPosKeepsTheModulePromises) {
  expect_module_promises<XPos>(XPosOptions(8), {});
  expect_module_promises<XPos>(XPosOptions(8).interleaved(false).centre(3.5).scale_base(16.0),
                               at_positions(torch::arange(7)));
}

TEST(RotaryVariants, AxialRotaryKeepsTheModulePromises) {
  expect_module_promises<AxialRotary>(AxialRotaryOptions(16), at_positions(grid()));
  expect_module_promises<AxialRotary>(AxialRotaryOptions(12).num_axes(3).interleaved(false), at_positions(spans()));
  expect_module_promises<AxialRotary>(AxialRotaryOptions(8).learnable(true), at_positions(grid()));
  expect_module_promises<AxialRotary>(AxialRotaryOptions(8).learnable(true).num_heads(4),
                                      at_positions(grid().to(torch::kDouble) / 4));
}

TEST(RotaryVariants, MultimodalRotaryKeepsTheModulePromises) {
  expect_module_promises<MultimodalRotary>(MultimodalRotaryOptions(16, {2, 3, 3}), at_positions(spans()));
  expect_module_promises<MultimodalRotary>(MultimodalRotaryOptions(16, {4, 2, 2}).interleaved_sections(true), {});
  expect_module_promises<MultimodalRotary>(
      MultimodalRotaryOptions(11, {1, 1, 2}).rotary_dim(8).interleaved(true).scaling(scaling::Yarn(4.0, 64)),
      at_positions(spans()));
  expect_module_promises<MultimodalRotary>(
      MultimodalRotaryOptions(8, {1, 1, 2}).exact(false).scaling(scaling::DynamicNTK(2.0, 4)), at_positions(spans()));
}

TEST(RotaryVariants, XPosScoresDecayByZetaAndDoNotDependOnTheCentre) {
  const auto query = torch::zeros({1, 1, 1025, 64}, torch::kDouble), key = torch::zeros_like(query);
  for (const int64_t pair : {0, 16, 31}) {
    query.select(3, 2 * pair).fill_(1.0);
  }
  key.copy_(query);
  const auto norm = [](const torch::Tensor& x, int64_t pair) {
    return x.narrow(3, 2 * pair, 2).square().sum(-1).sqrt().flatten();
  };
  for (const double centre : {0.0, 400.0}) {
    XPos module(XPosOptions(64).centre(centre));
    const auto [q, k] = module->forward_qk(query, key);
    const auto product = [&](int64_t pair, int64_t distance) {
      return (norm(q, pair)[1000] * norm(k, pair)[1000 - distance]).item<double>();
    };
    EXPECT_NEAR(product(0, 1), 0.997556, 5e-7);
    EXPECT_NEAR(product(0, 512), 0.285714, 5e-7);
    EXPECT_NEAR(product(16, 512), 0.642857, 5e-7);
    EXPECT_NEAR(product(31, 512), 0.977679, 5e-7);
    EXPECT_NEAR(product(0, 0), 1.0, 1e-12);
  }
}

TEST(RotaryVariants, AxialRotaryIsARotaryForEachAxis) {
  torch::manual_seed(0);
  const auto x = numbers({2, 4, 7, 16});
  AxialRotary module(AxialRotaryOptions(16).base(50.0));
  Rotary one_axis(RotaryOptions(8).base(50.0).interleaved(true));
  const auto rows = one_axis(x.narrow(3, 0, 8), at_positions(grid()[0]));
  const auto columns = one_axis(x.narrow(3, 8, 8), at_positions(grid()[1]));
  const auto y = module(x, at_positions(grid()));
  EXPECT_TRUE(torch::equal(y, torch::cat({rows, columns}, 3)));
  EXPECT_TRUE(torch::equal(y.select(2, 0), x.select(2, 0))) << "a class token at place 0 stays as it is";
  AxialRotary mixed(AxialRotaryOptions(16).base(50.0).learnable(true));
  EXPECT_TRUE(torch::allclose(mixed(x, at_positions(grid())), y, 1e-5, 1e-5)) << "mixed frequencies start axial";
}

TEST(RotaryVariants, FrequenciesOfEachHeadLearnOnTheirOwn) {
  torch::manual_seed(0);
  AxialRotary module(AxialRotaryOptions(8).learnable(true).num_heads(4));
  EXPECT_EQ(module->inv_freq.sizes(), (std::vector<int64_t>{2, 4, 4}));
  const auto initial = module->inv_freq.detach().clone();
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  const auto x = numbers({1, 4, 7, 8});
  auto grad = torch::zeros_like(x);
  grad.select(1, 2).normal_();
  module(x, at_positions(grid())).backward(grad);
  optimizer.step();
  const auto moved = (module->inv_freq.detach() - initial).abs().sum({0, 2});
  for (const int64_t head : {0, 1, 3}) {
    EXPECT_EQ(moved[head].item<float>(), 0.0F);
  }
  EXPECT_GT(moved[2].item<float>(), 1e-3F);
  module->reset_parameters();
  EXPECT_TRUE(torch::equal(module->inv_freq, initial));
  EXPECT_TRUE(module->inv_freq.requires_grad());
}

TEST(RotaryVariants, MultimodalAnglesAndText) {
  auto x = torch::zeros({1, 1, 1, 8}, torch::kDouble);
  x.narrow(3, 0, 4).fill_(1.0);
  MultimodalRotary module(MultimodalRotaryOptions(8, {1, 1, 2}));
  const auto y = module(x, at_positions(torch::tensor({{1}, {2}, {3}}, torch::kLong))).flatten();
  const auto angles = torch::atan2(y.narrow(0, 4, 4), y.narrow(0, 0, 4));
  EXPECT_TRUE(torch::allclose(angles, torch::tensor({1.0, 0.2, 0.03, 0.003}, torch::kDouble), 0, 1e-12));

  const auto text = torch::arange(3, 10, torch::kLong);
  for (const bool interleaved_sections : {false, true}) {
    const auto options = MultimodalRotaryOptions(16, {4, 2, 2}).interleaved_sections(interleaved_sections);
    MultimodalRotary multimodal(options);
    const auto tokens = numbers({2, 4, 7, 16});
    EXPECT_TRUE(
        torch::equal(multimodal(tokens, at_positions(text.expand({3, 7}))), Rotary(16)(tokens, at_positions(text))));
    EXPECT_TRUE(
        torch::equal(multimodal(tokens, RotaryForwardOptions().offset(3)), Rotary(16)(tokens, at_positions(text))));
  }
  EXPECT_EQ(MultimodalRotary(MultimodalRotaryOptions(16, {4, 2, 2}).interleaved_sections(true))->axes(),
            (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0, 0}));
}

TEST(RotaryVariants, InSequentialAndInParents) {
  torch::manual_seed(0);
  MultimodalRotary multimodal(8, std::vector<int64_t>{1, 1, 2});
  XPos xpos(8);
  const auto x = numbers({2, 4, 7, 8});
  torch::nn::Sequential sequential(torch::nn::Linear(8, 8), multimodal, xpos);
  const auto y = sequential->forward(x);
  EXPECT_TRUE(torch::equal(y, xpos(multimodal(sequential->at<torch::nn::LinearImpl>(0).forward(x)))));
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(sequential->clone());
  EXPECT_TRUE(torch::equal(clone->forward(x), y));

  torch::nn::Sequential places(AxialRotary(AxialRotaryOptions(8).learnable(true)));
  EXPECT_EQ(places->named_parameters().keys(), std::vector<std::string>{"0.inv_freq"});
  EXPECT_TRUE(torch::equal(places->forward(x, at_positions(grid())),
                           AxialRotary(AxialRotaryOptions(8).learnable(true))(x, at_positions(grid()))));
  EXPECT_THROW(places->forward(x), c10::ValueError) << "there is no default place on two axes";
}

TEST(RotaryVariants, PrettyPrintShowsEveryOption) {
  const auto expect_shown = [](const std::string& text, const std::vector<std::string>& parts) {
    for (const auto& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
    }
  };
  expect_shown(printed(XPos(XPosOptions(64).base(500.0).scale_base(128.0).centre(7.5).interleaved(false))),
               {"XPos(", "64", "base=500", "scale_base=128", "centre=7.5", "interleaved=false"});
  expect_shown(printed(AxialRotary(AxialRotaryOptions(12).num_axes(3).base(10.0).learnable(true).num_heads(4))),
               {"AxialRotary(", "12", "num_axes=3", "base=10", "interleaved=true", "learnable=true", "num_heads=4"});
  expect_shown(printed(MultimodalRotary(MultimodalRotaryOptions(12, {1, 1, 2})
                                            .rotary_dim(8)
                                            .base(1e6)
                                            .interleaved(true)
                                            .interleaved_sections(false)
                                            .scaling(scaling::Linear(4.0))
                                            .exact(false)
                                            .seq_len(99))),
               {"MultimodalRotary(", "12", "[1, 1, 2]", "rotary_dim=8", "base=", "interleaved=true",
                "interleaved_sections=false", "Linear", "exact=false", "seq_len=99"});
}

TEST(RotaryVariants, LengthOfACallIsTheLargestPositionOfAnyAxis) {
  torch::manual_seed(0);
  const auto x = numbers({1, 2, 7, 8});
  const auto dynamic = scaling::DynamicNTK(2.0, 4);
  MultimodalRotary module(MultimodalRotaryOptions(8, {1, 1, 2}).scaling(dynamic));
  const auto positions = torch::stack({torch::arange(7), torch::arange(7) * 5, torch::arange(7)});
  const auto at_length = [&](int64_t length) {
    return posenc::rotary(x, positions, scaling::frequencies(8, 10000.0, dynamic, length).inv_freq,
                          posenc::RotaryFuncOptions().axes(std::vector<int64_t>{0, 1, 2, 2}));
  };
  EXPECT_TRUE(torch::equal(module(x, at_positions(positions)), at_length(31)));
  EXPECT_TRUE(torch::equal(module(x, at_positions(positions).seq_len(64)), at_length(64)));
  MultimodalRotary fixed(MultimodalRotaryOptions(8, {1, 1, 2}).scaling(dynamic).seq_len(100));
  EXPECT_TRUE(torch::equal(fixed(x, at_positions(positions)), at_length(100)));
}

TEST(RotaryVariants, OptionsAndCallsAreChecked) {
  EXPECT_THROW(XPos(7), c10::ValueError);
  EXPECT_THROW(XPos(XPosOptions(8).scale_base(0.0)), c10::ValueError);
  EXPECT_THROW(XPos(XPosOptions(8).centre(std::nan(""))), c10::ValueError);
  EXPECT_THROW(AxialRotary(6), c10::ValueError);
  EXPECT_THROW(AxialRotary(AxialRotaryOptions(64).num_axes(3)), c10::ValueError);
  EXPECT_THROW(AxialRotary(AxialRotaryOptions(8).num_axes(0)), c10::ValueError);
  EXPECT_THROW(AxialRotary(AxialRotaryOptions(8).num_heads(4)), c10::ValueError);
  EXPECT_THROW(MultimodalRotary(MultimodalRotaryOptions(8, {1, 1, 1})), c10::ValueError);
  EXPECT_THROW(MultimodalRotary(MultimodalRotaryOptions(8, {-1, 2, 3})), c10::ValueError);
  EXPECT_THROW(MultimodalRotary(MultimodalRotaryOptions(8, {})), c10::ValueError);
  EXPECT_THROW(MultimodalRotary(MultimodalRotaryOptions(8, {1, 3, 0}).interleaved_sections(true)), c10::ValueError);

  const auto x = numbers({2, 4, 7, 8});
  EXPECT_THROW(AxialRotary(8)(x, at_positions(torch::arange(7))), c10::ValueError);
  EXPECT_THROW(AxialRotary(8)(x, at_positions(spans())), c10::ValueError);
  EXPECT_THROW(AxialRotary(8)(x, at_positions(grid()).offset(3)), c10::ValueError);
  EXPECT_THROW(AxialRotary(8)(x, at_positions(grid()).offsets(torch::tensor({1, 2}, torch::kLong))), c10::ValueError);
  XPos xpos(8);
  EXPECT_THROW(xpos->forward_qk(x, x.narrow(2, 0, 4)), c10::ValueError);
  EXPECT_THROW(xpos->forward_qk(x, x.narrow(0, 0, 1)), c10::ValueError);
  EXPECT_THROW(xpos(numbers({2, 4, 7, 16})), c10::ValueError);
  MultimodalRotary multimodal(8, std::vector<int64_t>{1, 1, 2});
  EXPECT_THROW(multimodal(x, at_positions(torch::arange(7))), c10::ValueError);
  EXPECT_THROW(multimodal(x, at_positions(grid())), c10::ValueError);
  EXPECT_THROW(multimodal(x, at_positions(spans()).offset(3)), c10::ValueError);
}

TEST(PermuteRotaryWeight, BothLayoutsGiveTheSameScores) {
  torch::manual_seed(0);
  const auto hidden = numbers({1, 5, 12}, torch::kDouble);
  const auto query = numbers({4 * 6, 12}, torch::kDouble), key = numbers({2 * 6, 12}, torch::kDouble);
  const auto scores = [&](const torch::Tensor& q, const torch::Tensor& k, bool interleaved) {
    Rotary rope(RotaryOptions(6).rotary_dim(4).interleaved(interleaved));
    const auto heads = [&](const torch::Tensor& weight) {
      return hidden.matmul(weight.t()).unflatten(2, {-1, 6}).transpose(1, 2);
    };
    const auto [turned_q, turned_k] = rope->forward_qk(heads(q), heads(k));
    return turned_q.matmul(turned_k.repeat_interleave(2, 1).transpose(2, 3));
  };
  const auto half = [](const torch::Tensor& w, int64_t n) { return posenc::permute_rotary_weight(w, n, "half", 4); };
  EXPECT_TRUE(torch::allclose(scores(half(query, 4), half(key, 2), false), scores(query, key, true), 1e-12, 1e-12));
  EXPECT_FALSE(torch::allclose(scores(query, key, false), scores(query, key, true), 1e-3, 1e-3));
  EXPECT_TRUE(torch::equal(posenc::permute_rotary_weight(half(query, 4), 4, "interleaved", 4), query));
  EXPECT_TRUE(
      torch::equal(posenc::permute_rotary_weight(torch::arange(8), 1), torch::tensor({0, 2, 4, 6, 1, 3, 5, 7})));
  EXPECT_THROW(posenc::permute_rotary_weight(query, 5), c10::ValueError);
  EXPECT_THROW(posenc::permute_rotary_weight(query, 4, "neox"), c10::ValueError);
  EXPECT_THROW(posenc::permute_rotary_weight(query, 4, "half", 3), c10::ValueError);
}

}  // namespace
