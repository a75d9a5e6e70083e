// Scalings, Hugging Face rope dicts and positions, as a C++ user has them: formulas written out and published numbers.

#include "support.h"

#include <posenc/hf_rope.h>
#include <posenc/positions.h>
#include <posenc/scaling.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace posenc::scaling;

std::vector<double> thetas(int64_t dim, double base, const Scaling& scaling,
                           std::optional<int64_t> seq_len = std::nullopt) {
  const at::Tensor inv_freq = frequencies(dim, base, scaling, seq_len).inv_freq;
  EXPECT_EQ(inv_freq.scalar_type(), at::kDouble);
  EXPECT_TRUE(inv_freq.device().is_cpu());
  return {inv_freq.const_data_ptr<double>(), inv_freq.const_data_ptr<double>() + inv_freq.numel()};
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double relative = 1e-12) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t k = 0; k < actual.size(); ++k) EXPECT_NEAR(actual[k], expected[k], relative * std::abs(expected[k])) << k;
}

const std::vector<Scaling> kOneOfEach{
    Scaling(),
    Linear(4.0),
    NTK(2.0),
    DynamicNTK(2.0, 16),
    NTKByParts(4.0, 64).beta_fast(8.0),
    Yarn(4.0, 64).mscale(0.5).attention_factor(1.5).truncate(false).ramp(Ramp::kTurns),
    LongRoPE({1.0, 1.0, 1.0, 1.0}, {2.0, 4.0, 8.0, 16.0}, 16).factor(4.0),
    Llama3(8.0, 64).high_freq_factor(8.0),
    Proportional(0.5).factor(2.0),
    PRoPE(0.75),
    TruncatedBasis(2048),
    PowerBasis(0.5),
};

TEST(Scaling, EveryTypeIsHere) {
  ASSERT_EQ(kOneOfEach.size(), std::variant_size_v<Scaling>);
  for (size_t i = 0; i < kOneOfEach.size(); ++i) EXPECT_EQ(kOneOfEach[i].index(), i);
}

TEST(Scaling, PrintsFieldsThatAreNotDefaults) {
  EXPECT_EQ(printed(Yarn(4.0, 8192)), "Yarn(factor=4, original_max_positions=8192)");
  EXPECT_EQ(printed(kOneOfEach[5]),
            "Yarn(factor=4, original_max_positions=64, attention_factor=1.5, mscale=0.5, truncate=false, ramp=turns)");
  EXPECT_EQ(printed(Proportional(0.25)), "Proportional(fraction=0.25)");
  EXPECT_EQ(printed(Scaling()), "None");
  EXPECT_EQ(to_string(Yarn(4.0, 8192).truncate(false), /*python_literals=*/true),
            "Yarn(factor=4, original_max_positions=8192, truncate=False)");
}

TEST(Scaling, ComparesByValue) {
  for (const Scaling& a : kOneOfEach) {
    for (const Scaling& b : kOneOfEach) EXPECT_EQ(a == b, &a == &b);
    EXPECT_EQ(a, Scaling(a));
  }
  EXPECT_NE(Scaling(Yarn(4.0, 64)), Scaling(Yarn(4.0, 64).mscale(1.0)));
}

TEST(Scaling, EncodingKeepsEveryField) {
  for (const Scaling& scaling : kOneOfEach) EXPECT_EQ(decode(encode(scaling)), scaling) << scaling;
  EXPECT_EQ(decode({}), Scaling());
  expect_error([] { decode({99.0}); }, "names type 99");
  expect_error([] { decode({1.0, -4.0}); }, "Linear: expected factor to be positive");
}

TEST(Scaling, SettersCanBreakAValueAndFrequenciesNotices) {
  expect_error([] { frequencies(8, 1e4, Linear(0.0)); },
               "Linear: expected factor to be positive and finite, but got 0");
  expect_error([] { frequencies(8, 1e4, Yarn(4.0, 64).beta_fast(0.5)); }, "expected beta_slow to be at most beta_fast");
  expect_error([] { frequencies(7); }, "expected dim to be even and at least 0, but got 7");
  expect_error([] { frequencies(2, 1e4, NTK(2.0)); }, "expected dim to be above 2 for NTK(factor=2)");
  expect_error([] { frequencies(8, -1.0); }, "expected base to be positive and finite, but got -1");
}

