/// Encodings that rotate, against formulas written out in float64: scores as a function of the distance (ReRoPE,
/// Self-Extend, xPos), rotary modules on one and several axes. Runs at each instruction-set level.

#include "module_values.h"
#include "rotary_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace posenc::nn;
using at::Tensor;
using reference::at;
using reference::Call;

/// q . k where the angle between pair k of both is `angle(k)`, and what a gradient g of it adds to theirs.
struct RotatedProduct {
  int64_t pairs;
  bool interleaved;
  std::function<double(int64_t k)> angle;
  std::function<double(int64_t k)> factor = [](int64_t) { return 1.0; };

  std::pair<int64_t, int64_t> columns(int64_t k) const {
    return interleaved ? std::pair(2 * k, 2 * k + 1) : std::pair(k, k + pairs);
  }
  double value(const double* q, const double* k) const {
    double sum = 0;
    for (int64_t p = 0; p < pairs; ++p) {
      const auto [a, b] = columns(p);
      sum += factor(p) *
             ((q[a] * k[a] + q[b] * k[b]) * std::cos(angle(p)) - (q[b] * k[a] - q[a] * k[b]) * std::sin(angle(p)));
    }
    return sum;
  }
  void add_gradients(const double* q, const double* k, double g, double* to_q, double* to_k) const {
    for (int64_t p = 0; p < pairs; ++p) {
      const auto [a, b] = columns(p);
      const double c = g * factor(p) * std::cos(angle(p)), s = g * factor(p) * std::sin(angle(p));
      to_q[a] += k[a] * c + k[b] * s;
      to_q[b] += k[b] * c - k[a] * s;
      to_k[a] += q[a] * c - q[b] * s;
      to_k[b] += q[b] * c + q[a] * s;
    }
  }
};

/// An encoding that rotates by a function of query position i and key position j, and multiplies queries by another.
struct DistanceFormula {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<double(int64_t i, int64_t j)> distance;
  double base = 10000.0;
  bool interleaved = false;
  std::function<double(int64_t i)> query_factor = [](int64_t) { return 1.0; };
};

std::ostream& operator<<(std::ostream& stream, const DistanceFormula& f) { return stream << f.name; }

constexpr int64_t kWidth = 8;

std::vector<DistanceFormula> distance_formulas() {
  const auto plain = [](int64_t w) {
    return [w](int64_t i, int64_t j) { return static_cast<double>(std::min(i - j, w)); };
  };
  const auto leaky = [](int64_t w, double leak) {
    return [w, leak](int64_t i, int64_t j) {
      const auto n = static_cast<double>(i - j), limit = static_cast<double>(w);
      return n < limit ? n : limit + (n - limit) / leak;
    };
  };
  const auto grouped = [](int64_t g, int64_t w) {
    return [g, w](int64_t i, int64_t j) {
      return i - j < w ? static_cast<double>(i - j)
                       : static_cast<double>(i / g + w - j / g) - static_cast<double>(w) / static_cast<double>(g);
    };
  };
  return {
      {"ReRoPE", [] { return ReRoPE(kWidth, 40).ptr(); }, plain(40)},
      {"ReRoPEBeyondATile", [] { return ReRoPE(ReRoPEOptions(kWidth, 120).base(500.0)).ptr(); }, plain(120), 500.0},
      {"ReRoPELogScaled", [] { return ReRoPE(ReRoPEOptions(kWidth, 70).log_scale_length(200)).ptr(); }, plain(70),
       10000.0, false, [](int64_t i) { return std::max(1.0, std::log(static_cast<double>(i + 1)) / std::log(200.0)); }},
      {"Leaky", [] { return ReRoPE(ReRoPEOptions(kWidth, 50).leak(16.0)).ptr(); }, leaky(50, 16.0)},
      {"LeakyInterleaved",
       [] { return ReRoPE(ReRoPEOptions(kWidth, 30).leak(2.5).interleaved(true).base(300.0)).ptr(); }, leaky(30, 2.5),
       300.0, true},
      {"SelfExtend", [] { return SelfExtend(SelfExtendOptions(kWidth).group(4).window(60)).ptr(); }, grouped(4, 60)},
      {"SelfExtendFractionalShift",
       [] { return SelfExtend(SelfExtendOptions(kWidth).group(8).window(45).interleaved(true).base(700.0)).ptr(); },
       grouped(8, 45), 700.0, true},
  };
}

