// Scalings, Hugging Face rope dicts and positions, as a C++ user has them. The formulas are compared with independent
// references in tests/python/scaling/test_scaling_*.py; here are published numbers.

#include <posenc/hf_rope.h>
#include <posenc/positions.h>
#include <posenc/scaling.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <sstream>

namespace {

using namespace posenc::scaling;

template <class Error, class Call>
void expect_error(Call call, const std::string& part) {
  try {
    call();
    FAIL() << "no error, expected: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

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

template <class S>
std::string printed(const S& scaling) {
  std::ostringstream stream;
  stream << scaling;
  return stream.str();
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
  expect_error<c10::ValueError>([] { decode({99.0}); }, "names type 99");
  expect_error<c10::ValueError>([] { decode({1.0, -4.0}); }, "Linear: expected factor to be positive");
}

TEST(Scaling, SettersCanBreakAValueAndFrequenciesNotices) {
  expect_error<c10::ValueError>([] { frequencies(8, 1e4, Linear(0.0)); },
                                "Linear: expected factor to be positive and finite, but got 0");
  expect_error<c10::ValueError>([] { frequencies(8, 1e4, Yarn(4.0, 64).beta_fast(0.5)); },
                                "expected beta_slow to be at most beta_fast");
  expect_error<c10::ValueError>([] { frequencies(7); }, "expected dim to be even and at least 0, but got 7");
  expect_error<c10::ValueError>([] { frequencies(2, 1e4, NTK(2.0)); }, "expected dim to be above 2 for NTK(factor=2)");
  expect_error<c10::ValueError>([] { frequencies(8, -1.0); }, "expected base to be positive and finite, but got -1");
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

TEST(Frequencies, B27YarnRampEdges) {
  expect_near(thetas(8, 1e4, Yarn(4.0, 64)), {1.0, 0.0625, 0.0025, 0.00025});
  expect_near(thetas(8, 1e4, Yarn(4.0, 4)), {1.0, 0.025, 0.0025, 0.00025});
  expect_near(thetas(8, 1e4, Yarn(4.0, 163840)), {1.0, 0.1, 0.01, 0.00075});
  expect_near(thetas(8, 1e4, Yarn(1.0, 64)), {1.0, 0.1, 0.01, 0.001});
}

TEST(Frequencies, B25YarnMagnitude) {
  EXPECT_NEAR(attention_scaling(Yarn(128.0, 4096).attention_factor(1.4852030)), 1.4852030, 1e-12);
  const auto yarn = Yarn(40.0, 4096).mscale(1.0).mscale_all_dim(1.0);
  EXPECT_NEAR(frequencies(64, 1e4, yarn).attention_scaling, 1.0, 1e-12);
  EXPECT_NEAR(yarn.softmax_scale(), 1.8738542, 5e-8);
  EXPECT_NEAR(attention_scaling(Yarn(40.0, 4096)), 1.3688879, 5e-8);
}

TEST(Frequencies, B29LongRoPEFollowsTheLength) {
  const LongRoPE scaling({1.0, 1.0}, {2.0, 4.0}, 8);
  expect_near(thetas(4, 1e4, scaling, 8), {1.0, 0.01});
  expect_near(thetas(4, 1e4, scaling, 9), {0.5, 0.0025});
  expect_error<c10::ValueError>([] { frequencies(4, 1e4, LongRoPE({1.0, 1.0, 1.0}, {1.0, 1.0, 1.0}, 8)); },
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
  expect_error<c10::ValueError>([] { read_rope({{"rope_type", "ntk"}}, RopeModel(64)); }, "default, linear, dynamic");
  expect_error<c10::ValueError>([] { read_rope({{"factr", 4.0}}, RopeModel(64)); }, "unknown key 'factr'");
  expect_error<c10::ValueError>([] { read_rope({{"type", "linear"}}, RopeModel(64)); }, "needs the key 'factor'");
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
  expect_error<c10::ValueError>([&] { posenc::positions_from_cu_seqlens(cu_seqlens, 6); },
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