TEST(Frequencies, PublishedNumbers) {
  expect_near(thetas(8, 1e4, {}), {1.0, 0.1, 0.01, 0.001});
  expect_near(thetas(8, 1e4, Linear(4.0)), {0.25, 0.025, 0.0025, 0.00025});
  EXPECT_NEAR(thetas(8, 1e4, DynamicNTK(2.0, 16), 17)[1], 0.0961500, 5e-8);
  expect_near(thetas(8, 1e4, PRoPE(0.75)), {1.0, 0.1, 0.01, 0.0});
  EXPECT_NEAR(thetas(128, 1e4, PowerBasis(0.5))[32], 7.071068e-3, 5e-9);
  EXPECT_NEAR(thetas(128, 5e5, Llama3(8.0, 8192))[31], 8.567514e-4, 5e-10);
  EXPECT_NEAR(thetas(128, 1e4, NTK(8.0))[63], std::pow(1e4, -126.0 / 128.0) / 8.0, 1e-16);
  EXPECT_EQ(thetas(128, 1e4, TruncatedBasis(2048))[63], 0.0);
}

// Every scaling as its paper has it: theta_k for k = 0 .. d/2 - 1, given plain RoPE's theta.

constexpr double kTwoPi = 6.283185307179586;

struct ScalingFormula {
  std::string name;
  Scaling scaling;
  int64_t dim;
  double base;
  std::optional<int64_t> seq_len;
  std::function<double(double theta, double k)> theta;
};

std::ostream& operator<<(std::ostream& stream, const ScalingFormula& f) { return stream << f.name; }

double clamped(double x) { return std::min(std::max(x, 0.0), 1.0); }

/// The pair that makes `turns` turns in `length` tokens.
double pair_with_turns(double dim, double base, double length, double turns) {
  return dim * std::log(length / (kTwoPi * turns)) / (2 * std::log(base));
}

/// YaRN as its authors' code has it, with the ramp from pair low to pair high.
auto yarn_formula(double s, double low, double high) {
  return [=](double theta, double k) {
    const double ramp = clamped((k - low) / (high - low));
    return theta / s * ramp + theta * (1 - ramp);
  };
}

auto by_parts_formula(double s, double length, double fast, double slow) {
  return [=](double theta, double) {
    const double kept = clamped((length * theta / kTwoPi - slow) / (fast - slow));
    return (1 - kept) * theta / s + kept * theta;
  };
}

auto llama_formula(double s, double length, double low, double high) {
  return [=](double theta, double) {
    const double lambda = kTwoPi / theta, t = (length / lambda - low) / (high - low);
    return lambda < length / high ? theta : lambda > length / low ? theta / s : (1 - t) * theta / s + t * theta;
  };
}

auto with_base(double dim, double base) {
  return [=](double, double k) { return std::pow(base, -2 * k / dim); };
}

