#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

namespace {

using posenc::nn::AbsoluteForwardOptions;
using posenc::nn::CAPE;
using posenc::nn::CAPEOptions;
using posenc::nn::LearnedAbsolute;
using posenc::nn::LearnedAbsoluteOptions;
using posenc::nn::LearnedAbsoluteResizeOptions;
using posenc::nn::Sinusoidal;
using posenc::nn::SinusoidalLayout;
using posenc::nn::SinusoidalOptions;

AbsoluteForwardOptions at_positions(const torch::Tensor& positions) {
  return AbsoluteForwardOptions().positions(positions);
}

/// What every module promises, of one whose calls draw nothing.
template <typename Module>
void expect_module_promises(Module module, Module other, int64_t dim) {
  torch::manual_seed(0);
  const auto x = torch::randn({2, 7, dim});
  const auto y = module->forward(x);
  EXPECT_EQ(y.sizes(), x.sizes());
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    EXPECT_EQ(module->forward(x.to(type)).scalar_type(), type);
  }

  // A clone is deep and equal.
  Module clone(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone()));
  clone->train(module->is_training());
  EXPECT_TRUE(torch::equal(clone->forward(x), y));
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : clone->parameters()) {
      parameter.zero_();
    }
  }
  EXPECT_TRUE(torch::equal(module->forward(x), y));
  EXPECT_EQ(torch::equal(clone->forward(x), x), !module->parameters().empty());

  // What one saves the other loads.
  std::stringstream stored;
  torch::save(module, stored);
  torch::load(other, stored);
  other->train(module->is_training());
  EXPECT_TRUE(torch::equal(other->forward(x), y));
  EXPECT_TRUE(module->buffers().empty());

  // In Sequential, and through a change of dtype and back.
  torch::nn::Sequential sequential(torch::nn::Linear(dim, dim), module, torch::nn::Dropout(0.0));
  sequential->at<typename Module::ContainedType>(1).train(module->is_training());
  const auto through = sequential->forward(x);
  EXPECT_TRUE(torch::equal(through, module->forward(sequential->at<torch::nn::LinearImpl>(0).forward(x))));
  module->to(torch::kDouble);
  module->to(torch::kFloat);
  EXPECT_TRUE(torch::equal(module->forward(x), y));
  module->to(torch::kHalf);
  EXPECT_EQ(module->forward(x.to(torch::kHalf)).scalar_type(), torch::kHalf);
}

CAPE evaluated(const CAPEOptions& options) {
  CAPE module(options);
  module->eval();
  return module;
}

TEST(AbsoluteModules, Promises) {
  for (const auto layout : {SinusoidalLayout::kInterleaved, SinusoidalLayout::kConcatenated,
                            SinusoidalLayout::kTensor2Tensor, SinusoidalLayout::kCosinesFirst}) {
    const auto options = SinusoidalOptions(7).layout(layout).base(500.0);
    expect_module_promises(Sinusoidal(options), Sinusoidal(options), 7);
  }
  torch::manual_seed(3);
  LearnedAbsolute learned(9, 4), other(9, 4);
  EXPECT_FALSE(torch::equal(learned->weight, other->weight));
  expect_module_promises(learned, other, 4);
  expect_module_promises(evaluated(CAPEOptions(6)), evaluated(CAPEOptions(6)), 6);
  const auto unmoved = CAPEOptions(5).max_global_shift(0.0).max_local_shift(0.0).max_global_scaling(1.0).centre(true);
  expect_module_promises(CAPE(unmoved), CAPE(unmoved), 5);
}

TEST(AbsoluteModules, PrettyPrintShowsEveryOption) {
  EXPECT_EQ(printed(Sinusoidal(SinusoidalOptions(8).base(500.0).layout(SinusoidalLayout::kTensor2Tensor))),
            "posenc::nn::Sinusoidal(dim=8, base=500, layout=tensor2tensor, num_axes=1)");
  EXPECT_EQ(printed(Sinusoidal(SinusoidalOptions(8).num_axes(2).layout(SinusoidalLayout::kCosinesFirst))),
            "posenc::nn::Sinusoidal(dim=8, base=10000, layout=cosines_first, num_axes=2)");
  EXPECT_EQ(printed(LearnedAbsolute(16, 8)), "posenc::nn::LearnedAbsolute(max_positions=16, dim=8)");
  EXPECT_EQ(printed(CAPE(CAPEOptions(8).max_global_shift(2.0).centre(true))),
            "posenc::nn::CAPE(dim=8, max_global_shift=2, max_local_shift=0.5, max_global_scaling=1.03, base=10000, "
            "centre=true)");
}

