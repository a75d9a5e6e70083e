/// Faults that posenc once had, each with its kind: what overflows or fills memory, layouts, surgery on modules, and a
/// second copy of the library.

#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <dlfcn.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace posenc::nn;

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
constexpr int64_t kLarge = int64_t{1} << 40;

// Sizes

TEST(RegressionLimits, PositionsOfGridsThatOverflowAreRefused) {
  using posenc::GridSpan;
  using posenc::TextSpan;
  const auto positions = [](std::vector<posenc::Span> spans) {
    return [spans] { posenc::multimodal_positions(spans); };
  };
  expect_error(positions({GridSpan{int64_t{1} << 32, int64_t{1} << 32, 1}}), "the tokens t * h * w of a grid");
  expect_error(positions({GridSpan{1 << 16, 1 << 24, 1 << 24}}), "the tokens t * h * w of a grid");
  expect_error(positions({TextSpan{kLast}}), "the length of text");
  expect_error(positions({TextSpan{int64_t{1} << 31}, TextSpan{1}}), "the tokens of all spans");
}

TEST(RegressionLimits, OptionsThatOverflowOrFillMemoryAreRefused) {
  expect_error([] { posenc::alibi_slopes(int64_t{1} << 62); }, "expected num_heads to be at most 16777216");
  expect_error([] { posenc::t5_bucket(torch::zeros({1}, torch::kLong), kLarge, kLast); },
               "expected num_buckets to be at most 16777216");
  expect_error([] { ALiBi(int64_t{1} << 62); }, "expected num_heads");
  expect_error([] { Attention(AttentionOptions(8, int64_t{1} << 32).head_dim(int64_t{1} << 32)); },
               "expected embed_dim * num_heads * head_dim");
  expect_error([] { AxialRotary(AxialRotaryOptions(8).num_axes(int64_t{1} << 62)); }, "expected num_axes");
  expect_error([] { CoPE(int64_t{1} << 32, int64_t{1} << 32); }, "expected num_heads * head_dim * max_positions");
  expect_error([] { DecomposedRelative(8, std::vector<int64_t>{kLarge, 2}); }, "expected size");
  expect_error([] { GridRelativeBias(2, std::vector<int64_t>{2, kLarge}); }, "expected window");
  expect_error([] { FIRE(FIREOptions(1 << 20).hidden_dim(int64_t{1} << 45)); }, "hidden_dim * num_heads");
  expect_error([] { ForgettingBias(int64_t{1} << 32, int64_t{1} << 32); }, "expected embed_dim * num_heads");
  expect_error([] { KVCache(KVCacheOptions(1 << 16, 1 << 16, 1 << 16, 1 << 16)); }, "expected batch_size * ");
  expect_error([] { LearnedAbsolute(int64_t{1} << 32, int64_t{1} << 32); }, "expected max_positions * dim");
  expect_error([] { MultimodalRotary(8, std::vector<int64_t>{kLast, kLast, 6}); }, "sections");
  expect_error([] { Rotary{kLarge}; }, "expected head_dim to be at most 16777216");
  expect_error([] { Sandwich(SandwichOptions(2).dim(kLarge)); }, "expected dim");
  expect_error([] { ShawRelative(8, kLast); }, "expected max_distance");
  expect_error([] { Sinusoidal{kLarge}; }, "expected dim");
  expect_error([] { T5RelativeBias(T5RelativeBiasOptions(2).max_distance(kLarge)); }, "expected max_distance");
  expect_error([] { ALiBi(2)->bias(kLarge, kLarge); }, "expected num_heads * q_len * k_len");
}

TEST(RegressionLimits, OffsetsWhoseLastPositionIsBeyondInt64AreRefused) {
  const auto q = torch::randn({2, 2, 5, 8});
  const auto x = torch::randn({2, 5, 8});
  for (const auto& call : {RotaryForwardOptions().offset(kLast), RotaryForwardOptions().offset(kLast - 4),
                           RotaryForwardOptions().offsets(torch::tensor({int64_t{0}, kLast}))}) {
    expect_error([&] { Rotary(8)->forward(q, call); }, "2^63 - 1");
    expect_error([&] { XPos(8)->forward(q, call); }, "2^63 - 1");
    expect_error([&] { Rotary(RotaryOptions(8).scaling(posenc::scaling::DynamicNTK(2, 16)))->forward(q, call); },
                 "2^63 - 1");
  }
  expect_error([&] { Sinusoidal(8)->forward(x, AbsoluteForwardOptions().offset(kLast)); }, "2^63 - 1");
  expect_error([&] { LearnedAbsolute(16, 8)->forward(x, AbsoluteForwardOptions().offset(kLast)); }, "2^63 - 1");
  EXPECT_EQ(Rotary(8)->forward(q, RotaryForwardOptions().offset(kLast - 5)).sizes(), q.sizes());
}

