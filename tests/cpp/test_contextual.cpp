#include "support.h"

#include <posenc/posenc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>

namespace {

using posenc::nn::AttendOptions;
using posenc::nn::CoPE;
using posenc::nn::CoPEGate;
using posenc::nn::CoPEOptions;
using posenc::nn::DisentangledRelative;
using posenc::nn::DisentangledRelativeOptions;
using posenc::nn::ReRoPE;
using posenc::nn::ReRoPEOptions;
using posenc::nn::ScoreEncoding;
using posenc::nn::SelfExtend;
using posenc::nn::SelfExtendOptions;
using posenc::nn::ShawRelative;
using posenc::nn::ShawRelativeOptions;
using posenc::nn::TransformerXL;
using posenc::nn::TransformerXLLayout;
using posenc::nn::TransformerXLOptions;

constexpr int64_t kHeads = 4, kGroups = 2, kWidth = 8;

struct Operands {
  torch::Tensor q, k, v;
};

Operands operands(int64_t queries, int64_t keys, torch::Dtype dtype = torch::kDouble) {
  return {torch::randn({2, kHeads, queries, kWidth}, dtype), torch::randn({2, kGroups, keys, kWidth}, dtype),
          torch::randn({2, kGroups, keys, kWidth}, dtype)};
}

template <typename Module>
Module with_parameters(Module module) {
  module->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.normal_();
  }
  return module;
}

/// What every module promises; `causal` makes a call causal.
template <typename Module>
void expect_module_promises(Module module, Module other, const AttendOptions& causal) {
  module = with_parameters(module);
  const auto [q, k, v] = operands(7, 7);
  const auto [out, lse] = module->attend_with_lse(q, k, v, causal);
  EXPECT_EQ(out.sizes(), q.sizes());
  EXPECT_TRUE(torch::equal(module->attend(q, k, v, causal), out));
  EXPECT_TRUE(torch::allclose(torch::logsumexp(module->logits(q, k, causal), -1), lse, 1e-12, 1e-12));

  // Attention finds the family by a cast from the base of all modules.
  const std::shared_ptr<torch::nn::Module> base = module.ptr();
  auto* encoding = dynamic_cast<ScoreEncoding*>(base.get());
  ASSERT_NE(encoding, nullptr);
  EXPECT_TRUE(torch::equal(encoding->attend(q, k, v, causal), out));

  // A clone is deep and equal; what one saves the other loads.
  Module clone(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone()));
  EXPECT_TRUE(torch::equal(clone->attend(q, k, v, causal), out));
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : clone->parameters()) {
      parameter.zero_();
    }
  }
  EXPECT_TRUE(torch::equal(module->attend(q, k, v, causal), out));
  std::stringstream stored;
  torch::save(module, stored);
  other->to(torch::kDouble);
  torch::load(other, stored);
  EXPECT_TRUE(torch::equal(other->attend(q, k, v, causal), out));
  EXPECT_TRUE(module->buffers().empty());

  // Decoding from unrotated keys.
  for (int64_t t = 0; t < 7; ++t) {
    const auto row = module->attend(q.narrow(2, t, 1), k.narrow(2, 0, t + 1), v.narrow(2, 0, t + 1), causal);
    EXPECT_TRUE(torch::allclose(row, out.narrow(2, t, 1), 1e-12, 1e-12));
  }

  // Gradients reach everything; a half-width module takes half-width tensors.
  const auto query = q.clone().requires_grad_();
  module->attend(query, k, v, causal).square().sum().backward();
  EXPECT_GT(query.grad().abs().sum().template item<double>(), 0);
  for (const auto& parameter : module->parameters()) {
    EXPECT_GT(parameter.grad().abs().sum().template item<double>(), 0);
  }
  module->to(torch::kHalf);
  EXPECT_EQ(module->attend(q.to(torch::kHalf), k.to(torch::kHalf), v.to(torch::kHalf), causal).scalar_type(),
            torch::kHalf);

  const auto dropout = message_of([&] { module->logits(q, k, AttendOptions().dropout_p(0.5)); });
  expect_contains(dropout, "expected no dropout_p in logits");
}

