/// Every attention op with every score term, at sizes around and beyond one tile (96 queries x 96 keys) and one block
/// of the decode kernel (128 keys), against the plain float64 loops of reference.h: out, lse and all gradients. Runs at
/// each instruction-set level.

#include "attention_cases.h"

namespace {

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {{1, 4, 2, 97, 97, 8, 8}, {}, "OneTokenMoreThanATile"},
      {{1, 2, 1, 130, 290, 20, 12}, {}, "ManyTiles"},
      {{1, 1, 1, 210, 110, 7, 33}, {.is_causal = false}, "MoreQueriesThanKeys"},
      {{1, 2, 2, 110, 200, 9, 17}, {.is_causal = false}, "BothDirections"},
      {{1, 2, 1, 110, 220, 16, 8}, {.is_causal = false, .window = 70}, "WindowOfBothDirections"},
      {{1, 2, 1, 200, 200, 16, 16}, {.window = 100}, "Window"},
      {{2, 2, 1, 105, 130, 16, 16}, {.key_mask = true}, "KeyMask"},
      {{2, 2, 1, 110, 150, 16, 16}, {.segments = true}, "Segments"},
      {{2, 2, 1, 99, 120, 16, 16}, {.positions = true}, "Positions"},
      {{1, 2, 2, 110, 150, 8, 8}, {.is_causal = false, .window = 60, .positions = true}, "PositionsWithAWindow"},
      {{1, 2, 1, 110, 220, 8, 8}, {.is_causal = false, .window_left = 70, .window_right = 13}, "WindowOfTwoSides"},
      {{1, 2, 1, 130, 200, 8, 8}, {.window_left = 100}, "WindowToTheLeft"},
      {{2, 2, 1, 110, 200, 8, 8}, {.blocks = true}, "Blocks"},
      {{2, 2, 1, 150, 200, 8, 8}, {.window = 50, .blocks = true}, "BlocksWithAWindow"},
      {{2, 2, 1, 160, 150, 8, 8}, {.is_causal = false, .segments = true, .q_segments = true}, "SegmentsOfQueries"},
      {{2, 2, 1, 100, 150, 8, 8}, {.start = true}, "Start"},
      {{1, 1, 1, 100, 130, 300, 257}, {}, "WideHeads"},
      {{2, 4, 2, 1, 129, 16, 16}, {}, "DecodeOneQuery"},
      {{1, 4, 1, 3, 400, 33, 20}, {}, "DecodeThreeQueries"},
      {{1, 2, 2, 8, 257, 16, 16}, {.window = 150}, "DecodeWindow"},
      {{1, 2, 1, 4, 300, 16, 8}, {.is_causal = false, .window = 140}, "DecodeBothDirections"},
      {{2, 4, 2, 2, 300, 16, 16}, {.key_mask = true, .segments = true}, "DecodeKeyMaskAndSegments"},
      {{2, 2, 1, 5, 280, 16, 16}, {.positions = true}, "DecodePositions"},
      {{2, 2, 1, 3, 280, 8, 8}, {.blocks = true}, "DecodeBlocks"},
      {{2, 2, 1, 2, 280, 8, 8}, {.segments = true, .window_left = 90, .q_segments = true}, "DecodeSegmentsOfQueries"},
      {{2, 2, 1, 1, 280, 8, 8}, {.start = true}, "DecodeStart"},
  };
  return all;
}

/// Rows so long that sums are set aside on the way.
const std::vector<Setting>& long_settings() {
  static const std::vector<Setting> all = {
      {{1, 1, 1, 17, 3300, 8, 4}, {}, "Long"},
      {{1, 2, 1, 2, 4400, 8, 4}, {}, "DecodeLong"},
  };
  return all;
}

class AttentionValues : public testing::TestWithParam<Parameters> {};

TEST_P(AttentionValues, EqualTheFormula) {
  const auto& [term, setting] = GetParam();
  const Call call = make_call(setting, term);
  expect_reference(call, {at::kDouble, at::kFloat});
}

INSTANTIATE_TEST_SUITE_P(, AttentionValues, testing::ValuesIn(combinations(terms(), settings())), name_of);
INSTANTIATE_TEST_SUITE_P(Rows, AttentionValues, testing::ValuesIn(combinations(terms(), long_settings())), name_of);

/// Half types share the float kernels, but read and write rows of their own; where instructions for it exist, bfloat16
/// has products of its own.
class HalfTypeValues : public testing::TestWithParam<Parameters> {};

TEST_P(HalfTypeValues, EqualTheFormula) {
  const auto& [term, setting] = GetParam();
  const Call call = make_call(setting, term);
  expect_reference(call, {at::kBFloat16});
  expect_reference(call, {at::kHalf});
}

const std::vector<Setting>& half_type_settings() {
  static const std::vector<Setting> all = {
      {{1, 2, 1, 97, 193, 17, 15}, {}, "MoreThanATile"},
      {{1, 2, 2, 110, 200, 32, 32}, {.window = 90}, "Window"},
      {{1, 4, 2, 2, 300, 33, 31}, {}, "Decode"},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(, HalfTypeValues, testing::ValuesIn(combinations(terms(), half_type_settings())), name_of);

// Numbers worked out by hand.

TEST(CoPEValues, WorkedOutByHand) {
  Call call;
  call.scale = 1.0;
  call.inputs.q = at::ones({1, 1, 3, 1}, kWide);
  call.inputs.k = at::tensor({0.2, -0.4, 0.6}, kWide).view({1, 1, 3, 1});
  call.inputs.v = at::eye(3, kWide).view({1, 1, 3, 3});
  call.inputs.pos_emb = at::tensor({0.0, 1.0, 3.0}, kWide).view({1, 1, 3});
  const Tensor weights = std::get<0>(run(call, call.inputs)).select(2, 2).flatten();
  EXPECT_LT(reference::error(weights, at::tensor({0.666653, 0.121827, 0.211520}, kWide)), 1e-6);
  EXPECT_LT(reference::error(reference::attention(call).out.select(2, 2).flatten(), weights), 1e-12);
}

TEST(ShawValues, EntriesAreClippedDistances) {
  // k = 2: distances key - query of -3 .. 3 have the entries 0 0 1 2 3 4 4.
  const Tensor zeros = at::zeros({1, 1, 7, 1}, kWide), rel_v = at::arange(5, kWide).view({5, 1});
  for (int64_t key = 0; key < 7; ++key) {
    const auto options = posenc::RelativeAttentionFuncOptions().key_mask(at::arange(7).eq(key).unsqueeze(0));
    const Tensor out = posenc::relative_attention(zeros, zeros, zeros, at::zeros({5, 1}, kWide), rel_v, options);
    const double expected[] = {0, 0, 1, 2, 3, 4, 4};
    EXPECT_EQ(out[0][0][3][0].item<double>(), expected[key]) << key;
  }
}

}  // namespace
