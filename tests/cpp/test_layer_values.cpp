/// Absolute encodings and score encodings with tables, against formulas written out in float64, at lengths beyond a
/// tile of the kernels. Runs at each instruction-set level.

#include "module_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace {

using namespace posenc::nn;
using at::Tensor;
using reference::at;
using reference::Call;

constexpr int64_t kWidth = 8;

// Absolute encodings.

TEST(AbsoluteValues, SinusoidsOfEveryLayout) {
  constexpr int64_t kTokens = 130;
  for (const int64_t dim : {8, 9, 34}) {
    for (const auto layout :
         {SinusoidalLayout::kInterleaved, SinusoidalLayout::kConcatenated, SinusoidalLayout::kTensor2Tensor}) {
      const bool t2t = layout == SinusoidalLayout::kTensor2Tensor;
      const Tensor expected = at::zeros({2, kTokens, dim}, kWide);
      const int64_t sines = t2t ? dim / 2 : (dim + 1) / 2;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t t = 0; t < kTokens; ++t) {
          const auto p = static_cast<double>(t + (b == 0 ? 3 : 400));
          for (int64_t k = 0; k < sines; ++k) {
            const double exponent = t2t ? static_cast<double>(k) / static_cast<double>(dim / 2 - 1)
                                        : 2.0 * static_cast<double>(k) / static_cast<double>(dim);
            const double angle = p * std::pow(700.0, -exponent);
            const bool interleaved = layout == SinusoidalLayout::kInterleaved;
            *at(expected, {b, t, interleaved ? 2 * k : k}) = std::sin(angle);
            const int64_t cosine = interleaved ? 2 * k + 1 : sines + k;
            if (cosine < dim) {
              *at(expected, {b, t, cosine}) = std::cos(angle);
            }
          }
        }
      }
      const Tensor zeros = at::zeros({2, kTokens, dim}, kWide);
      Sinusoidal module(SinusoidalOptions(dim).base(700.0).layout(layout));
      const auto call = AbsoluteForwardOptions().offsets(at::tensor({3, 400}, at::kLong));
      expect_near(module->forward(zeros, call), expected, 1e-12);
      expect_near(module->forward(zeros.to(at::kFloat), call), expected, 1e-6);
      if (layout == SinusoidalLayout::kInterleaved) {
        CAPE cape(CAPEOptions(dim).base(700.0));
        cape->eval();
        expect_near(cape->forward(zeros, call), expected, 1e-12);
      }
    }
  }
}

/// The positions at which CAPE placed tokens, for positions of less than half a turn.
Tensor cape_positions(const CAPEOptions& options, int64_t batch, int64_t tokens, double unit) {
  CAPE module(CAPEOptions(options).base(1.0));  // every pair turns by 1 radian per token
  const auto given = AbsoluteForwardOptions().positions(at::arange(tokens, kWide) * unit);
  const Tensor y = module->forward(at::zeros({batch, tokens, options.dim()}, kWide), given);
  return at::atan2(y.select(2, 0), y.select(2, 1));
}

TEST(AbsoluteValues, CapeDrawsWhatItsOptionsSay) {
  at::manual_seed(8);
  const auto still = [] { return CAPEOptions(2).max_global_shift(0.0).max_local_shift(0.0).max_global_scaling(1.0); };
  const Tensor p = at::arange(5, kWide) * 0.25;

  // A shift per token, within the bound on both sides.
  const Tensor local = cape_positions(still().max_local_shift(0.5), 400, 5, 0.25) - p;
  EXPECT_LE(local.abs().max().item<double>(), 0.5);
  EXPECT_NEAR(local.mean().item<double>(), 0.0, 0.04);
  EXPECT_NEAR(local.std().item<double>(), 0.5 / std::sqrt(3.0), 0.02);
  EXPECT_GT((local.select(1, 0) - local.select(1, 1)).std().item<double>(), 0.3) << "each token has its own";

  // A shift per sequence.
  const Tensor global = cape_positions(still().max_global_shift(1.0), 400, 5, 0.25) - p;
  EXPECT_LE(global.abs().max().item<double>(), 1.0);
  EXPECT_NEAR(global.select(1, 0).std().item<double>(), 1.0 / std::sqrt(3.0), 0.05);
  expect_near(global, global.narrow(1, 0, 1).expand({400, 5}), 1e-12);

  // A factor per sequence, whose logarithm is uniform.
  const Tensor ratio = (cape_positions(still().max_global_scaling(2.0), 400, 5, 0.25) / p).narrow(1, 1, 4);
  expect_near(ratio, ratio.narrow(1, 0, 1).expand({400, 4}), 1e-12);
  const Tensor logarithm = ratio.select(1, 0).log();
  EXPECT_LE(logarithm.abs().max().item<double>(), std::log(2.0) + 1e-12);
  EXPECT_NEAR(logarithm.mean().item<double>(), 0.0, 0.07);
  EXPECT_NEAR(logarithm.std().item<double>(), std::log(2.0) / std::sqrt(3.0), 0.03);

  // The factor multiplies the shifts too; the mean goes first.
  const auto both = still().max_global_shift(0.4).max_global_scaling(1.5);
  const Tensor moved = cape_positions(both, 400, 2, 0.0);
  EXPECT_GT(moved.abs().max().item<double>(), 0.4);
  EXPECT_LE(moved.abs().max().item<double>(), 0.4 * 1.5 + 1e-12);
  expect_near(cape_positions(still().centre(true), 2, 5, 0.25), (p - 0.5).expand({2, 5}), 1e-12);
}

