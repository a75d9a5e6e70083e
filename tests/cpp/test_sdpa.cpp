/// torch's scaled_dot_product_attention, served by posenc, against itself. Runs at each instruction-set level.

#include "module_values.h"

#include <posenc/sdpa.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

struct Call {
  std::vector<int64_t> query{2, 4, 110, 8}, key{2, 4, 130, 8}, value{2, 4, 130, 12};
  std::optional<Tensor> mask = std::nullopt;
  bool is_causal = false, enable_gqa = false;
  std::optional<double> scale = std::nullopt;
};

/// Output, and gradients of q, k, v and of a float mask.
std::vector<Tensor> results(const Call& c, bool active) {
  at::manual_seed(3);
  std::vector<Tensor> sources;
  for (const auto& sizes : {c.query, c.key, c.value}) {
    sources.push_back(at::randn(sizes, kWide).requires_grad_());
  }
  const auto mask =
      c.mask && c.mask->is_floating_point() ? std::make_optional(c.mask->detach().requires_grad_()) : c.mask;
  if (mask && mask->requires_grad()) {
    sources.push_back(*mask);
  }
  if (active) {
    posenc::sdpa::activate();
  }
  const Tensor out = at::scaled_dot_product_attention(sources[0], sources[1], sources[2], mask, 0.0, c.is_causal,
                                                      c.scale, c.enable_gqa);
  const bool served = out.grad_fn()->name() == "AttentionBackward" || out.dim() != 4;
  EXPECT_EQ(served, active || out.dim() != 4);
  posenc::sdpa::restore();
  auto all = torch::autograd::grad({out}, sources, {at::randn_like(out)});
  all.insert(all.begin(), out.detach());
  return all;
}

using Named = std::pair<std::string, std::function<void(Call&)>>;

class SdpaOverride : public testing::TestWithParam<Named> {};

TEST_P(SdpaOverride, GivesTheNumbersOfTorch) {
  Call call;
  at::manual_seed(2);
  GetParam().second(call);
  const auto actual = results(call, true), expected = results(call, false);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
    expect_near(actual[i], expected[i], 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , SdpaOverride,
    testing::Values(Named("Plain", [](Call&) {}), Named("Scale", [](Call& c) { c.scale = 0.7; }),
                    Named("Causal", [](Call& c) { c.is_causal = true; }),
                    Named("CausalFewerKeys",
                          [](Call& c) {
                            c.is_causal = true;
                            c.query[2] = 140;
                          }),
                    Named("BoolMask", [](Call& c) { c.mask = at::rand({2, 1, 110, 130}) > 0.3; }),
                    Named("BoolMaskOfKeys", [](Call& c) { c.mask = at::rand({2, 1, 1, 130}) > 0.3; }),
                    Named("BoolMaskOfStrides", [](Call& c) { c.mask = (at::rand({130, 110}) > 0.3).t(); }),
                    Named("FloatMask", [](Call& c) { c.mask = at::randn({4, 110, 130}, kWide); }),
                    Named("FloatMaskThatHides",
                          [](Call& c) {
                            const Tensor hidden = at::rand({110, 130}) < 0.3;
                            c.mask = at::zeros({110, 130}, kWide).masked_fill(hidden, -reference::kInfinity);
                          }),
                    Named("Grouped",
                          [](Call& c) {
                            c.key[1] = c.value[1] = 2;
                            c.enable_gqa = true;
                          }),
                    Named("ThreeDimensions",
                          [](Call& c) {
                            for (auto* sizes : {&c.query, &c.key, &c.value}) {
                              sizes->erase(sizes->begin());
                            }
                          }),
                    Named("FiveDimensions",
                          [](Call& c) {
                            for (auto* sizes : {&c.query, &c.key, &c.value}) {
                              sizes->insert(sizes->begin(), 3);
                            }
                            c.mask = at::rand({110, 130}) > 0.3;
                          })),
    [](const auto& info) { return info.param.first; });

TEST(SdpaOverrideSwitch, ActsBetweenActivateAndRestore) {
  const Tensor q = at::randn({1, 2, 5, 8}).requires_grad_();
  const auto serves = [&] {
    return at::scaled_dot_product_attention(q, q, q).grad_fn()->name() == "AttentionBackward";
  };
  EXPECT_FALSE(serves() || posenc::sdpa::is_active());
  for (int round = 0; round < 2; ++round) {
    posenc::sdpa::activate();
    posenc::sdpa::activate();
    EXPECT_TRUE(serves() && posenc::sdpa::is_active());
    posenc::sdpa::restore();
    EXPECT_FALSE(serves() || posenc::sdpa::is_active());
    posenc::sdpa::restore();
  }
}

TEST(SdpaOverrideSwitch, CallsThatItDoesNotServeGoToTorch) {
  const Tensor q = at::randn({2, 4, 5, 8}), shared = at::randn({1, 4, 6, 8});
  const Tensor expected = at::scaled_dot_product_attention(q, shared, shared);
  posenc::sdpa::activate();
  const Tensor actual = at::scaled_dot_product_attention(q, shared, shared);
  EXPECT_THROW(at::scaled_dot_product_attention(q, shared, shared.slice(2, 1)), c10::Error);
  posenc::sdpa::restore();
  EXPECT_TRUE(at::equal(actual, expected));
}

}  // namespace
