#include "rotary_reference.h"
#include "support.h"

#include <posenc/ops.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <string>
#include <tuple>

namespace {

using at::Tensor;
using posenc::RotaryFuncOptions;
using posenc::RotaryTablesFuncOptions;

Tensor inv_freq(int64_t pairs, double base = 10000.0) { return reference::inv_freq(2 * pairs, base); }

/// A 16-bit result is one rounding of a float32 one.
std::pair<double, double> tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return {1e-12, 1e-12};
    case at::kBFloat16:
      return {1.0 / 256, 4e-6};
    case at::kHalf:
      return {1.0 / 1024, 4e-6};
    default:
      return {1e-6, 4e-6};
  }
}

void expect_near(const Tensor& actual, const Tensor& expected) {
  const auto [rtol, atol] = tolerance(actual.scalar_type());
  const Tensor error = (actual.to(at::kDouble) - expected).abs() - rtol * expected.abs();
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(actual.numel() == 0 || error.max().item<double>() <= atol) << error.max();
}

enum class Layout { contiguous, transposed, packed, every_second };

Tensor make(Layout layout, int64_t b, int64_t h, int64_t t, int64_t d, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(at::kFloat);
  switch (layout) {
    case Layout::transposed:
      return at::randn({b, t, h, d}, options).to(type).transpose(1, 2);
    case Layout::packed:
      return at::randn({b, t, 3, h, d}, options).to(type).select(2, 1).transpose(1, 2);
    case Layout::every_second:
      return at::randn({b, h, t, 2 * d}, options).to(type).slice(3, 0, 2 * d, 2);
    default:
      return at::randn({b, h, t, d}, options).to(type);
  }
}

using Parameters = std::tuple<at::ScalarType, Layout, bool>;

/// Full vectors, tails and less than one vector, for every width of vector.
constexpr int64_t kPairs[] = {0, 1, 5, 8, 17, 32};

class Rotation : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    at::manual_seed(0);
    at::set_num_threads(1);
  }
};

TEST_P(Rotation, EveryOpGivesTheReference) {
  const auto& [type, layout, interleaved] = GetParam();
  for (const int64_t pairs : kPairs) {
    SCOPED_TRACE(pairs);
    const Tensor q = make(layout, 2, 4, 5, 2 * pairs + 3, type), k = make(layout, 2, 2, 5, 2 * pairs + 3, type);
    const Tensor f = inv_freq(pairs), positions = at::tensor({7, 2, 2, 0, 5}, at::kLong);
    for (const bool inverse : {false, true}) {
      const auto options = RotaryFuncOptions().attention_scaling(1.25).interleaved(interleaved).inverse(inverse);
      const Tensor expected_q = reference::rotate(q, positions, f, 1.25, interleaved, inverse);
      const Tensor expected_k = reference::rotate(k, positions, f, 1.25, interleaved, inverse);

      const auto [rotated_q, rotated_k] = posenc::rotary_qk(q, k, positions, f, options);
      expect_near(rotated_q, expected_q);
      expect_near(rotated_k, expected_k);
      EXPECT_EQ(rotated_q.scalar_type(), type);
      EXPECT_EQ(rotated_q.strides(), at::empty_like(q).strides());
      EXPECT_TRUE(at::equal(rotated_q.slice(3, 2 * pairs), q.slice(3, 2 * pairs)));
      EXPECT_TRUE(at::equal(posenc::rotary(q, positions, f, options), rotated_q));
      EXPECT_TRUE(at::equal(posenc::rotary(q.contiguous(), positions, f, options), rotated_q));

      const auto [cos, sin] = posenc::rotary_tables(
          positions, f,
          RotaryTablesFuncOptions().attention_scaling(1.25).dtype(type == at::kDouble ? type : at::kFloat));
      const auto [fed_q, fed_k] = posenc::apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
      expect_near(fed_q, expected_q);
      expect_near(fed_k, expected_k);
      EXPECT_TRUE(at::equal(posenc::apply_rotary(k, cos, sin, interleaved, inverse), fed_k));

      const Tensor q1 = q.clone(), k1 = k.clone(), q2 = q.clone(), k2 = k.clone();
      posenc::rotary_qk_(q1, k1, positions, f, options);
      posenc::apply_rotary_qk_(q2, k2, cos, sin, interleaved, inverse);
      EXPECT_TRUE(at::equal(q1, rotated_q));
      EXPECT_TRUE(at::equal(k1, rotated_k));
      EXPECT_TRUE(at::equal(q2, fed_q));
      EXPECT_TRUE(at::equal(k2, fed_k));
    }
  }
}