TEST(ContextualModules, Promises) {
  torch::manual_seed(0);
  const auto causal = AttendOptions().is_causal(true);
  const auto shaw = ShawRelativeOptions(kWidth, 3).num_heads(kHeads);
  expect_module_promises(ShawRelative(shaw), ShawRelative(shaw), causal);
  const auto scores_only = ShawRelativeOptions(kWidth, 3).values(false);
  expect_module_promises(ShawRelative(scores_only), ShawRelative(scores_only), causal);
  const auto deberta = DisentangledRelativeOptions(kWidth, kHeads, 7).buckets(4);
  expect_module_promises(DisentangledRelative(deberta), DisentangledRelative(deberta), causal);
  const auto sorted = TransformerXLOptions(kWidth, kHeads);
  expect_module_promises(TransformerXL(sorted), TransformerXL(sorted), causal);
  const auto turns = TransformerXLOptions(kWidth, kHeads).pos_dim(6).layout(TransformerXLLayout::kInterleaved);
  expect_module_promises(TransformerXL(turns), TransformerXL(turns), causal);
  const auto plain = ReRoPEOptions(kWidth, 3).log_scale_length(4);
  expect_module_promises(ReRoPE(plain), ReRoPE(plain), {});
  const auto leaky = ReRoPEOptions(kWidth, 3).leak(2.5).interleaved(true);
  expect_module_promises(ReRoPE(leaky), ReRoPE(leaky), causal);
  const auto grouped = SelfExtendOptions(kWidth).group(3).window(4);
  expect_module_promises(SelfExtend(grouped), SelfExtend(grouped), {});
  const auto cope = CoPEOptions(kWidth, 4).num_heads(kHeads).gate_bias(0.3);
  expect_module_promises(CoPE(cope), CoPE(cope), {});
  expect_module_promises(CoPE(cope), CoPE(cope), causal);
  const auto scaled = CoPEOptions(kWidth, 4).scale_position_logits(true);
  expect_module_promises(CoPE(scaled), CoPE(scaled), {});
}

TEST(ContextualModules, FamilyFacts) {
  EXPECT_TRUE(ReRoPE(8)->rotates());
  EXPECT_TRUE(SelfExtend(8)->rotates());
  EXPECT_TRUE(SelfExtend(8)->takes_positions());
  EXPECT_FALSE(ShawRelative(8, 2)->rotates());
  EXPECT_FALSE(ShawRelative(8, 2)->always_causal());
  EXPECT_FALSE(TransformerXL(8, 2)->always_causal());
  EXPECT_TRUE(TransformerXL(8, 2)->takes_positions());
  EXPECT_TRUE(CoPE(8, 4)->always_causal());
  EXPECT_FALSE(CoPE(8, 4)->takes_positions());
  EXPECT_FALSE(CoPE(8, 4)->needs_gate_key());
  EXPECT_TRUE(CoPE(CoPEOptions(8, 4).gate(CoPEGate::kKey))->needs_gate_key());
  EXPECT_FALSE(CoPE(CoPEOptions(8, 4).gate(CoPEGate::kValue))->needs_gate_key());
}

