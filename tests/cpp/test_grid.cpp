/// Score encodings on two axes in C++: values against formulas, pair of tokens by pair, modules, and what they refuse.

#include "module_values.h"
#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

using namespace posenc::nn;

namespace {

constexpr int64_t kHeads = 4, kGroups = 2, kWidth = 8;

struct Operands {
  torch::Tensor q, k, v;
};

Operands operands(int64_t tokens) {
  return {torch::randn({2, kHeads, tokens, kWidth}, kWide), torch::randn({2, kGroups, tokens, kWidth}, kWide),
          torch::randn({2, kGroups, tokens, kWidth}, kWide)};
}

/// added(b, h, i, j) for all pairs, (B, H, T, T).
template <typename Added>
torch::Tensor for_all_pairs(int64_t tokens, const Added& added) {
  std::vector<torch::Tensor> all;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = 0; j < tokens; ++j) {
          all.push_back(added(b, h, i, j));
        }
      }
    }
  }
  return torch::stack(all).view({2, kHeads, tokens, tokens});
}

/// Expects attend, logits and gradients to be those of scores with `added`, which depends on q and the parameters.
template <typename Module, typename Added>
void expect_values(Module module, int64_t tokens, const Added& added) {
  auto [q, k, v] = operands(tokens);
  std::vector<torch::Tensor> leaves{q.requires_grad_(), k.requires_grad_(), v.requires_grad_()};
  for (const auto& parameter : module->parameters()) {
    leaves.push_back(parameter);
  }
  const auto repeat = [](const torch::Tensor& x) { return x.repeat_interleave(kHeads / kGroups, 1); };
  const auto product = torch::matmul(q, repeat(k).transpose(2, 3)) / std::sqrt(static_cast<double>(kWidth));
  const auto scores = product + for_all_pairs(tokens, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
                        return added(q.select(0, b).select(0, h).select(0, i), h, i, j);
                      });
  const auto expected = torch::matmul(scores.softmax(-1), repeat(v)), out = module->attend(q, k, v);
  expect_near(out, expected, 1e-12);
  expect_near(module->logits(q, k), scores, 1e-12);
  const auto grad = torch::randn_like(out);
  const auto computed = torch::autograd::grad({out}, leaves, {grad});
  const auto wanted = torch::autograd::grad({expected}, leaves, {grad});
  for (size_t i = 0; i < leaves.size(); ++i) {
    expect_near(computed[i], wanted[i], 1e-11);
  }
}

TEST(DecomposedRelative, EqualsTheFormula) {
  torch::manual_seed(0);
  auto module = prepared(DecomposedRelative(kWidth, std::vector<int64_t>{3, 5}));
  expect_values(module, 15, [&](const torch::Tensor& query, int64_t, int64_t i, int64_t j) {
    return query.dot(module->rel_y[2 + i / 5 - j / 5] + module->rel_x[4 + i % 5 - j % 5]);
  });
}

TEST(GridRelativeBias, EqualsTheFormula) {
  torch::manual_seed(1);
  auto module = prepared(GridRelativeBias(kHeads, std::vector<int64_t>{3, 5}));
  expect_values(module, 15, [&](const torch::Tensor&, int64_t h, int64_t i, int64_t j) {
    return module->table[(2 + i / 5 - j / 5) * 9 + 4 + i % 5 - j % 5][h];
  });
}

TEST(GridRelativeBias, TheClassTokenHasEntriesOfItsOwn) {
  torch::manual_seed(2);
  auto module = prepared(GridRelativeBias(GridRelativeBiasOptions(kHeads, {2, 4}).class_token(true)));
  ASSERT_EQ(module->table.sizes(), torch::IntArrayRef({21 + 3, kHeads}));
  expect_values(module, 9, [&](const torch::Tensor&, int64_t h, int64_t i, int64_t j) {
    const int64_t y = (i - 1) / 4 - (j - 1) / 4, x = (i - 1) % 4 - (j - 1) % 4;
    const int64_t row = i == 0 && j == 0 ? 23 : i == 0 ? 21 : j == 0 ? 22 : (y + 1) * 7 + x + 3;
    return module->table[row][h];
  });
}