TEST_P(Rotation, BackwardIsTheInverse) {
  const auto& [type, layout, interleaved] = GetParam();
  for (const int64_t pairs : kPairs) {
    SCOPED_TRACE(pairs);
    const Tensor q = make(layout, 2, 4, 5, 2 * pairs + 3, type).detach().set_requires_grad(true);
    const Tensor grad = make(layout, 2, 4, 5, 2 * pairs + 3, type), f = inv_freq(pairs);
    const auto options = RotaryFuncOptions().attention_scaling(0.75).interleaved(interleaved).offset(3);
    const Tensor y = posenc::rotary(q, std::nullopt, f, options);
    ASSERT_TRUE(y.grad_fn());
    const Tensor result = torch::autograd::grad({y}, {q}, {grad})[0];
    const auto inverse = RotaryFuncOptions(options).inverse(true);
    EXPECT_TRUE(at::equal(result, posenc::rotary(grad, std::nullopt, f, inverse)));
  }
}

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  const auto& [type, layout, interleaved] = info.param;
  const char* layouts[] = {"Contiguous", "Transposed", "Packed", "EverySecond"};
  return std::string(c10::toString(type)) + layouts[static_cast<int>(layout)] + (interleaved ? "Interleaved" : "Half");
}

INSTANTIATE_TEST_SUITE_P(Grid, Rotation,
                         testing::Combine(testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                                          testing::Values(Layout::contiguous, Layout::transposed, Layout::packed,
                                                          Layout::every_second),
                                          testing::Bool()),
                         name_of);

class RotaryOps : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(0);
    at::set_num_threads(1);
  }
};

TEST_F(RotaryOps, OffsetsEqualPositions) {
  const Tensor x = at::randn({2, 3, 5, 8}), f = inv_freq(4);
  const Tensor counted = at::arange(5, at::kLong);
  EXPECT_TRUE(
      at::equal(posenc::rotary(x, std::nullopt, f, RotaryFuncOptions().offset(9)), posenc::rotary(x, counted + 9, f)));
  const Tensor rows = at::tensor({4, -2}, at::kLong);
  EXPECT_TRUE(at::equal(posenc::rotary(x, std::nullopt, f, RotaryFuncOptions().offsets(rows)),
                        posenc::rotary(x, counted + rows.unsqueeze(1), f)));
}

TEST_F(RotaryOps, AxesChooseThePosition) {
  const Tensor x = at::randn({2, 3, 5, 8}), f = inv_freq(4), positions = at::randint(0, 50, {3, 2, 5}, at::kLong);
  const Tensor y = posenc::rotary(x, positions, f, RotaryFuncOptions().axes(std::vector<int64_t>{2, 0, 1, 1}));
  Tensor expected = x.to(at::kDouble);
  for (int64_t axis = 0; axis < 3; ++axis) {
    const Tensor chosen = f * (at::tensor({2, 0, 1, 1}, at::kLong) == axis);
    expected = reference::rotate(expected, positions[axis], chosen, 1.0, false, false);
  }
  expect_near(y, expected);
  const Tensor summed = at::stack({f, f * 0.5, f * 0.25});
  const Tensor total = at::einsum("abt,a->bt", {positions.to(at::kDouble), at::tensor({1.0, 0.5, 0.25}, at::kDouble)});
  expect_near(posenc::rotary(x, positions, summed), reference::rotate(x, total, f, 1.0, false, false));
}