TEST(ContextualModules, PrettyPrintShowsEveryOption) {
  EXPECT_EQ(printed(ShawRelative(8, 2)), "posenc::nn::ShawRelative(head_dim=8, max_distance=2, values=true)");
  EXPECT_EQ(printed(ShawRelative(ShawRelativeOptions(8, 2).num_heads(4).values(false))),
            "posenc::nn::ShawRelative(head_dim=8, max_distance=2, num_heads=4, values=false)");
  EXPECT_EQ(printed(DisentangledRelative(DisentangledRelativeOptions(8, 4, 12).buckets(8).p2c(false))),
            "posenc::nn::DisentangledRelative(head_dim=8, num_heads=4, max_distance=12, buckets=8, c2p=true, "
            "p2c=false)");
  EXPECT_EQ(printed(TransformerXL(8, 4)),
            "posenc::nn::TransformerXL(head_dim=8, num_heads=4, pos_dim=32, layout=concatenated)");
  EXPECT_EQ(printed(TransformerXL(TransformerXLOptions(8, 4).pos_dim(6).layout(TransformerXLLayout::kInterleaved))),
            "posenc::nn::TransformerXL(head_dim=8, num_heads=4, pos_dim=6, layout=interleaved)");
  EXPECT_EQ(printed(ReRoPE(8)), "posenc::nn::ReRoPE(head_dim=8, window=512, base=10000, interleaved=false)");
  EXPECT_EQ(printed(ReRoPE(ReRoPEOptions(8, 4).leak(16.0).base(500.0).interleaved(true).log_scale_length(64))),
            "posenc::nn::ReRoPE(head_dim=8, window=4, leak=16, base=500, interleaved=true, log_scale_length=64)");
  EXPECT_EQ(printed(SelfExtend(8)),
            "posenc::nn::SelfExtend(head_dim=8, group=8, window=1024, base=10000, interleaved=false)");
  EXPECT_EQ(printed(CoPE(8, 4)),
            "posenc::nn::CoPE(head_dim=8, max_positions=4, scale_position_logits=false, gate=logits)");
  EXPECT_EQ(printed(CoPE(CoPEOptions(8, 4).num_heads(2).scale_position_logits(true).gate(CoPEGate::kKey).gate_bias(1))),
            "posenc::nn::CoPE(head_dim=8, max_positions=4, num_heads=2, scale_position_logits=true, gate=key, "
            "gate_bias=1)");
}

