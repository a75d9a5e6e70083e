/// The biases of additive encodings against their formulas, written out in float64, at lengths beyond a tile of the
/// kernels: bias, scores, attention and the gradients of parameters. Runs at each instruction-set level.

#include "module_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace posenc::nn;
using at::Tensor;
using reference::at;
using reference::Call;

/// A formula for the bias of head h (from 0) at query position i and key position j, as a function of the parameters in
/// the module's order, and for what a gradient g of that bias adds to theirs.
struct AdditiveFormula {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<double(const std::vector<Tensor>& p, int64_t h, int64_t i, int64_t j)> bias;
  std::function<void(const std::vector<Tensor>& p, const std::vector<Tensor>& grads, int64_t h, int64_t i, int64_t j,
                     double g)>
      add_gradient;
  /// Of query . key; absent: 1 / sqrt(D).
  std::optional<double> scale = std::nullopt;
};

std::ostream& operator<<(std::ostream& stream, const AdditiveFormula& f) { return stream << f.name; }

constexpr int64_t kHeads = 6;

double distance(int64_t i, int64_t j) { return static_cast<double>(std::abs(i - j)); }

/// T5 (arXiv 1910.10683): where the buckets 1, 2, .. begin, with 32 buckets up to a distance of 128.
const std::vector<int64_t> kCausalStarts = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16,
                                            19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
const std::vector<int64_t> kBothStarts = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};

int64_t bucket_of(const std::vector<int64_t>& starts, int64_t n) {
  return std::upper_bound(starts.begin(), starts.end(), n) - starts.begin();
}

int64_t t5_bucket_of(bool bidirectional, int64_t i, int64_t j) {
  return bidirectional ? bucket_of(kBothStarts, std::abs(i - j)) + (j > i ? 16 : 0)
                       : bucket_of(kCausalStarts, std::max<int64_t>(i - j, 0));
}

AdditiveFormula t5_formula(bool bidirectional) {
  return {
      bidirectional ? "T5BothDirections" : "T5",
      [=] { return prepared(T5RelativeBias(T5RelativeBiasOptions(kHeads).bidirectional(bidirectional))).ptr(); },
      [=](const auto& p, int64_t h, int64_t i, int64_t j) { return *at(p[0], {t5_bucket_of(bidirectional, i, j), h}); },
      [=](const auto&, const auto& grads, int64_t h, int64_t i, int64_t j, double g) {
        *at(grads[0], {t5_bucket_of(bidirectional, i, j), h}) += g;
      },
      1.0};
}

std::shared_ptr<torch::nn::Module> kerple_module(KerpleKind kind) {
  Kerple module(KerpleOptions(kHeads).kind(kind));
  module->to(at::kDouble);
  const at::NoGradGuard no_grad;
  module->r1.copy_(at::tensor({0.1, 0.5, 1.0, 1.5, 0.01, 3.0}, kWide));
  module->r2.copy_(at::tensor({0.3, 0.9, 1.0, 0.02, 1.7, 0.6}, kWide));
  return module.ptr();
}

/// The ratio that FIRE's MLP sees: ln(c n + 1) / (ln(c max(L, i) + 1) + eps).
struct FireRatio {
  FireRatio(const std::vector<Tensor>& p, int64_t i, int64_t j)
      : c(*at(p[0], {0})),
        n(distance(i, j)),
        limit(*at(p[1], {0})),
        m(std::max(limit, static_cast<double>(i))),
        above(std::log(c * n + 1)),
        below(std::log(c * m + 1) + 1e-6) {}
  double value() const { return above / below; }
  double by_c() const { return n / (c * n + 1) / below - above / (below * below) * m / (c * m + 1); }
  double by_limit() const { return m == limit ? -above / (below * below) * c / (c * m + 1) : 0.0; }
  double c, n, limit, m, above, below;
};