// Score encodings with tables: that the modules pass their options on.

TEST(ScoreModules, ShawEqualsTheFormula) {
  at::manual_seed(9);
  for (const bool per_head : {false, true}) {
    auto options = ShawRelativeOptions(kWidth, 20);
    auto module = prepared(ShawRelative(per_head ? options.num_heads(4) : options.values(false)));
    Call call;
    call.inputs.q = at::randn({2, 4, 150, kWidth}, kWide);
    call.inputs.k = at::randn({2, 2, 190, kWidth}, kWide);
    call.inputs.v = at::randn({2, 2, 190, kWidth}, kWide);
    call.inputs.rel_k = module->rel_k.detach();
    call.inputs.rel_v = per_head ? module->rel_v.detach() : Tensor();
    call.is_causal = true;
    call.window = 130;
    call.key_mask = at::rand({2, 190}) > 0.2;
    call.scale = 0.2;
    const auto options_of_call = causal().window(130).key_mask(call.key_mask).scale(0.2);
    const auto& in = call.inputs;
    const auto [out, lse] = module->attend_with_lse(in.q, in.k, in.v, options_of_call);
    const auto expected = reference::attention(call);
    expect_near(out, expected.out, 1e-12);
    expect_near(lse, expected.lse, 1e-12);
    expect_near(module->logits(in.q, in.k, options_of_call), reference::logits(call), 1e-12);
  }
}

TEST(ScoreModules, DisentangledEqualsTheFormula) {
  at::manual_seed(11);
  for (const bool with_buckets : {false, true}) {
    auto options = DisentangledRelativeOptions(kWidth, 4, 60);
    auto module = prepared(DisentangledRelative(with_buckets ? options.buckets(32) : options));
    Call call;
    call.inputs.q = at::randn({2, 4, 150, kWidth}, kWide);
    call.inputs.k = at::randn({2, 2, 190, kWidth}, kWide);
    call.inputs.v = at::randn({2, 2, 190, kWidth}, kWide);
    // Rows of distances q - k in the order of k - q. DeBERTa v2's bucket beyond the 16th distance of 32.
    std::vector<int64_t> rows;
    const int64_t span = with_buckets ? 32 : 60;
    for (int64_t distance = 60; distance >= -60; --distance) {
      const int64_t far = std::abs(distance);
      int64_t bucket = far;
      if (with_buckets && far > 16) {
        bucket = static_cast<int64_t>(std::ceil(std::log(far / 16.0) / std::log(59.0 / 16.0) * 15.0 - 1e-6)) + 16;
      }
      rows.push_back(std::clamp(span + (distance < 0 ? -bucket : bucket), int64_t{0}, 2 * span - 1));
    }
    const Tensor index = at::tensor(rows, at::kLong);
    call.inputs.rel_k = module->rel_k.detach().index_select(1, index);
    call.inputs.rel_q = module->rel_q.detach().index_select(1, index);
    call.key_mask = at::rand({2, 190}) > 0.2;
    call.scale = 1.0 / std::sqrt(3.0 * kWidth);
    const auto options_of_call = AttendOptions().key_mask(call.key_mask);
    const auto& in = call.inputs;
    const auto [out, lse] = module->attend_with_lse(in.q, in.k, in.v, options_of_call);
    const auto expected = reference::attention(call);
    expect_near(out, expected.out, 1e-12);
    expect_near(lse, expected.lse, 1e-12);
    expect_near(module->logits(in.q, in.k, options_of_call), reference::logits(call), 1e-12);
  }
}