TEST(GridRelativeBias, OfAnMlpEqualsTheFormula) {
  torch::manual_seed(3);
  auto module = prepared(GridRelativeBias(GridRelativeBiasOptions(kHeads, {3, 4}).kind(GridBiasKind::kContinuous)));
  const auto parameters = module->named_parameters();
  const auto u = [](int64_t d, double window) {
    const double sign = d > 0 ? 1.0 : d < 0 ? -1.0 : 0.0;
    return sign * std::log2(1.0 + 8.0 * std::abs(static_cast<double>(d)) / (window - 1.0)) / 3.0;
  };
  expect_values(module, 12, [&](const torch::Tensor&, int64_t h, int64_t i, int64_t j) {
    const auto place = torch::tensor({u(i / 4 - j / 4, 3.0), u(i % 4 - j % 4, 4.0)}, kWide);
    const auto hidden = torch::relu(parameters["mlp.0.weight"].matmul(place) + parameters["mlp.0.bias"]);
    return 16.0 * torch::sigmoid(parameters["mlp.2.weight"][h].dot(hidden));
  });
}

template <typename Module>
void expect_promises(Module module, Module other, int64_t tokens) {
  module = prepared(module);
  const auto [q, k, v] = operands(tokens);
  const auto out = module->attend(q, k, v);
  Module clone(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone()));
  {
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(clone->attend(q, k, v), out));
    for (auto& parameter : clone->parameters()) {
      parameter.add_(1.0 + parameter.square());
    }
    EXPECT_FALSE(torch::equal(clone->attend(q, k, v), out));
    EXPECT_TRUE(torch::equal(module->attend(q, k, v), out));
  }
  std::stringstream stored;
  torch::save(module, stored);
  other->to(torch::kDouble);
  torch::load(other, stored);
  EXPECT_TRUE(torch::equal(other->attend(q, k, v), out));
  EXPECT_TRUE(module->buffers().empty());
  // The last queries alone, and coordinates that are given.
  expect_near(module->attend(q.slice(2, tokens - 2), k, v), out.slice(2, tokens - 2), 1e-12);
  EXPECT_THROW(module->attend(q, k.slice(2, 1), v.slice(2, 1)), c10::ValueError);
  EXPECT_THROW(module->attend(q, k, v, AttendOptions().gate_key(k)), c10::ValueError);
  EXPECT_THROW(module->logits(q, k, AttendOptions().dropout_p(0.1)), c10::ValueError);
  module->to(torch::kHalf);
  EXPECT_EQ(module->attend(q.to(torch::kHalf), k.to(torch::kHalf), v.to(torch::kHalf)).scalar_type(), torch::kHalf);
}

TEST(GridModules, Promises) {
  torch::manual_seed(4);
  const std::vector<int64_t> window{2, 3};
  const auto table = GridRelativeBiasOptions(kHeads, window);
  const auto beit = GridRelativeBiasOptions(kHeads, window).class_token(true);
  const auto mlp = GridRelativeBiasOptions(kHeads, window).kind(GridBiasKind::kContinuous);
  expect_promises(GridRelativeBias(table), GridRelativeBias(table), 6);
  expect_promises(GridRelativeBias(beit), GridRelativeBias(beit), 7);
  expect_promises(GridRelativeBias(mlp), GridRelativeBias(mlp), 6);
  const auto decomposed = DecomposedRelativeOptions(kWidth, window);
  expect_promises(DecomposedRelative(decomposed), DecomposedRelative(decomposed), 6);
}