TEST(ContextualModules, WrongOptionsAndCallsNameTheModule) {
  expect_error([] { ShawRelative(0, 2); }, "ShawRelative: expected head_dim to be at least 1, but got 0");
  expect_error([] { DisentangledRelative(8, 2, 0); }, "DisentangledRelative: expected max_distance to be at least 1");
  expect_error([] { DisentangledRelative(DisentangledRelativeOptions(8, 2, 5).c2p(false).p2c(false)); },
               "DisentangledRelative: expected c2p or p2c, but got neither");
  expect_error([] { DisentangledRelative(DisentangledRelativeOptions(8, 2, 5).buckets(8)); },
               "DisentangledRelative: expected max_distance to be larger than buckets / 2 + 1, 5");
  expect_error([] { ReRoPE(7); }, "ReRoPE: expected head_dim to be even, but got 7");
  expect_error([] { ReRoPE(ReRoPEOptions(8).leak(0.5)); }, "ReRoPE: expected leak to be at least 1");
  expect_error([] { SelfExtend(SelfExtendOptions(8).group(0)); }, "SelfExtend: expected group to be at least 1");
  expect_error([] { CoPE(CoPEOptions(8, 4).gate_bias(0.0)); }, "CoPE: expected num_heads with gate_bias");

  const auto [q, k, v] = operands(5, 5);
  const auto narrow = q.narrow(3, 0, 6), positions = torch::arange(5);
  ShawRelative shaw(ShawRelativeOptions(kWidth, 2).num_heads(3));
  expect_error([&] { shaw->attend(narrow, k, v); }, "ShawRelative: expected query of shape");
  expect_error([&] { shaw->attend(q, k, v); }, "with num_heads 3, but got [2, 4, 5, 8]");
  expect_error([&] { ReRoPE(kWidth)->attend(narrow, k, v); }, "ReRoPE: expected query of shape");
  TransformerXL relative(kWidth, 3);
  expect_error([&] { relative->attend(narrow, k, v); }, "TransformerXL: expected query of shape");
  expect_error([&] { relative->logits(q, k); }, "with num_heads 3, but got [2, 4, 5, 8]");
  expect_error([] { TransformerXL(3, 3); },
               "TransformerXL: expected pos_dim, num_heads * head_dim, to be even, but got 9");
  CoPE cope(kWidth, 4);
  expect_error([&] { cope->attend(narrow, k, v); }, "CoPE: expected query of shape");

  // What a module cannot honour is refused.
  const auto gated = AttendOptions().gate_key(k);
  expect_error([&] { ShawRelative(kWidth, 2)->attend(q, k, v, gated); }, "ShawRelative: expected no gate_key");
  expect_error([&] { DisentangledRelative(kWidth, kHeads, 2)->attend(q, k, v, gated); },
               "DisentangledRelative: expected no gate_key");
  expect_error([&] { TransformerXL(kWidth, kHeads)->attend(q, k, v, gated); }, "TransformerXL: expected no gate_key");
  expect_error([&] { ReRoPE(kWidth)->attend(q, k, v, gated); }, "ReRoPE: expected no gate_key");
  expect_error([&] { SelfExtend(kWidth)->logits(q, k, gated); }, "SelfExtend: expected no gate_key");
  expect_error([&] { cope->attend(q, k, v, gated); }, "CoPE: expected no gate_key with gate='logits'");
  expect_error([&] { cope->attend(q, k, v, AttendOptions().is_causal(false)); },
               "CoPE: expected is_causal not to be false");
  expect_error([&] { cope->attend(q, k, v, AttendOptions().q_positions(positions)); },
               "CoPE: expected no q_positions or k_positions");
  expect_error([&] { cope->logits(q, k, AttendOptions().k_positions(positions)); },
               "CoPE: expected no q_positions or k_positions");
  CoPE by_key(CoPEOptions(kWidth, 4).gate(CoPEGate::kKey)), by_value(CoPEOptions(kWidth, 4).gate(CoPEGate::kValue));
  expect_error([&] { by_key->attend(q, k, v); }, "CoPE: expected gate_key (batch, kv_heads, keys, head_dim)");
  expect_error([&] { by_value->attend(q, k, v, gated); }, "CoPE: expected no gate_key with gate='value'");
  expect_error([&] { by_value->logits(q, k); }, "CoPE: expected gate_key, the values, in logits");
  expect_error<c10::TypeError>(
      [&] { ReRoPE(kWidth)->attend(q, k, v, AttendOptions().q_positions(positions.to(torch::kFloat))); },
      "ReRoPE: expected q_positions to be an integer type");
}

TEST(CoPE, ValuesWorkedOutByHand) {
  CoPE module(1, 3);
  module->to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    module->pos_emb.copy_(torch::tensor({0.0, 1.0, 3.0}).view({1, 1, 3}));
  }
  const auto q = torch::ones({1, 1, 3, 1}, torch::kDouble);
  const auto k = torch::tensor({0.2, -0.4, 0.6}, torch::kDouble).view({1, 1, 3, 1}).requires_grad_();
  const auto v = torch::tensor({1.0, 0.0, 0.0}, torch::kDouble).view({1, 1, 3, 1});
  const auto out = module->attend(q, k, v).select(2, 2);
  EXPECT_NEAR(out.item<double>(), 0.666653, 1e-6);
  out.backward();
  EXPECT_TRUE(
      torch::allclose(k.grad().flatten(), torch::tensor({0.332236, -0.013458, -0.108750}, torch::kDouble), 0, 1e-6));
  EXPECT_TRUE(torch::allclose(module->pos_emb.grad().flatten(),
                              torch::tensor({-0.049966, -0.078845, 0.128811}, torch::kDouble), 0, 1e-6));
}