TEST(AbsoluteModules, PlacesOfTokens) {
  torch::manual_seed(0);
  const auto x = torch::randn({2, 5, 6});
  const auto counted = torch::arange(5, torch::kLong), rows = torch::tensor({1, 9}, torch::kLong);
  const auto expect_places = [&](auto module) {
    const auto y = module->forward(x, at_positions(counted + 3));
    EXPECT_TRUE(torch::equal(module->forward(x, AbsoluteForwardOptions().offset(3)), y));
    EXPECT_TRUE(torch::equal(module->forward(x[0], AbsoluteForwardOptions().offset(3)), y[0]));
    EXPECT_TRUE(torch::equal(module->forward(x, AbsoluteForwardOptions().offsets(rows)),
                             module->forward(x, at_positions(counted + rows.unsqueeze(1)))));
    EXPECT_THROW(module->forward(torch::randn({2, 5, 7})), c10::ValueError);
    EXPECT_THROW(module->forward(x, at_positions(counted).offset(1)), c10::ValueError);
    EXPECT_THROW(module->forward(x, at_positions(counted > 1)), c10::TypeError);
  };
  expect_places(Sinusoidal(6));
  expect_places(LearnedAbsolute(20, 6));
  expect_places(evaluated(CAPEOptions(6)));
}

TEST(SinusoidalValues, OddWidthsLackTheLastCosine) {
  const auto one = torch::zeros({1, 5});
  const auto y = Sinusoidal(5)->forward(one, AbsoluteForwardOptions().offset(1));
  EXPECT_TRUE(torch::allclose(y, torch::tensor({{0.8414710, 0.5403023, 0.0251162, 0.9996845, 0.0006310}}), 0, 1e-6));
  const auto narrow = Sinusoidal(1)->forward(torch::zeros({4, 1}, torch::kDouble));
  for (int64_t p = 0; p < 4; ++p) {
    EXPECT_NEAR(narrow[p].item<double>(), std::sin(static_cast<double>(p)), 1e-15);
  }
}

TEST(SinusoidalValues, Layouts) {
  const auto zeros = torch::zeros({3, 8});
  const auto paper = Sinusoidal(8)->forward(zeros);
  const auto sorted = Sinusoidal(SinusoidalOptions(8).layout(SinusoidalLayout::kConcatenated))->forward(zeros);
  EXPECT_TRUE(torch::equal(sorted, torch::cat({paper.slice(1, 0, 8, 2), paper.slice(1, 1, 8, 2)}, 1)));
  const Sinusoidal other(SinusoidalOptions(9).layout(SinusoidalLayout::kTensor2Tensor));
  EXPECT_NEAR(other->inv_freq()[3].item<double>(), 1e-4, 1e-18);
  EXPECT_TRUE(torch::equal(Sinusoidal(other)->forward(torch::zeros({3, 9})).select(1, 8), torch::zeros({3})));
}

TEST(SinusoidalValues, CosinesFirstIsTheOrderOfTimeSteps) {
  Sinusoidal module(SinusoidalOptions(5).layout(SinusoidalLayout::kCosinesFirst));
  const auto y = module->forward(torch::zeros({1, 5}, torch::kDouble), at_positions(torch::tensor({7.5})));
  const double slow = 7.5 * std::pow(10000.0, -0.5);
  const auto expected =
      torch::tensor({std::cos(7.5), std::cos(slow), std::sin(7.5), std::sin(slow), 0.0}, torch::kDouble);
  EXPECT_TRUE(torch::allclose(y[0], expected, 0, 1e-12));
}