TEST(ScoreModules, CopeEqualsTheFormula) {
  at::manual_seed(10);
  for (const auto gate : {CoPEGate::kLogits, CoPEGate::kKey, CoPEGate::kValue}) {
    for (const bool scaled : {false, true}) {
      const auto options =
          CoPEOptions(kWidth, 30).num_heads(4).gate(gate).gate_bias(-0.4).scale_position_logits(scaled);
      auto module = prepared(CoPE(options));
      Call call;
      call.inputs.q = at::randn({2, 4, 120, kWidth}, kWide);
      call.inputs.k = at::randn({2, 2, 190, kWidth}, kWide);
      call.inputs.v = at::randn({2, 2, 190, kWidth}, kWide);
      call.inputs.pos_emb = module->pos_emb.detach();
      call.inputs.gate_bias = module->gate_bias.detach();
      call.scale_position_logits = scaled;
      call.key_mask = at::rand({2, 190}) > 0.2;
      auto options_of_call = AttendOptions().key_mask(call.key_mask);
      if (gate == CoPEGate::kKey) {
        call.inputs.gate_key = at::randn({2, 2, 190, kWidth}, kWide);
        options_of_call.gate_key(call.inputs.gate_key);
      } else if (gate == CoPEGate::kValue) {
        call.inputs.gate_key = call.inputs.v;
      }
      const auto [out, lse] = module->attend_with_lse(call.inputs.q, call.inputs.k, call.inputs.v, options_of_call);
      const auto expected = reference::attention(call);
      expect_near(out, expected.out, 1e-12);
      expect_near(lse, expected.lse, 1e-12);
    }
  }
}

TEST(ScoreModules, ForgettingEqualsTheFormula) {
  at::manual_seed(11);
  constexpr int64_t kTokens = 210, kEmbed = 5;
  for (const auto kind : {ForgettingKind::kFoX, ForgettingKind::kCABLE}) {
    auto module = prepared(ForgettingBias(ForgettingBiasOptions(kEmbed, 4).kind(kind)));
    const Tensor x = at::randn({2, kTokens, kEmbed}, kWide), weight = reference::wide(module->weight);
    const Tensor decay = at::zeros({2, 4, kTokens}, kWide);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t t = 0; t < kTokens; ++t) {
          const double z = reference::dot(at(x, {b, t, 0}), at(weight, {h, 0}), kEmbed);
          *at(decay, {b, h, t}) = kind == ForgettingKind::kFoX
                                      ? -std::log1p(std::exp(-(z + *at(reference::wide(module->bias), {h}))))
                                      : -std::log1p(std::exp(z));
        }
      }
    }
    const Tensor computed = module->forward(x);
    expect_near(computed, decay, 1e-13);

    Call call;
    call.inputs.q = at::randn({2, 4, kTokens, kWidth}, kWide);
    call.inputs.k = at::randn({2, 2, kTokens, kWidth}, kWide);
    call.inputs.v = at::randn({2, 2, kTokens, kWidth}, kWide);
    call.is_causal = true;
    call.key_mask = at::rand({2, kTokens}) > 0.2;
    call.segment_ids = at::arange(kTokens).ge(100).to(at::kLong).expand({2, kTokens});
    call.inputs.log_decay = decay * call.key_mask.unsqueeze(1);  // hidden tokens add nothing
    const auto options = AttendOptions().log_decay(computed).key_mask(call.key_mask).segment_ids(call.segment_ids);
    const auto [out, lse] = module->attend_with_lse(call.inputs.q, call.inputs.k, call.inputs.v, options);
    const auto expected = reference::attention(call);
    expect_near(out, expected.out, 1e-11);
    expect_near(lse, expected.lse, 1e-11);

    // Through the layer's input to the parameters.
    const Tensor grad = at::randn_like(out);
    const auto of_inputs = reference::gradients(call, grad, at::zeros_like(lse));
    const Tensor of_weight = at::zeros_like(weight);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t t = 0; t < kTokens; ++t) {
          const double kept = std::exp(*at(decay, {b, h, t}));  // sigmoid of what the logarithm was taken of
          const double sign = kind == ForgettingKind::kFoX ? 1.0 : -1.0;
          const double g = at::equal(call.key_mask[b][t], at::scalar_tensor(true, at::kBool)) ? 1.0 : 0.0;
          reference::add(g * sign * (1 - kept) * *at(of_inputs.log_decay, {b, h, t}), at(x, {b, t, 0}), 1, kEmbed,
                         at(of_weight, {h, 0}));
        }
      }
    }
    expect_near(torch::autograd::grad({out}, {module->weight}, {grad})[0], of_weight, 1e-10);
  }
}

}  // namespace