TEST_F(RotaryOps, LargePositions) {
  const Tensor f = inv_freq(64, 500000.0);
  for (const int64_t position : {1000000L, 16777217L, 2147483653L, -131071L}) {
    const auto [cos, sin] = posenc::rotary_tables(at::full({1}, position, at::kLong), f);
    for (int64_t k = 0; k < 64; ++k) {
      const long double angle = static_cast<long double>(position) * f[k].item<double>();
      EXPECT_NEAR(cos[0][k].item<float>(), static_cast<double>(std::cos(angle)), 1e-6) << position << " pair " << k;
      EXPECT_NEAR(sin[0][k].item<float>(), static_cast<double>(std::sin(angle)), 1e-6) << position << " pair " << k;
    }
  }
}

TEST_F(RotaryOps, LargePositionsTurnBothWays) {
  const Tensor f = inv_freq(20, 500.0), x = at::randn({1, 2, 7, 40}, at::kDouble);
  const Tensor positions = at::tensor({3L, 5000L, 70000L, 1000000L, 40000000L, 4000000000L, -900001L}, at::kLong);
  for (const bool interleaved : {false, true}) {
    for (const bool inverse : {false, true}) {
      const auto options = RotaryFuncOptions().interleaved(interleaved).inverse(inverse);
      const Tensor expected = reference::rotate(x, positions, f, 1.0, interleaved, inverse);
      EXPECT_LT(reference::error(posenc::rotary(x.to(at::kFloat), positions, f, options), expected), 2e-6);
    }
  }
}

TEST_F(RotaryOps, Float64AnglesKeepTheirRoundingErrors) {
  const Tensor f = at::tensor({0.9123456789012345, 0.3}, at::kDouble);
  const Tensor positions = at::tensor({123457, 999983}, at::kLong);
  const auto [cos, sin] = posenc::rotary_tables(positions, f, RotaryTablesFuncOptions().dtype(at::kDouble));
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t k = 0; k < 2; ++k) {
      const long double angle = static_cast<long double>(positions[t].item<int64_t>()) * f[k].item<double>();
      EXPECT_NEAR(cos[t][k].item<double>(), static_cast<double>(std::cos(angle)), 1e-12) << t << " pair " << k;
      EXPECT_NEAR(sin[t][k].item<double>(), static_cast<double>(std::sin(angle)), 1e-12) << t << " pair " << k;
    }
  }
}

TEST_F(RotaryOps, GradientsMatchFiniteDifferences) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor positions = at::tensor({0.5, 3.0, -2.25}, options).set_requires_grad(true);
  const Tensor f = inv_freq(2).set_requires_grad(true), x = at::randn({2, 2, 3, 5}, options).set_requires_grad(true);
  const Tensor cos = at::randn({3, 2}, options).set_requires_grad(true);
  const Tensor sin = at::randn({3, 2}, options).set_requires_grad(true);
  const Tensor weight = at::randn({2, 2, 3, 5}, options);
  const auto table_free = [&](const std::vector<Tensor>& in) {
    return (posenc::rotary(in[0], in[1], in[2], RotaryFuncOptions().attention_scaling(1.5)).square() * weight).sum();
  };
  const auto table_fed = [&](const std::vector<Tensor>& in) {
    return (posenc::apply_rotary(in[0], in[1], in[2], true).square() * weight).sum();
  };
  const auto check = [](const auto& loss, std::vector<Tensor> inputs) {
    const auto grads = torch::autograd::grad({loss(inputs)}, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor original = inputs[i].detach();
      for (int64_t e = 0; e < original.numel(); ++e) {
        const auto shifted = [&](double step) {
          Tensor moved = original.clone();
          moved.view({-1})[e] += step;
          inputs[i] = moved;
          const double value = loss(inputs).template item<double>();
          inputs[i] = original;
          return value;
        };
        const double difference = (shifted(1e-6) - shifted(-1e-6)) / 2e-6;
        EXPECT_NEAR(grads[i].view({-1})[e].template item<double>(), difference, 1e-6 * (1 + std::abs(difference)))
            << "input " << i << " entry " << e;
      }
    }
  };
  check(table_free, {x, positions, f});
  check(table_fed, {x, cos, sin});
}