TEST(SinusoidalAxes, EachHasColumnsOfItsOwn) {
  torch::manual_seed(0);
  const auto options = SinusoidalOptions(12).num_axes(2).layout(SinusoidalLayout::kConcatenated);
  Sinusoidal module(options), one(SinusoidalOptions(6).layout(SinusoidalLayout::kConcatenated));
  EXPECT_EQ(module->position_axes(), 2);
  EXPECT_EQ(one->position_axes(), std::nullopt);
  EXPECT_TRUE(torch::equal(module->inv_freq(), one->inv_freq()));
  const auto x = torch::randn({2, 3, 12});
  const auto by_row = torch::randint(-5, 50, {2, 2, 3}), shared = by_row.select(1, 0);
  const auto expected = [&](const torch::Tensor& positions) {
    return torch::cat({one->forward(x.narrow(2, 0, 6), at_positions(positions[0])),
                       one->forward(x.narrow(2, 6, 6), at_positions(positions[1]))},
                      2);
  };
  EXPECT_TRUE(torch::equal(module->forward(x, at_positions(by_row)), expected(by_row)));
  EXPECT_TRUE(torch::equal(module->forward(x, at_positions(shared)), expected(shared)));
  EXPECT_TRUE(torch::equal(module->forward(x[0], at_positions(shared)), expected(shared)[0]));
}

TEST(SinusoidalAxes, PositionsMustBeGivenAndFit) {
  Sinusoidal module(SinusoidalOptions(8).num_axes(2));
  const auto x = torch::zeros({3, 5, 8});
  expect_error([&] { module->forward(x); }, "with 2 axes, which have no default");
  expect_error([&] { module->forward(x, at_positions(torch::zeros({3, 5}))); }, "with 2 axes, but got [3, 5]");
  expect_error([&] { module->forward(x, at_positions(torch::zeros({2, 4}))); }, "with length 5, but got [2, 4]");
  expect_error([&] { module->forward(x, at_positions(torch::zeros({2, 2, 5}))); }, "with batch 1 or 3, but got");
  expect_error([] { Sinusoidal(SinusoidalOptions(10).num_axes(2)); },
               "Sinusoidal: expected dim to be a multiple of 2 * num_axes = 4, but got 10");
  expect_error([] { Sinusoidal(SinusoidalOptions(8).num_axes(0)); }, "expected num_axes to be at least 1, but got 0");
}

TEST(SinusoidalAxes, AttentionHandsThemPositionsOfSeveralAxes) {
  torch::manual_seed(0);
  Sinusoidal encoding(SinusoidalOptions(16).num_axes(2));
  posenc::nn::Attention block(posenc::nn::AttentionOptions(16, 2).is_causal(false).with(encoding));
  const auto x = torch::randn({2, 5, 16}), positions = torch::randint(0, 9, {2, 2, 5});
  const auto call = [](const torch::Tensor& p) { return posenc::nn::AttentionForwardOptions().positions(p); };
  const auto y = block->forward(x, call(positions));
  EXPECT_FALSE(torch::allclose(y, block->forward(x, call(positions.flip(0)))));
  posenc::nn::Attention plain(posenc::nn::AttentionOptions(16, 2).is_causal(false));
  {
    const torch::NoGradGuard no_grad;
    const auto theirs = block->parameters();
    auto mine = plain->parameters();
    for (size_t i = 0; i < mine.size(); ++i) {
      mine[i].copy_(theirs[i]);
    }
  }
  EXPECT_TRUE(torch::equal(plain->forward(encoding->forward(x, at_positions(positions))), y));
  expect_error([&] { block->forward(x); }, "expected positions of shape (2, batch, length) for its absolute encoding");
  expect_error([&] { block->forward(x, call(torch::arange(5))); }, "for its absolute encoding, but got [5]");
}

using Grid = LearnedAbsoluteResizeOptions::Grid;