AdditiveFormula fire_formula() {
  static constexpr int64_t kHidden = 9;
  return {"FIRE",
          [] {
            auto module = prepared(FIRE(FIREOptions(kHeads).hidden_dim(kHidden).threshold(150.5)));
            const at::NoGradGuard no_grad;
            module->c.fill_(0.13);
            module->threshold.fill_(150.5);
            return module.ptr();
          },
          [](const auto& p, int64_t h, int64_t i, int64_t j) {
            const double ratio = FireRatio(p, i, j).value();
            double bias = *at(p[5], {h});
            for (int64_t u = 0; u < kHidden; ++u) {
              bias += *at(p[4], {h, u}) * std::max(0.0, *at(p[2], {u, 0}) * ratio + *at(p[3], {u}));
            }
            return bias;
          },
          [](const auto& p, const auto& grads, int64_t h, int64_t i, int64_t j, double g) {
            const FireRatio ratio(p, i, j);
            *at(grads[5], {h}) += g;
            for (int64_t u = 0; u < kHidden; ++u) {
              const double hidden = *at(p[2], {u, 0}) * ratio.value() + *at(p[3], {u});
              if (hidden > 0) {
                const double of_hidden = g * *at(p[4], {h, u}), of_ratio = of_hidden * *at(p[2], {u, 0});
                *at(grads[4], {h, u}) += g * hidden;
                *at(grads[2], {u, 0}) += of_hidden * ratio.value();
                *at(grads[3], {u}) += of_hidden;
                *at(grads[0], {0}) += of_ratio * ratio.by_c();
                *at(grads[1], {0}) += of_ratio * ratio.by_limit();
              }
            }
          }};
}