std::vector<ScalingFormula> scaling_formulas() {
  std::vector<double> near(32), far(32);
  for (size_t k = 0; k < 32; ++k) {
    near[k] = 1.0 + 0.01 * static_cast<double>(k);
    far[k] = 2.0 + static_cast<double>(k);
  }
  const auto long_rope = [=](const std::vector<double>& by) {
    return [=](double theta, double k) { return theta / by[static_cast<size_t>(k)]; };
  };
  return {
      {"Linear", Linear(4.0), 64, 1e4, {}, [](double theta, double) { return theta / 4; }},
      {"NTK", NTK(8.0), 128, 1e4, {}, with_base(128, 1e4 * std::pow(8.0, 128.0 / 126.0))},
      {"DynamicNTKShort", DynamicNTK(2.0, 2048), 128, 1e4, 2048, with_base(128, 1e4)},
      {"DynamicNTKLong", DynamicNTK(2.0, 2048), 128, 1e4, 4096, with_base(128, 1e4 * std::pow(3.0, 128.0 / 126.0))},
      {"DynamicNTKOfFactor1", DynamicNTK(1.0, 2048), 128, 1e4, 4096,
       with_base(128, 1e4 * std::pow(2.0, 128.0 / 126.0))},
      {"NTKByParts", NTKByParts(16.0, 4096), 128, 1e4, {}, by_parts_formula(16, 4096, 32, 1)},
      {"NTKByPartsWithBounds",
       NTKByParts(4.0, 8192).beta_fast(20.0).beta_slow(2.5),
       64,
       5e5,
       {},
       by_parts_formula(4, 8192, 20, 2.5)},
      {"Yarn", Yarn(16.0, 4096), 128, 1e4, {}, yarn_formula(16, 20, 46)},
      {"YarnDeepSeek", Yarn(40.0, 4096), 64, 1e4, {}, yarn_formula(40, 10, 23)},
      {"YarnNotTruncated",
       Yarn(32.0, 4096).truncate(false),
       64,
       150000.0,
       {},
       yarn_formula(32, pair_with_turns(64, 150000, 4096, 32), pair_with_turns(64, 150000, 4096, 1))},
      {"YarnWithBounds",
       Yarn(8.0, 8192).beta_fast(16.0).beta_slow(2.0),
       128,
       5e5,
       {},
       yarn_formula(8, std::floor(pair_with_turns(128, 5e5, 8192, 16)), std::ceil(pair_with_turns(128, 5e5, 8192, 2)))},
      {"YarnByTurns", Yarn(16.0, 4096).ramp(Ramp::kTurns), 128, 1e4, {}, by_parts_formula(16, 4096, 32, 1)},
      {"LongRoPEShort", LongRoPE(near, far, 4096), 64, 1e4, 4096, long_rope(near)},
      {"LongRoPELong", LongRoPE(near, far, 4096), 64, 1e4, 4097, long_rope(far)},
      {"Llama3", Llama3(8.0, 8192), 128, 5e5, {}, llama_formula(8, 8192, 1, 4)},
      {"Llama3WithBounds",
       Llama3(32.0, 4096).low_freq_factor(2.0).high_freq_factor(9.0),
       64,
       1e6,
       {},
       llama_formula(32, 4096, 2, 9)},
      {"Proportional",
       Proportional(0.25).factor(3.0),
       512,
       1e6,
       {},
       [](double theta, double k) { return k < 64 ? theta / 3 : 0.0; }},
      {"PRoPE", PRoPE(0.75), 128, 1e4, {}, [](double theta, double k) { return k < 48 ? theta : 0.0; }},
      {"TruncatedBasis",
       TruncatedBasis(2048),
       128,
       1e4,
       {},
       [](double theta, double) {
         return theta >= 3.067962e-3 ? theta : theta >= 3.834952e-4 ? kTwoPi / 2048 / 16 : 0.0;
       }},
      {"PowerBasis",
       PowerBasis(0.1),
       128,
       1e4,
       {},
       [](double theta, double k) { return theta * std::pow(1 - 2 * k / 128, 0.1); }},
  };
}

class ScalingFormulas : public testing::TestWithParam<ScalingFormula> {};