TEST(CoPE, ModuleFormEqualsTheFusedForm) {
  auto module = with_parameters(CoPE(CoPEOptions(kWidth, 4).num_heads(kHeads).gate_bias(-0.2)));
  const auto [q, k, v] = operands(7, 7);
  const auto keys = k.repeat_interleave(kHeads / kGroups, 1), values = v.repeat_interleave(kHeads / kGroups, 1);
  const auto mask = torch::full({7, 7}, -std::numeric_limits<double>::infinity(), torch::kDouble).triu(1);
  const auto scores = torch::matmul(q, keys.transpose(-1, -2)) / std::sqrt(kWidth) + mask;
  const auto weights = torch::softmax(scores + module->forward(q, scores), -1);
  EXPECT_TRUE(torch::allclose(torch::matmul(weights, values), module->attend(q, k, v), 1e-12, 1e-12));
}

TEST(CoPE, GatesFromValuesAndFromKeysOfTheirOwn) {
  auto by_value = with_parameters(CoPE(CoPEOptions(kWidth, 4).gate(CoPEGate::kValue)));
  CoPE by_key(CoPEOptions(kWidth, 4).gate(CoPEGate::kKey));
  by_key->to(torch::kDouble);
  {
    torch::NoGradGuard no_grad;
    by_key->pos_emb.copy_(by_value->pos_emb);
  }
  const auto [q, k, v] = operands(5, 5);
  const auto gated = AttendOptions().gate_key(v);
  EXPECT_TRUE(torch::equal(by_value->attend(q, k, v), by_key->attend(q, k, v, gated)));
  EXPECT_TRUE(torch::equal(by_value->logits(q, k, gated), by_key->logits(q, k, gated)));
}

TEST(CoPE, ResetParametersGivesTheInitialValues) {
  auto module = with_parameters(CoPE(CoPEOptions(4, 3).num_heads(2).gate_bias(-1.5)));
  module->reset_parameters();
  EXPECT_TRUE(torch::equal(module->pos_emb, torch::zeros({2, 4, 3}, torch::kDouble)));
  EXPECT_TRUE(torch::equal(module->gate_bias, torch::full({2}, -1.5, torch::kDouble)));
  EXPECT_FALSE(CoPE(4, 3)->gate_bias.defined());
}

TEST(PiecewiseModules, SidesAndThreshold) {
  const auto [q, k, v] = operands(3, 5);
  ReRoPE module(kWidth, 7);
  EXPECT_EQ(module->threshold(), 7);
  EXPECT_FALSE(module->far_inv_freq().defined());
  const auto sides = module->sides(q, k);
  EXPECT_TRUE(sides.k_far.is_same(k));
  EXPECT_TRUE(torch::equal(sides.q_near,
                           posenc::rotary(q, std::nullopt, module->inv_freq(), posenc::RotaryFuncOptions().offset(2))));

  ReRoPE leaky(ReRoPEOptions(kWidth, 7).leak(4.0));
  EXPECT_TRUE(torch::equal(leaky->far_inv_freq() * 4.0, leaky->inv_freq()));
}

TEST(PiecewiseModules, NothingFarIsRotary) {
  const auto [q, k, v] = operands(9, 9);
  posenc::nn::Rotary rope(kWidth);
  const auto [turned_q, turned_k] = rope->forward_qk(q, k);
  const auto expected = posenc::attention(turned_q, turned_k, v, posenc::AttentionFuncOptions().is_causal(true));
  EXPECT_TRUE(torch::allclose(ReRoPE(kWidth, 9)->attend(q, k, v), expected, 1e-12, 1e-12));
  EXPECT_TRUE(
      torch::allclose(SelfExtend(SelfExtendOptions(kWidth).window(9))->attend(q, k, v), expected, 1e-12, 1e-12));
  EXPECT_TRUE(torch::allclose(SelfExtend(SelfExtendOptions(kWidth).group(1).window(2))->attend(q, k, v), expected,
                              1e-12, 1e-12));
}