class DistanceValues : public testing::TestWithParam<DistanceFormula> {};

TEST_P(DistanceValues, EqualTheFormula) {
  const DistanceFormula formula = GetParam();
  at::manual_seed(2);
  const auto module = formula.make();
  auto& encoding = dynamic_cast<ScoreEncoding&>(*module);
  const Tensor theta = reference::inv_freq(kWidth, formula.base);
  for (const int64_t queries : {2, 110}) {
    SCOPED_TRACE(queries);
    constexpr int64_t kKeys = 260;
    Call call;
    call.inputs.q = at::randn({1, 4, queries, kWidth}, kWide).set_requires_grad(true);
    call.inputs.k = at::randn({1, 2, kKeys, kWidth}, kWide).set_requires_grad(true);
    call.inputs.v = at::randn({1, 2, kKeys, 5}, kWide);
    call.inputs.bias = at::zeros({1, 4, queries, kKeys}, kWide);
    call.is_causal = true;
    call.scale = 0.0;  // the scores are the bias
    const double scale = 1.0 / std::sqrt(static_cast<double>(kWidth));
    const auto for_each = [&](const auto& body) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t row = 0; row < queries; ++row) {
          for (int64_t j = 0; j <= kKeys - queries + row; ++j) {
            const int64_t i = kKeys - queries + row;
            const RotatedProduct product{kWidth / 2, formula.interleaved,
                                         [&](int64_t k) { return formula.distance(i, j) * *at(theta, {k}); }};
            body(product, h, row, j, scale * formula.query_factor(i));
          }
        }
      }
    };
    const Tensor q = call.inputs.q.detach(), k = call.inputs.k.detach();
    for_each([&](const auto& product, int64_t h, int64_t row, int64_t j, double factor) {
      *at(call.inputs.bias, {0, h, row, j}) = factor * product.value(at(q, {0, h, row, 0}), at(k, {0, h / 2, j, 0}));
    });
    const auto [out, lse] = encoding.attend_with_lse(call.inputs.q, call.inputs.k, call.inputs.v);
    const auto expected = reference::attention(call);
    expect_near(out, expected.out, 1e-11);
    expect_near(lse, expected.lse, 1e-11);
    expect_near(encoding.logits(q, k), reference::logits(call), 1e-11);
    const auto as_float = [](const Tensor& x) { return x.detach().to(at::kFloat); };
    expect_near(encoding.attend(as_float(q), as_float(k), as_float(call.inputs.v)), expected.out, 1e-5);

    const Tensor grad = at::randn_like(out), of_q = at::zeros_like(q), of_k = at::zeros_like(k);
    const auto of_inputs = reference::gradients(call, grad, at::zeros_like(lse));
    for_each([&](const auto& product, int64_t h, int64_t row, int64_t j, double factor) {
      product.add_gradients(at(q, {0, h, row, 0}), at(k, {0, h / 2, j, 0}),
                            factor * *at(of_inputs.bias, {0, h, row, j}), at(of_q, {0, h, row, 0}),
                            at(of_k, {0, h / 2, j, 0}));
    });
    const auto computed = torch::autograd::grad({out}, {call.inputs.q, call.inputs.k}, {grad});
    expect_near(computed[0], of_q, 1e-10);
    expect_near(computed[1], of_k, 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(, DistanceValues, testing::ValuesIn(distance_formulas()),
                         [](const auto& info) { return info.param.name; });

/// cos(distance * theta) of a query's score, from vectors with 1 in the first element of a pair and 0 elsewhere.
double cosine_of_distance(ScoreEncoding& encoding, int64_t width, int64_t pair, int64_t i, int64_t j) {
  const Tensor x = at::zeros({1, 1, i + 1, width}, kWide);
  x.select(3, pair).fill_(1.0);
  return encoding.logits(x, x, causal().scale(1.0))[0][0][i][j].item<double>();
}

TEST(DistanceNumbers, SelfExtend) {
  SelfExtend module(SelfExtendOptions(2).group(4).window(8));
  const std::vector<std::pair<int64_t, double>> distances = {{19, 1}, {13, 7}, {12, 8}, {11, 9}, {9, 9}, {0, 11}};
  for (const auto& [j, n] : distances) {
    EXPECT_NEAR(cosine_of_distance(*module, 2, 0, 20, j), std::cos(n), 1e-12) << j;
  }
}

TEST(DistanceNumbers, ReRoPE) {
  ReRoPE leaky(ReRoPEOptions(4, 512).leak(16.0));
  EXPECT_NEAR(cosine_of_distance(*leaky, 4, 1, 1000, 0), std::cos(5.425), 1e-11);
  ReRoPE plain(4, 512);
  EXPECT_NEAR(cosine_of_distance(*plain, 4, 1, 1000, 0), std::cos(5.12), 1e-11);
  EXPECT_NEAR(cosine_of_distance(*plain, 4, 1, 1000, 489), std::cos(5.11), 1e-11);
}

TEST(DistancePositions, TakeThePlaceOfIndices) {
  at::manual_seed(3);
  const Tensor positions = at::arange(120) * 3 + at::arange(120).div(30, "floor") * 11;
  const Tensor q = at::randn({1, 2, 120, kWidth}, kWide);
  for (const auto& formula : distance_formulas()) {
    SCOPED_TRACE(formula.name);
    const auto module = formula.make();
    const Tensor scores = dynamic_cast<ScoreEncoding&>(*module).logits(
        q, q, causal().scale(1.0).q_positions(positions).k_positions(positions));
    const Tensor theta = reference::inv_freq(kWidth, formula.base);
    for (const auto& [row, column] : {std::pair(119, 0), std::pair(119, 100), std::pair(60, 59), std::pair(97, 30)}) {
      const int64_t i = positions[row].item<int64_t>(), j = positions[column].item<int64_t>();
      const RotatedProduct product{kWidth / 2, formula.interleaved,
                                   [&](int64_t k) { return formula.distance(i, j) * *at(theta, {k}); }};
      EXPECT_NEAR(scores[0][1][row][column].item<double>(),
                  formula.query_factor(i) * product.value(at(q, {0, 1, row, 0}), at(q, {0, 1, column, 0})), 1e-11)
          << row << " " << column;
    }
  }
}

// Rotary modules.

TEST(RotaryValues, XPosProductsDecayWithTheDistance) {
  at::manual_seed(4);
  constexpr int64_t kTokens = 200, kDim = 12;
  const Tensor q = at::randn({1, 1, kTokens, kDim}, kWide), k = at::randn({1, 1, kTokens, kDim}, kWide);
  const Tensor theta = reference::inv_freq(kDim, 300.0);
  for (const bool interleaved : {true, false}) {
    XPos module(XPosOptions(kDim).base(300.0).scale_base(100.0).centre(50.0).interleaved(interleaved));
    const auto [turned_q, turned_k] = module->forward_qk(q, k);
    const Tensor products = turned_q.matmul(turned_k.transpose(2, 3));
    const Tensor expected = at::zeros({1, 1, kTokens, kTokens}, kWide);
    for (int64_t i = 0; i < kTokens; ++i) {
      for (int64_t j = 0; j < kTokens; ++j) {
        const auto n = static_cast<double>(i - j);
        const RotatedProduct product{kDim / 2, interleaved, [&](int64_t p) { return n * *at(theta, {p}); },
                                     [&](int64_t p) {
                                       const double zeta = (2.0 * static_cast<double>(p) / kDim + 0.4) / 1.4;
                                       return std::pow(zeta, n / 100.0);
                                     }};
        *at(expected, {0, 0, i, j}) = product.value(at(q, {0, 0, i, 0}), at(k, {0, 0, j, 0}));
      }
    }
    expect_near(products, expected, 1e-12);
    expect_near(module->forward(q), turned_q, 1e-15);
  }
}

TEST(RotaryValues, ModulesRotateByTheirOptions) {
  at::manual_seed(5);
  const Tensor q = at::randn({2, 4, 150, 14}, kWide), k = at::randn({2, 2, 150, 14}, kWide);
  const Tensor positions = at::randint(0, 5000, {2, 150});
  for (const bool interleaved : {false, true}) {
    Rotary module(
        RotaryOptions(14).rotary_dim(10).base(2000.0).interleaved(interleaved).scaling(posenc::scaling::Linear(3.0)));
    const Tensor theta = reference::inv_freq(10, 2000.0) / 3.0;
    const auto [turned_q, turned_k] = module->forward_qk(q, k, RotaryForwardOptions().positions(positions));
    expect_near(turned_q, reference::rotate(q, positions, theta, 1.0, interleaved), 1e-12);
    expect_near(turned_k, reference::rotate(k, positions, theta, 1.0, interleaved), 1e-12);
    expect_near(module->forward(q, RotaryForwardOptions().offset(77)),
                reference::rotate(q, at::arange(77, 227), theta, 1.0, interleaved), 1e-12);
    expect_near(module->forward(q.to(at::kFloat), RotaryForwardOptions().positions(positions)),
                reference::rotate(q.to(at::kFloat), positions, theta, 1.0, interleaved), 1e-6);
  }
  // YaRN multiplies by 0.1 ln 4 + 1; the pairs of highest frequency keep it.
  Rotary yarn(RotaryOptions(14).scaling(posenc::scaling::Yarn(4.0, 1 << 20).truncate(false)));
  const Tensor theta = yarn->frequencies().inv_freq;
  expect_near(yarn->forward(q), reference::rotate(q, at::arange(150), theta, 1.1386294361), 1e-10);
}

/// Pairs turned one axis after another by reference::rotate, whose angles add up.
Tensor rotate_by_axes(const Tensor& x, const Tensor& positions, const std::vector<Tensor>& inv_freq, bool interleaved) {
  Tensor y = x;
  for (size_t axis = 0; axis < inv_freq.size(); ++axis) {
    y = reference::rotate(y, positions[static_cast<int64_t>(axis)], inv_freq[axis], 1.0, interleaved);
  }
  return y;
}

TEST(RotaryValues, AxesTurnTheirOwnPairs) {
  at::manual_seed(6);
  const Tensor x = at::randn({2, 3, 130, 16}, kWide), places = at::randint(0, 60, {3, 2, 130});
  const auto on_axis = [](const Tensor& theta, const std::vector<int64_t>& axes, int64_t axis) {
    const Tensor own = theta.clone();
    for (int64_t k = 0; k < own.size(0); ++k) {
      *at(own, {k}) *= axes[k] == axis ? 1.0 : 0.0;
    }
    return own;
  };
  for (const bool interleaved : {false, true}) {
    // Each of two axes has a RoPE of 8 columns.
    const Tensor part = reference::inv_freq(8, 100.0), theta = at::cat({part, part});
    const std::vector<int64_t> halves = {0, 0, 0, 0, 1, 1, 1, 1};
    AxialRotary axial(AxialRotaryOptions(16).interleaved(interleaved));
    const Tensor two = places.narrow(0, 0, 2);
    expect_near(axial->forward(x, RotaryForwardOptions().positions(two)),
                rotate_by_axes(x, two, {on_axis(theta, halves, 0), on_axis(theta, halves, 1)}, interleaved), 1e-12);

    // One spectrum over three axes, section by section or in turns.
    const Tensor whole = reference::inv_freq(16);
    const std::vector<std::vector<int64_t>> orders = {{0, 0, 0, 1, 1, 1, 2, 2}, {0, 1, 2, 0, 1, 2, 0, 1}};
    for (const bool in_turns : {false, true}) {
      MultimodalRotary module(
          MultimodalRotaryOptions(16, {3, 3, 2}).interleaved(interleaved).interleaved_sections(in_turns));
      const auto& axes = orders[in_turns ? 1 : 0];
      EXPECT_EQ(module->axes(), axes);
      expect_near(module->forward(x, RotaryForwardOptions().positions(places)),
                  rotate_by_axes(x, places, {on_axis(whole, axes, 0), on_axis(whole, axes, 1), on_axis(whole, axes, 2)},
                                 interleaved),
                  1e-12);
    }
  }
}

TEST(RotaryValues, LearnedFrequenciesGetTheirGradients) {
  at::manual_seed(7);
  const Tensor x = at::randn({1, 2, 150, 8}, kWide), grad = at::randn({1, 2, 150, 8}, kWide);
  Rotary module(RotaryOptions(8).learnable(true));
  module->to(at::kDouble);
  module->forward(x).backward(grad);
  for (int64_t k = 0; k < 4; ++k) {  // d angle / d theta is the position, d rotated / d angle a quarter turn of it
    const Tensor y = reference::rotate(x, at::arange(150), module->inv_freq.detach());
    double sum = 0;
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t t = 0; t < 150; ++t) {
        const double *g = at(grad, {0, h, t, 0}), *r = at(y, {0, h, t, 0});
        sum += static_cast<double>(t) * (g[k + 4] * r[k] - g[k] * r[k + 4]);
      }
    }
    EXPECT_NEAR(module->inv_freq.grad()[k].item<double>(), sum, 1e-9 * std::abs(sum)) << k;
  }
}

}  // namespace