TEST_P(ScalingFormulas, EqualTheFormula) {
  const ScalingFormula& f = GetParam();
  std::vector<double> expected(f.dim / 2);
  for (size_t k = 0; k < expected.size(); ++k) {
    const auto index = static_cast<double>(k);
    expected[k] = f.theta(std::pow(f.base, -2 * index / static_cast<double>(f.dim)), index);
  }
  expect_near(thetas(f.dim, f.base, f.scaling, f.seq_len), expected, 1e-12);
  const at::Tensor narrow = frequencies(f.dim, f.base, f.scaling, f.seq_len, /*exact=*/false).inv_freq.to(at::kDouble);
  expect_near({narrow.const_data_ptr<double>(), narrow.const_data_ptr<double>() + narrow.numel()}, expected, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(, ScalingFormulas, testing::ValuesIn(scaling_formulas()),
                         [](const auto& info) { return info.param.name; });

TEST(Frequencies, YarnRampEndsAtItsBounds) {
  expect_near(thetas(8, 1e4, Yarn(4.0, 64)), {1.0, 0.0625, 0.0025, 0.00025});
  expect_near(thetas(8, 1e4, Yarn(4.0, 4)), {1.0, 0.025, 0.0025, 0.00025});
  expect_near(thetas(8, 1e4, Yarn(4.0, 163840)), {1.0, 0.1, 0.01, 0.00075});
  expect_near(thetas(8, 1e4, Yarn(1.0, 64)), {1.0, 0.1, 0.01, 0.001});
}

TEST(Frequencies, YarnMagnitudeFollowsItsOptions) {
  EXPECT_NEAR(attention_scaling(Yarn(128.0, 4096).attention_factor(1.4852030)), 1.4852030, 1e-12);
  const auto yarn = Yarn(40.0, 4096).mscale(1.0).mscale_all_dim(1.0);
  EXPECT_NEAR(frequencies(64, 1e4, yarn).attention_scaling, 1.0, 1e-12);
  EXPECT_NEAR(yarn.softmax_scale(), 1.8738542, 5e-8);
  EXPECT_NEAR(attention_scaling(Yarn(40.0, 4096)), 1.3688879, 5e-8);
  EXPECT_NEAR(attention_scaling(Yarn(16.0, 4096)), 1.277259, 5e-7);
  EXPECT_NEAR(attention_scaling(Yarn(40.0, 4096).mscale(0.707).mscale_all_dim(1.0)),
              (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1), 1e-12);
  EXPECT_EQ(attention_scaling(Yarn(1.0, 4096)), 1.0);
  EXPECT_NEAR(attention_scaling(LongRoPE({1.0}, {1.0}, 4096).factor(32.0)), 1.190238, 5e-7);
  EXPECT_NEAR(attention_scaling(LongRoPE({1.0}, {1.0}, 8192).factor(8.0)), 1.109400, 5e-7);
}

TEST(Frequencies, LongRoPEFollowsTheLength) {
  const LongRoPE scaling({1.0, 1.0}, {2.0, 4.0}, 8);
  expect_near(thetas(4, 1e4, scaling, 8), {1.0, 0.01});
  expect_near(thetas(4, 1e4, scaling, 9), {0.5, 0.0025});
  expect_error([] { frequencies(4, 1e4, LongRoPE({1.0, 1.0, 1.0}, {1.0, 1.0, 1.0}, 8)); },
               "dim / 2 = 2 numbers for dim 4, but got 3");
}

TEST(Frequencies, OnlyTwoDependOnTheLength) {
  for (const Scaling& scaling : kOneOfEach) {
    const bool same = at::equal(frequencies(8, 1e4, scaling, 16).inv_freq, frequencies(8, 1e4, scaling, 99).inv_freq);
    EXPECT_NE(same, depends_on_length(scaling)) << scaling;
  }
}

TEST(Frequencies, Float32FormIsTheSameFormula) {
  for (const Scaling& scaling : kOneOfEach) {
    const at::Tensor found = frequencies(8, 1e4, scaling, 20, /*exact=*/false).inv_freq;
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(found.to(at::kDouble), frequencies(8, 1e4, scaling, 20).inv_freq, 3e-6, 0.0)) << scaling;
  }
}

TEST(Frequencies, AreOrdinaryTensorsInInferenceMode) {
  const c10::InferenceMode guard;
  EXPECT_FALSE(frequencies(8).inv_freq.is_inference());
  EXPECT_FALSE(frequencies(8, 1e4, {}, std::nullopt, /*exact=*/false).inv_freq.is_inference());
}

TEST(Frequencies, TheOpIsFrequencies) {
  const at::Tensor like = at::zeros({1});
  for (const Scaling& scaling : kOneOfEach) {
    for (const bool exact : {true, false}) {
      EXPECT_TRUE(at::equal(scaled_inv_freq(like, scaling, 8, 1e4, 20, exact),
                            frequencies(8, 1e4, scaling, 20, exact).inv_freq))
          << scaling;
    }
  }
  EXPECT_TRUE(scaled_inv_freq(like.to(at::kMeta), Linear(2.0), 8, 1e4, 20).is_meta());
}

TEST(RopeDict, ReadsTypesAndPrecedence) {
  const RopeConfig plain = read_rope({}, RopeModel(64));
  EXPECT_EQ(plain.rotary_dim, 64);
  EXPECT_EQ(plain.base, 10000.0);
  EXPECT_EQ(plain.scaling, Scaling());
  EXPECT_FALSE(plain.interleaved);

  const RopeDict yarn{{"type", "yarn"}, {"factor", int64_t{4}}, {"original_max_position_embeddings", int64_t{4096}}};
  EXPECT_EQ(read_rope(yarn, RopeModel(64)).scaling, Scaling(Yarn(4.0, 4096)));
  EXPECT_EQ(read_rope(yarn, RopeModel(64).original_max_position_embeddings(2048)).scaling, Scaling(Yarn(4.0, 2048)));

  const RopeConfig glm = read_rope({{"partial_rotary_factor", 0.5}, {"rope_theta", 5e5}},
                                   RopeModel(128).rope_theta(1e6).model_type("glm"));
  EXPECT_EQ(glm.rotary_dim, 64);
  EXPECT_EQ(glm.base, 5e5);
  EXPECT_TRUE(glm.interleaved);
}

TEST(RopeDict, RefusesWhatItDoesNotKnow) {
  expect_error([] { read_rope({{"rope_type", "ntk"}}, RopeModel(64)); }, "default, linear, dynamic");
  expect_error([] { read_rope({{"factr", 4.0}}, RopeModel(64)); }, "unknown key 'factr'");
  expect_error([] { read_rope({{"type", "linear"}}, RopeModel(64)); }, "needs the key 'factor'");
  expect_error<c10::TypeError>([] { read_rope({{"type", "linear"}, {"factor", "4"}}, RopeModel(64)); },
                               "expected 'factor' to be a number");
}

TEST(Positions, CountTokens) {
  const at::Tensor mask = at::tensor({0, 0, 1, 1, 1, 1, 1, 1, 1, 0}).view({2, 5});
  EXPECT_TRUE(
      at::equal(posenc::positions_from_mask(mask), at::tensor({0, 0, 0, 1, 2, 0, 1, 2, 3, 0}, at::kLong).view({2, 5})));
  const at::Tensor cu_seqlens = at::tensor({0, 2, 2, 5});
  EXPECT_TRUE(at::equal(posenc::positions_from_cu_seqlens(cu_seqlens, 5), at::tensor({0, 1, 0, 1, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(posenc::segments_from_cu_seqlens(cu_seqlens, 5), at::tensor({0, 0, 2, 2, 2}, at::kLong)));
  expect_error([&] { posenc::positions_from_cu_seqlens(cu_seqlens, 6); },
               "expected cu_seqlens to end with total 6, but got 5");
}

TEST(Positions, OfImagesAndText) {
  using posenc::GridSpan;
  using posenc::TextSpan;
  const at::Tensor found = posenc::multimodal_positions({TextSpan{2}, GridSpan{1, 2, 2}, TextSpan{1}});
  EXPECT_TRUE(at::equal(found, at::tensor({0, 1, 2, 2, 2, 2, 4,  //
                                           0, 1, 2, 2, 3, 3, 4,  //
                                           0, 1, 2, 3, 2, 3, 4},
                                          at::kLong)
                                   .view({3, 7})));
}

}  // namespace