// Layouts

TEST(RegressionLayouts, TensorsThatAreNotDenseAreRefusedByName) {
  const auto q = torch::randn({2, 2, 5, 8}), x = torch::randn({2, 5, 8}), inv_freq = torch::ones({4});
  expect_error([&] { posenc::rotary(q.to_sparse(), {}, inv_freq); }, "expected x to be a dense tensor");
  expect_error([&] { posenc::rotary(q, {}, inv_freq.to_sparse()); }, "expected inv_freq to be a dense tensor");
  expect_error([&] { posenc::rotary(q, torch::arange(5).to_sparse(), inv_freq); }, "expected positions to be");
  expect_error([&] { posenc::rotary(q.to_mkldnn(), {}, inv_freq); }, "expected x to be a dense tensor");
  expect_error([&] { Sinusoidal(8)->forward(x.to_sparse()); }, "expected x to be a dense tensor");
  expect_error([&] { Kerple(2)->attend(q.to_sparse(), q, q); }, "expected query to be a dense tensor");
  expect_error([&] { posenc::positions_from_mask(torch::ones({2, 5}, torch::kBool).to_sparse()); },
               "expected mask to be a dense tensor");
}

// Surgery

TEST(RegressionSurgery, WhatIsRegisteredWithinAModuleIsNotReset) {
  const auto untouched = [](auto module) {
    auto probe = module->register_module("probe", torch::nn::Linear(2, 2));
    const torch::NoGradGuard no_grad;
    probe->weight.fill_(7);
    module->reset_parameters();
    EXPECT_TRUE(probe->weight.eq(7).all().template item<bool>()) << module->name();
  };
  untouched(ShawRelative(8, 4));
  untouched(TransformerXL(8, 2));
  untouched(FIRE(2));
  untouched(CoPE(8, 4));
  untouched(Kerple(2));
  untouched(ForgettingBias(16, 2));
  untouched(LearnedAbsolute(8, 4));
  untouched(T5RelativeBias(2));
  untouched(GridRelativeBias(2, std::vector<int64_t>{2, 2}));
  untouched(DecomposedRelative(8, std::vector<int64_t>{2, 2}));
  untouched(Attention(AttentionOptions(16, 2)));
}

TEST(RegressionSurgery, AnAttentionWithoutAProjectionMovesAndIsReset) {
  Attention layer(AttentionOptions(16, 2));
  layer->o_proj = nullptr;
  layer->to(torch::kDouble);
  layer->reset_parameters();
  EXPECT_EQ(layer->q_proj->weight.scalar_type(), torch::kDouble);
}

// Copies

TEST(RegressionCopies, ASecondCopyOfTheLibraryRegistersNothingAndTheFirstWorksOn) {
  Dl_info self{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&posenc::version), &self), 0);
  const auto copy = std::filesystem::path(testing::TempDir()) / "libposenc_copy.so";
  std::filesystem::copy_file(self.dli_fname, copy, std::filesystem::copy_options::overwrite_existing);
  testing::internal::CaptureStderr();
  void* const loaded = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_NE(loaded, nullptr) << dlerror();
  EXPECT_NE(said.find("another copy of libposenc"), std::string::npos) << said;
  EXPECT_NE(said.find(copy.string()), std::string::npos) << said;
  const auto q = torch::randn({1, 2, 5, 8});
  EXPECT_TRUE(torch::isfinite(ALiBi(2)->attend(q, q, q)).all().item<bool>());
  EXPECT_EQ(dlclose(loaded), 0);
  EXPECT_TRUE(torch::isfinite(Rotary(8)->forward(q)).all().item<bool>());
  std::filesystem::remove(copy);
}

}  // namespace