/// Rows of an image, interpolated by torch.
torch::Tensor interpolated(const torch::Tensor& rows, Grid from, Grid to, bool cubic) {
  namespace F = torch::nn::functional;
  auto options = F::InterpolateFuncOptions().size(std::vector<int64_t>{to[0], to[1]}).align_corners(false);
  if (cubic) {
    options.mode(torch::kBicubic);
  } else {
    options.mode(torch::kBilinear);
  }
  const auto image = rows.t().reshape({1, rows.size(1), from[0], from[1]});
  return F::interpolate(image, options)[0].flatten(1).t();
}

TEST(LearnedAbsoluteResize, GridsAreImagesBehindThePrefix) {
  torch::manual_seed(0);
  LearnedAbsolute module(1 + 16, 3);
  const auto prefix = LearnedAbsoluteResizeOptions().prefix(1);
  const auto rows = module->weight.detach().narrow(0, 1, 16);
  auto resized = module->resize({5, 2}, prefix);
  EXPECT_EQ(resized->options.max_positions(), 11);
  EXPECT_TRUE(torch::equal(resized->weight[0], module->weight[0]));
  EXPECT_TRUE(torch::allclose(resized->weight.narrow(0, 1, 10), interpolated(rows, {4, 4}, {5, 2}, true), 0, 1e-6));
  auto given = prefix;
  const auto linear = module->resize({3, 3}, given.grid(Grid{2, 8}).mode("bilinear"));
  EXPECT_TRUE(torch::allclose(linear->weight.narrow(0, 1, 9), interpolated(rows, {2, 8}, {3, 3}, false), 0, 1e-6));
  EXPECT_TRUE(torch::equal(module->resize({4, 4}, prefix)->weight, module->weight));

  // The new module is one like any other: its parameter is registered, learns and leaves the old one alone.
  resized->forward(torch::ones({11, 3})).square().sum().backward();
  EXPECT_TRUE((resized->weight.grad() != 0).all().item<bool>());
  EXPECT_FALSE(module->weight.grad().defined());
  EXPECT_TRUE(resized->parameters()[0].is_same(resized->weight));
  EXPECT_EQ(resized->parameters()[0].size(0), 11);
}

TEST(LearnedAbsoluteResize, ANumberOfPositionsIsALine) {
  torch::manual_seed(0);
  LearnedAbsolute module(2 + 6, 3);
  module->to(torch::kDouble);
  module->eval();
  module->weight.set_requires_grad(false);
  const auto resized = module->resize(20, LearnedAbsoluteResizeOptions().prefix(2));
  namespace F = torch::nn::functional;
  const auto line = module->weight.narrow(0, 2, 6).t().unsqueeze(0);
  const auto options =
      F::InterpolateFuncOptions().size(std::vector<int64_t>{18}).mode(torch::kLinear).align_corners(false);
  const auto expected = torch::cat({module->weight.narrow(0, 0, 2), F::interpolate(line, options)[0].t()});
  EXPECT_TRUE(torch::allclose(resized->weight, expected, 0, 1e-12));
  EXPECT_EQ(resized->weight.scalar_type(), torch::kDouble);
  EXPECT_FALSE(resized->weight.requires_grad());
  EXPECT_FALSE(resized->is_training());
}

TEST(LearnedAbsoluteResize, WhatHasNoMeaningIsRefusedByName) {
  LearnedAbsolute module(10, 3);
  const auto how = [] { return LearnedAbsoluteResizeOptions(); };
  expect_error([&] { module->resize({3, 3}); }, "LearnedAbsolute.resize: expected grid=(rows, columns), as the 10");
  expect_error([&] { module->resize({3, 3}, how().grid(Grid{3, 3})); }, "expected grid to be the (rows, columns)");
  expect_error([&] { module->resize({3, 3}, how().prefix(10)); }, "expected prefix from 0 to 9");
  expect_error([&] { module->resize(20, how().mode("bicubic")); }, "expected mode to be 'linear'");
  expect_error([&] { module->resize(20, how().antialias(true)); }, "expected antialias only with a new grid");
  expect_error([&] { module->resize({3, 0}, how().prefix(1)); }, "at least 1 row and 1 column, but got [3, 0]");
}