TEST_F(RotaryOps, SecondDerivative) {
  const Tensor x = at::randn({1, 1, 1, 2}, at::kDouble).set_requires_grad(true);
  const Tensor grad_out = at::tensor({1.0, 0.0}, at::kDouble).view({1, 1, 1, 2}).set_requires_grad(true);
  const Tensor y = posenc::rotary(x, at::ones({1}, at::kLong), at::ones({1}, at::kDouble));
  const Tensor grad_in = torch::autograd::grad({y}, {x}, {grad_out}, true, true)[0];
  const Tensor second = torch::autograd::grad({grad_in.select(3, 0).sum()}, {grad_out})[0].view({2});
  EXPECT_NEAR(second[0].item<double>(), 0.5403023, 1e-7);
  EXPECT_NEAR(second[1].item<double>(), 0.8414710, 1e-7);
}

TEST_F(RotaryOps, AnyNumberOfThreadsGivesTheSameBits) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const Layout layout : {Layout::contiguous, Layout::transposed}) {
      const Tensor q = make(layout, 2, 8, 1031, 64, type), k = make(layout, 2, 2, 1031, 64, type), f = inv_freq(32);
      at::set_num_threads(1);
      const auto [q1, k1] = posenc::rotary_qk(q, k, std::nullopt, f);
      for (const int threads : {2, 4}) {
        at::set_num_threads(threads);
        const auto [qn, kn] = posenc::rotary_qk(q, k, std::nullopt, f);
        EXPECT_TRUE(at::equal(qn, q1));
        EXPECT_TRUE(at::equal(kn, k1));
      }
    }
  }
}

TEST_F(RotaryOps, EmptyTensors) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0, 3, 5, 8}, {2, 0, 5, 8}, {2, 3, 0, 8}}) {
    const Tensor x = at::randn(shape);
    EXPECT_EQ(posenc::rotary(x, std::nullopt, inv_freq(4)).sizes(), x.sizes());
    posenc::rotary_qk_(x, x.clone(), std::nullopt, inv_freq(4));
  }
}

TEST_F(RotaryOps, ErrorsNameOpArgumentRuleAndValue) {
  const Tensor x = at::randn({2, 4, 5, 8}), f = inv_freq(4);
  expect_error(
      [&] { posenc::rotary(at::randn({2, 8, 16, 48}), std::nullopt, inv_freq(32)); },
      "rotary: expected the last dimension of x to be at least the rotary width 64, but got x of shape [2, 8, 16, 48]");
  expect_error([&] { posenc::rotary(x[0], std::nullopt, f); }, "[4, 5, 8]");
  expect_error<c10::TypeError>([&] { posenc::rotary(x.to(at::kLong), std::nullopt, f); }, "Long");
  expect_error<c10::TypeError>([&] { posenc::rotary(x, std::nullopt, f.to(at::kHalf)); }, "inv_freq");
  expect_error([&] { posenc::rotary_qk(x, x, at::arange(4), f); }, "rotary_qk: expected positions");
  expect_error([&] { posenc::rotary_tables(std::nullopt, f); }, "length");
  const Tensor wide = at::randn({3, 34}), narrow = at::randn({1, 2, 3, 33});
  expect_error([&] { posenc::apply_rotary(narrow, wide, wide); }, "half the last dimension");
  expect_error<c10::Error>([&] { posenc::rotary_qk_(at::randn({2, 4, 5, 8}).set_requires_grad(true), x, {}, f); },
                           "rotary_qk_");
}

TEST_F(RotaryOps, DispatcherAndFunctionAreOne) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("posenc::apply_rotary", "")
                      .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, bool)>();
  const Tensor x = at::randn({2, 3, 5, 8}), cos = at::randn({5, 4}), sin = at::randn({5, 4});
  EXPECT_TRUE(at::equal(op.call(x, cos, sin, true, false), posenc::apply_rotary(x, cos, sin, true)));
}

}  // namespace
