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
  for (const auto layout :
       {SinusoidalLayout::kInterleaved, SinusoidalLayout::kConcatenated, SinusoidalLayout::kTensor2Tensor}) {
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
            "posenc::nn::Sinusoidal(dim=8, base=500, layout=tensor2tensor)");
  EXPECT_EQ(printed(Sinusoidal(8)), "posenc::nn::Sinusoidal(dim=8, base=10000, layout=interleaved)");
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