std::vector<AdditiveFormula> additive_formulas() {
  return {
      {"ALiBi", [] { return ALiBi(kHeads).ptr(); },
       [](const auto&, int64_t h, int64_t i, int64_t j) {
         const double slopes[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
         return -slopes[h] * distance(i, j);
       },
       nullptr},
      {"ALiBiLearned", [] { return prepared(ALiBi(ALiBiOptions(kHeads).learnable(true))).ptr(); },
       [](const auto& p, int64_t h, int64_t i, int64_t j) { return -*at(p[0], {h}) * distance(i, j); },
       [](const auto&, const auto& grads, int64_t h, int64_t i, int64_t j, double g) {
         *at(grads[0], {h}) -= g * distance(i, j);
       }},
      t5_formula(false),
      t5_formula(true),
      {"KerpleLog", [] { return kerple_module(KerpleKind::kLog); },
       [](const auto& p, int64_t h, int64_t i, int64_t j) {
         return -*at(p[0], {h}) * std::log(1 + *at(p[1], {h}) * distance(i, j));
       },
       [](const auto& p, const auto& grads, int64_t h, int64_t i, int64_t j, double g) {
         const double n = distance(i, j), inner = 1 + *at(p[1], {h}) * n;
         *at(grads[0], {h}) -= g * std::log(inner);
         *at(grads[1], {h}) -= g * *at(p[0], {h}) * n / inner;
       }},
      {"KerplePower", [] { return kerple_module(KerpleKind::kPower); },
       [](const auto& p, int64_t h, int64_t i, int64_t j) {
         return i == j ? 0.0 : -*at(p[0], {h}) * std::pow(distance(i, j), *at(p[1], {h}));
       },
       [](const auto& p, const auto& grads, int64_t h, int64_t i, int64_t j, double g) {
         const double n = distance(i, j), power = i == j ? 0.0 : std::pow(n, *at(p[1], {h}));
         *at(grads[0], {h}) -= g * power;
         *at(grads[1], {h}) -= i == j ? 0.0 : g * *at(p[0], {h}) * power * std::log(n);
       }},
      {"Sandwich", [] { return Sandwich(SandwichOptions(kHeads).dim(20)).ptr(); },
       [](const auto&, int64_t h, int64_t i, int64_t j) {
         double sum = 0;
         for (int64_t k = 1; k <= 10; ++k) {
           sum += std::cos(distance(i, j) / std::pow(10000.0, 2.0 * static_cast<double>(k) / 20.0));
         }
         return (sum - 10) / (8.0 * static_cast<double>(h + 1) / static_cast<double>(kHeads));
       },
       nullptr},
      fire_formula(),
  };
}

class AdditiveValues : public testing::TestWithParam<AdditiveFormula> {};

TEST_P(AdditiveValues, EqualTheFormula) {
  const AdditiveFormula formula = GetParam();
  at::manual_seed(1);
  const auto module = formula.make();
  auto& encoding = dynamic_cast<AdditiveEncoding&>(*module);
  const std::vector<Tensor> learned = module->parameters();
  std::vector<Tensor> parameters, wanted;
  for (const Tensor& parameter : learned) {
    parameters.push_back(reference::wide(parameter));
    wanted.push_back(at::zeros_like(parameters.back()));
  }

  for (const int64_t queries : {3, 130}) {
    SCOPED_TRACE(queries);
    constexpr int64_t kKeys = 300;
    const Tensor bias = at::zeros({1, kHeads, queries, kKeys}, kWide);
    const auto for_each = [&](const auto& body) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          for (int64_t j = 0; j < kKeys; ++j) {
            body(h, i, kKeys - queries + i, j);
          }
        }
      }
    };
    for_each([&](int64_t h, int64_t row, int64_t i, int64_t j) {
      *at(bias, {0, h, row, j}) = formula.bias(parameters, h, i, j);
    });
    // Constants have a bias in float32.
    expect_near(encoding.bias(queries, kKeys), bias[0], learned.empty() ? 1e-7 : 1e-12);

    for (const bool is_causal : {true, false}) {
      Call call;
      call.inputs.q = at::randn({2, kHeads, queries, 8}, kWide).set_requires_grad(true);
      call.inputs.k = at::randn({2, 2, kKeys, 8}, kWide).set_requires_grad(true);
      call.inputs.v = at::randn({2, 2, kKeys, 5}, kWide);
      call.inputs.bias = bias;
      call.is_causal = is_causal;
      call.scale = formula.scale;
      const auto& in = call.inputs;
      const auto options = AttendOptions().is_causal(is_causal);
      const auto [out, lse] = encoding.attend_with_lse(in.q, in.k, in.v, options);
      const auto expected = reference::attention(call);
      expect_near(out, expected.out, 1e-12);
      expect_near(lse, expected.lse, 1e-12);
      expect_near(encoding.logits(in.q, in.k, options), reference::logits(call), 1e-12);
      const auto as_float = [](const Tensor& x) { return x.detach().to(at::kFloat); };
      expect_near(encoding.attend(as_float(in.q), as_float(in.k), as_float(in.v), options), expected.out, 1e-5);

      std::vector<Tensor> sources = learned;
      sources.push_back(in.q);
      sources.push_back(in.k);
      const Tensor grad = at::randn_like(out);
      const auto computed = torch::autograd::grad({out}, sources, {grad});
      const auto of_inputs = reference::gradients(call, grad, at::zeros_like(lse));
      for (const Tensor& x : wanted) {
        x.zero_();
      }
      if (!learned.empty()) {
        for_each([&](int64_t h, int64_t row, int64_t i, int64_t j) {
          formula.add_gradient(parameters, wanted, h, i, j, *at(of_inputs.bias, {0, h, row, j}));
        });
      }
      for (size_t p = 0; p < learned.size(); ++p) {
        EXPECT_LT(reference::error(computed[p], wanted[p]), 1e-10) << "gradient of parameter " << p;
      }
      expect_near(computed[learned.size()], of_inputs.q, 1e-11);
      expect_near(computed[learned.size() + 1], of_inputs.k, 1e-11);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, AdditiveValues, testing::ValuesIn(additive_formulas()),
                         [](const auto& info) { return info.param.name; });

TEST(AdditiveNumbers, Kerple) {
  const auto bias = [](KerpleKind kind, double r1, double r2, int64_t n) {
    Kerple module(KerpleOptions(1).kind(kind));
    module->to(at::kDouble);
    const at::NoGradGuard no_grad;
    module->r1.fill_(r1);
    module->r2.fill_(r2);
    return module->bias(n + 1)[0][n][0].item<double>();
  };
  EXPECT_NEAR(bias(KerpleKind::kLog, 1, 1, 9), -2.302585, 5e-7);
  EXPECT_NEAR(bias(KerpleKind::kPower, 0.5, 1, 4), -2.0, 1e-12);
  EXPECT_NEAR(bias(KerpleKind::kLog, 0.5, 1, 4), -0.804719, 5e-7);
  EXPECT_NEAR(bias(KerpleKind::kPower, 1, 5, 3), -9.0, 1e-12) << "r2 is at most 2";
  EXPECT_NEAR(bias(KerpleKind::kLog, -1, 1, 9), -0.02302585, 5e-9) << "r1 is at least 0.01";
}