TEST(LearnedAbsoluteBounds, APositionOutsideNamesTheLimit) {
  LearnedAbsolute module(8, 4);
  const auto x = torch::ones({1, 8, 4});
  const auto expect_refused = [&](const torch::Tensor& input, const AbsoluteForwardOptions& call) {
    try {
      module->forward(input, call);
      ADD_FAILURE() << "no exception";
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("from 0 to 7, as max_positions is 8"), std::string::npos);
    }
    EXPECT_TRUE(torch::equal(module->forward(x), x + module->weight)) << "the next valid call works";
  };
  const auto two = torch::ones({1, 2, 4});
  expect_refused(torch::ones({1, 9, 4}), {});
  expect_refused(two, AbsoluteForwardOptions().offset(7));
  expect_refused(two, AbsoluteForwardOptions().offset(-1));
  expect_refused(two, AbsoluteForwardOptions().offsets(torch::tensor({7}, torch::kLong)));
  expect_refused(two, at_positions(torch::tensor({8, 0}, torch::kLong)));
  expect_refused(two, at_positions(torch::tensor({3, -1}, torch::kLong)));
}

TEST(LearnedAbsoluteTraining, UnusedRowsStayAndUsedOnesLearn) {
  torch::manual_seed(0);
  LearnedAbsolute module(8, 4);
  const auto before = module->weight.detach().clone();
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  module->forward(torch::ones({2, 2, 4}), at_positions(torch::tensor({7, 2}, torch::kLong))).sum().backward();
  optimizer.step();
  const auto changed = (module->weight != before).any(1);
  EXPECT_TRUE(torch::equal(changed.nonzero().flatten(), torch::tensor({2, 7}, torch::kLong)));
  module->reset_parameters();
  EXPECT_TRUE(module->weight.requires_grad());
  EXPECT_FALSE(torch::equal(module->weight.detach(), before));
}

TEST(CAPETraining, DrawsFromTheSeedAndAnewOnEveryCall) {
  CAPE module(CAPEOptions(6));
  const auto x = torch::randn({2, 5, 6});
  torch::manual_seed(7);
  const auto first = module->forward(x), second = module->forward(x);
  EXPECT_FALSE(torch::equal(first, second));
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(module->forward(x), first));
  module->eval();
  EXPECT_TRUE(torch::equal(module->forward(x), Sinusoidal(6)->forward(x)));
}

TEST(CAPETraining, AShiftMovesASequenceAsAWhole) {
  torch::manual_seed(0);
  CAPE module(CAPEOptions(2).max_global_shift(1.0).max_local_shift(0.0).max_global_scaling(1.0));
  const auto y = module->forward(torch::zeros({50, 3, 2}, torch::kDouble));
  const auto seen = torch::atan2(y.select(2, 0), y.select(2, 1)), shift = seen.select(1, 0);
  EXPECT_LE(shift.abs().max().item<double>(), 1.0);
  EXPECT_GT(shift.std().item<double>(), 0.3);
  EXPECT_TRUE(torch::allclose(seen.select(1, 2) - shift, torch::full({50}, 2.0, torch::kDouble)));
}

TEST(AbsoluteErrors, OptionsAreChecked) {
  EXPECT_THROW(Sinusoidal(0), c10::ValueError);
  EXPECT_THROW(Sinusoidal(SinusoidalOptions(1).layout(SinusoidalLayout::kTensor2Tensor)), c10::ValueError);
  EXPECT_THROW(Sinusoidal(SinusoidalOptions(4).base(-1.0)), c10::ValueError);
  EXPECT_THROW(LearnedAbsolute(0, 4), c10::ValueError);
  EXPECT_THROW(LearnedAbsolute(LearnedAbsoluteOptions(4, 0)), c10::ValueError);
  EXPECT_THROW(CAPE(CAPEOptions(4).max_local_shift(-0.5)), c10::ValueError);
  EXPECT_THROW(CAPE(CAPEOptions(4).max_global_scaling(0.5)), c10::ValueError);
  EXPECT_THROW(CAPE(CAPEOptions(4).centre(true))->forward(torch::zeros({2, 4}), AbsoluteForwardOptions().offset(1)),
               c10::ValueError);
}

}  // namespace