TEST(GridModules, CoordinatesMayBeGiven) {
  torch::manual_seed(5);
  const auto [q, k, v] = operands(6);
  const auto places = torch::tensor({{7, 7, 7, 8, 8, 8}, {1, 2, 3, 1, 2, 3}}, torch::kLong);
  const auto call = AttendOptions().q_positions(places).k_positions(places);
  auto bias = prepared(GridRelativeBias(kHeads, std::vector<int64_t>{2, 3}));
  expect_near(bias->attend(q, k, v, call), bias->attend(q, k, v), 1e-12);
  auto decomposed = prepared(DecomposedRelative(kWidth, std::vector<int64_t>{2, 3}));
  expect_near(decomposed->attend(q, k, v, call), decomposed->attend(q, k, v), 1e-12);
}

TEST(GridModules, InitialParameters) {
  torch::manual_seed(6);
  const GridRelativeBias bias(16, std::vector<int64_t>{12, 12});
  EXPECT_NEAR(bias->table.std().item<double>(), GridRelativeBiasImpl::kInitialStd, 1e-3);
  const DecomposedRelative decomposed(kWidth, std::vector<int64_t>{2, 3});
  EXPECT_TRUE(decomposed->rel_y.eq(0).all().item<bool>());
  EXPECT_EQ(decomposed->rel_y.sizes(), torch::IntArrayRef({3, kWidth}));
  EXPECT_EQ(decomposed->rel_x.sizes(), torch::IntArrayRef({5, kWidth}));
  GridRelativeBias again(16, std::vector<int64_t>{12, 12});
  const auto before = again->table.clone();
  again->reset_parameters();
  EXPECT_FALSE(torch::equal(again->table, before));
}

TEST(GridModules, PrettyPrintShowsEveryOption) {
  EXPECT_EQ(printed(DecomposedRelative(8, std::vector<int64_t>{2, 3})),
            "posenc::nn::DecomposedRelative(head_dim=8, size=[2, 3])");
  EXPECT_EQ(printed(GridRelativeBias(GridRelativeBiasOptions(4, {7, 7}).class_token(true))),
            "posenc::nn::GridRelativeBias(num_heads=4, window=[7, 7], kind=table, class_token=true)");
}

TEST(GridModules, WrongOptionsAndCallsNameTheModule) {
  const auto of_window = [](std::vector<int64_t> window) { return GridRelativeBiasOptions(4, std::move(window)); };
  expect_error([&] { GridRelativeBias(of_window({2})); },
               "GridRelativeBias: expected window to be (h, w), both at least");
  expect_error([&] { GridRelativeBias(of_window({0, 2})); }, "GridRelativeBias: expected window to be (h, w)");
  expect_error([&] { GridRelativeBias(of_window({2, 2}).kind(GridBiasKind::kContinuous).class_token(true)); },
               "GridRelativeBias: expected class_token with kind 'table' alone");
  expect_error([] { DecomposedRelative(0, std::vector<int64_t>{2, 2}); },
               "DecomposedRelative: expected head_dim to be at least 1, but got 0");
  expect_error([] { DecomposedRelative(8, std::vector<int64_t>{2, 2, 2}); }, "DecomposedRelative: expected size to be");
  const auto [q, k, v] = operands(6);
  const auto places = torch::zeros({2, 6}, torch::kLong);
  expect_error([&] { GridRelativeBias(of_window({2, 2}))->attend(q, k, v); },
               "GridRelativeBias: expected 4 keys, those of a grid of 2 x 2, or k_positions, their coordinates");
  expect_error(
      [&] {
        GridRelativeBias(of_window({1, 5}).class_token(true))->attend(q, k, v, AttendOptions().k_positions(places));
      },
      "GridRelativeBias: expected no q_positions or k_positions with class_token");
  expect_error([&] { GridRelativeBias(3, std::vector<int64_t>{2, 3})->attend(q, k, v); }, "with 3 heads");
  expect_error([&] { DecomposedRelative(7, std::vector<int64_t>{2, 3})->attend(q, k, v); }, "head_dim 7");
}

}  // namespace