TEST(AdditiveNumbers, Sandwich) {
  // Head 1 of 8 divides by 1, head 2 by 2.
  const Tensor bias = Sandwich(8)->bias(1001);
  const std::vector<std::pair<int64_t, double>> sums = {{0, 64},       {1, 62.5534},   {2, 58.7980},
                                                        {10, 44.6591}, {100, 30.6811}, {1000, 10.6104}};
  for (const auto& [n, sum] : sums) {
    EXPECT_NEAR(bias[0][1000][1000 - n].item<double>(), sum - 64, 1e-4) << n;
    EXPECT_NEAR(bias[1][1000][1000 - n].item<double>(), (sum - 64) / 2, 1e-4) << n;
  }
}

TEST(AdditiveNumbers, Fire) {
  const auto ratio = [](double threshold, int64_t i, int64_t j) {
    FIRE module(FIREOptions(1).hidden_dim(1));
    module->to(at::kDouble);
    const at::NoGradGuard no_grad;
    module->c.fill_(0.1);
    module->threshold.fill_(threshold);
    for (auto& parameter : module->mlp->named_parameters()) {
      parameter.value().fill_(parameter.key().find("weight") != std::string::npos ? 1.0 : 0.0);
    }
    return module->bias(i + 1)[0][i][j].item<double>();
  };
  EXPECT_NEAR(ratio(4.0, 9, 4), 0.631708, 1e-6);
  EXPECT_NEAR(ratio(8.0, 2, 0), 0.310183, 1e-6);
  EXPECT_NEAR(ratio(-8.0, 2, 0), 0.310183, 1e-6) << "the threshold counts by its size";
}

TEST(AdditiveNumbers, T5Buckets) {
  const std::vector<int64_t> n = {0,  1,  7,  8,  9,  11, 12, 15, 16, 17,  20,  22,
                                  23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 1000};
  const std::vector<int64_t> of_decoder = {0,  1,  7,  8,  9,  11, 12, 15, 16, 16, 17, 18,
                                           18, 21, 21, 23, 24, 26, 26, 29, 29, 31, 31, 31};
  const std::vector<int64_t> of_encoder = {0,  1,  7,  8,  8,  8,  9,  9,  10, 10, 10, 10,
                                           11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15};
  const Tensor distances = at::tensor(n, at::kLong), encoder = at::tensor(of_encoder, at::kLong);
  EXPECT_TRUE(at::equal(posenc::t5_bucket(distances.neg(), 32, 128, false), at::tensor(of_decoder, at::kLong)));
  EXPECT_TRUE(at::equal(posenc::t5_bucket(distances.neg()), encoder));
  EXPECT_TRUE(at::equal(posenc::t5_bucket(distances), encoder + distances.gt(0) * 16));
}

TEST(AdditiveNumbers, AlibiSlopes) {
  const auto exponents = [](int64_t heads) { return posenc::alibi_slopes(heads, at::kDouble).log2().neg(); };
  expect_near(exponents(8), at::arange(1, 9, kWide), 1e-14);
  expect_near(exponents(12), at::cat({at::arange(1, 9, kWide), at::tensor({0.5, 1.5, 2.5, 3.5}, kWide)}), 1e-14);
  expect_near(exponents(16), at::arange(1, 17, kWide) / 2, 1e-14);
  expect_near(exponents(20), at::cat({at::arange(1, 17, kWide) / 2, at::tensor({0.25, 0.75, 1.25, 1.75}, kWide)}),
              1e-14);
  expect_near(exponents(71), at::cat({at::arange(1, 65, kWide) / 8, (at::arange(7, kWide) * 2 + 1) / 16}), 1e-14);
}

}  // namespace