TEST(TransformerXL, TheFormulaOfThePaper) {
  torch::manual_seed(0);
  const auto heads = operands(3, 5);
  const auto [q, k] = std::pair(heads.q[1], heads.k[1]);
  for (const bool interleaved : {false, true}) {
    const auto layout = interleaved ? TransformerXLLayout::kInterleaved : TransformerXLLayout::kConcatenated;
    auto module = with_parameters(TransformerXL(TransformerXLOptions(kWidth, kHeads).pos_dim(4).layout(layout)));
    const auto expect_formula = [&](const AttendOptions& call, const torch::Tensor& i_at, const torch::Tensor& j_at) {
      const auto scores = module->logits(heads.q, heads.k, call)[1];
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto weight = module->pos_proj.narrow(0, h * kWidth, kWidth);
        for (int64_t i = 0; i < 3; ++i) {
          for (int64_t j = 0; j < 5; ++j) {
            // Distances are the query's position minus the key's.
            const auto n = static_cast<double>(i_at[i].item<int64_t>() - j_at[j].item<int64_t>()), slow = n * 0.01;
            const std::vector<double> columns{std::sin(n), interleaved ? std::cos(n) : std::sin(slow),
                                              interleaved ? std::sin(slow) : std::cos(n), std::cos(slow)};
            const auto r = weight.mv(torch::tensor(columns, torch::kDouble));
            const auto query = q[h][i], key = k[h * kGroups / kHeads][j];
            const auto score = (query + module->content_bias[h]).dot(key) + (query + module->position_bias[h]).dot(r);
            EXPECT_NEAR(scores[h][i][j].item<double>(), score.item<double>() / std::sqrt(1.0 * kWidth), 1e-11);
          }
        }
      }
    };
    expect_formula({}, torch::arange(2, 5), torch::arange(5));
    const auto i = torch::arange(3) * 4, j = torch::arange(5) + 20;
    expect_formula(AttendOptions().q_positions(i).k_positions(j), i, j);
  }
}

TEST(TransformerXL, WhatHidesKeysChangesNoScoreOfTheOthers) {
  torch::manual_seed(0);
  const auto heads = operands(6, 6);
  auto module = with_parameters(TransformerXL(kWidth, kHeads));
  const auto everything = module->logits(heads.q, heads.k);
  const auto blocks = torch::tensor({{0, 0, 0, -1, 1, 1}}, torch::kLong).expand({2, 6});
  for (const auto& call :
       {AttendOptions().window(3), AttendOptions().window(2).is_causal(true), AttendOptions().is_causal(true),
        AttendOptions().window_left(1).window_right(3), AttendOptions().is_causal(true).block_ids(blocks)}) {
    const auto some = module->logits(heads.q, heads.k, call);
    const auto seen = some.isfinite();
    EXPECT_LT(seen.sum().item<int64_t>(), seen.numel());
    EXPECT_TRUE(torch::allclose(some.masked_select(seen), everything.masked_select(seen), 1e-12, 1e-12));
  }
}

TEST(TransformerXL, InitialParameters) {
  torch::manual_seed(0);
  TransformerXL module(64, 8);
  for (auto& parameter : module->parameters()) {
    EXPECT_NEAR(parameter.std().item<double>(), 0.02, 0.002);
  }
  EXPECT_EQ(module->pos_proj.sizes(), at::IntArrayRef({512, 512}));
}

TEST(ShawRelative, InitialBound) {
  torch::manual_seed(1);
  ShawRelative module(300, 100);
  const double bound = std::sqrt(6.0 / 501);
  EXPECT_DOUBLE_EQ(posenc::nn::initial_bound(module->options), bound);
  EXPECT_LE(module->rel_k.abs().max().item<double>(), bound);
  EXPECT_GT(module->rel_v.abs().max().item<double>(), 0.99 * bound);
  EXPECT_FALSE(torch::equal(module->rel_k, module->rel_v));
}

}  // namespace
