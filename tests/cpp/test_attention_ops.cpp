/// The attention ops from C++, apart from their values: dropout, rows that see nothing, numbers that are none, threads,
/// memory that threads keep, errors. Runs at each instruction-set level.

#include "attention_cases.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

using posenc::attention;
using posenc::AttentionFuncOptions;

// Dropout.

/// What dropout multiplies the weights of `call` by in a call after manual_seed(seed): with values that are the
/// identity each output is one weight.
Tensor kept(Call call, uint64_t seed, double p) {
  const int64_t keys = call.inputs.k.size(2);
  call.inputs.v = at::eye(keys, kWide).expand({call.inputs.k.size(0), call.inputs.k.size(1), keys, keys});
  at::manual_seed(seed);
  const Tensor dropped = std::get<0>(run(call, call.inputs, p));
  const Tensor whole = std::get<0>(run(call, call.inputs));
  return at::where(whole > 0, dropped / whole, 0.0);
}

std::vector<Term> terms_with_dropout() {
  std::vector<Term> some;
  for (const Term& term : terms()) {
    if (term.name == "Plain" || term.name == "SlopesTableAndBias" || term.name == "SlopesAndDecay" ||
        term.name == "Piecewise" || term.name == "CoPEOfGateKeys" || term.name == "ShawKeysOnly") {
      some.push_back(term);
    }
  }
  return some;
}

const std::vector<Setting>& dropout_settings() {
  static const std::vector<Setting> all = {
      {{2, 2, 1, 110, 200, 16, 16}, {}, "ManyTiles"},
      {{2, 4, 2, 3, 300, 16, 16}, {}, "Decode"},
  };
  return all;
}

class Dropout : public testing::TestWithParam<Parameters> {};

/// Forward, backward, tiles and decode blocks agree on the mask; so does a call with values of another width.
TEST_P(Dropout, ForwardAndBackwardUseTheMaskOfTheSeed) {
  const auto& [term, setting] = GetParam();
  constexpr double kP = 0.3;
  Call call = make_call(setting, term);
  call.kept = kept(call, 11, kP);
  EXPECT_FALSE(at::equal(call.kept, kept(call, 12, kP)));
  expect_reference(call, {at::kDouble, at::kFloat}, kP, 11);
}

INSTANTIATE_TEST_SUITE_P(, Dropout, testing::ValuesIn(combinations(terms_with_dropout(), dropout_settings())), name_of);

TEST(DropoutMask, KeepsItsShareAndScalesIt) {
  const Setting setting{{2, 3, 3, 150, 200, 4, 4}, {.is_causal = false}, ""};
  const Call call = make_call(setting, terms()[0]);
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor mask = kept(call, 3, p);
    const Tensor share = (mask > 0).to(at::kDouble);
    EXPECT_LT(reference::error(mask, share / (1.0 - p)), 1e-12);
    EXPECT_NEAR(share.mean().item<double>(), 1.0 - p, 4 * std::sqrt(p * (1 - p) / static_cast<double>(mask.numel())));
    // Neither rows, keys, heads nor batch rows share a mask.
    for (int64_t dim = 0; dim < 4; ++dim) {
      EXPECT_FALSE(at::equal(share.select(dim, 0), share.select(dim, 1))) << "dimension " << dim;
    }
    // Nor do tiles.
    EXPECT_FALSE(at::equal(share.slice(2, 0, 50), share.slice(2, 96, 146)));
    EXPECT_FALSE(at::equal(share.slice(3, 0, 96), share.slice(3, 96, 192)));
  }
  EXPECT_EQ(std::get<0>(run(call, call.inputs, 1.0)).abs().max().item<double>(), 0.0);
}

// Rows that see nothing, and numbers that are none.

TEST(AttentionEdges, AQueryThatSeesNoKeyGivesZero) {
  for (const Term& term : terms()) {
    SCOPED_TRACE(term.name);
    for (const int64_t queries : {2, 110}) {
      Call call = make_call({{2, 2, 1, queries, 130, 8, 8}, {}, ""}, term);
      call.key_mask = at::ones({2, 130}, at::kBool);
      call.key_mask.select(0, 1).fill_(false);
      expect_reference(call, {at::kDouble});
      const auto [out, lse] = run(call, call.inputs);
      EXPECT_EQ(out.select(0, 1).abs().max().item<double>(), 0.0);
      const Tensor& sinks = call.inputs.sinks;  // (H) or (B, H, Tq)
      const Tensor expected = !sinks.defined()   ? at::full({}, -reference::kInfinity, kWide)
                              : sinks.dim() == 1 ? sinks.unsqueeze(-1)
                                                 : sinks.select(0, 1);
      EXPECT_TRUE(at::allclose(lse.select(0, 1), expected.expand_as(lse.select(0, 1)), 1e-14, 0.0));
    }
  }
}

TEST(AttentionEdges, NaNOfAKeyReachesNoQueryThatDoesNotSeeIt) {
  for (const Term& term : terms()) {
    SCOPED_TRACE(term.name);
    for (const int64_t queries : {2, 4, 118, 120}) {
      const Setting setting{{1, 2, 1, queries, 140, 8, 8}, {}, ""};
      Call call = make_call(setting, term);
      const Tensor others = at::arange(140).ne(101);
      if (queries % 4 == 0) {
        call.key_mask = others.unsqueeze(0);
      } else {
        call.attn_mask = call.attn_mask.defined() ? call.attn_mask.logical_and(others) : others;
      }
      const auto clean = run(call, call.inputs);
      for (Tensor* x : {&call.inputs.k, &call.inputs.v, &call.inputs.k_far, &call.inputs.gate_key}) {
        if (x->defined()) {
          *x = x->clone();
          x->select(2, 101).fill_(NAN);
        }
      }
      const auto dirty = run(call, call.inputs);
      EXPECT_LT(reference::error(std::get<0>(dirty), std::get<0>(clean)), 1e-13);
      EXPECT_LT(reference::error(std::get<1>(dirty), std::get<1>(clean)), 1e-13);
    }
  }
}

TEST(AttentionEdges, ABiasHidesAKeyOfNaN) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const double lowest =
        type == at::kFloat ? std::numeric_limits<float>::lowest() : std::numeric_limits<double>::lowest();
    for (const double hidden : {-reference::kInfinity, lowest}) {
      for (const int64_t queries : {2, 120}) {
        SCOPED_TRACE(queries);
        Call call = make_call({{1, 2, 1, queries, 140, 8, 8}, {}, ""}, terms()[0]);
        call.inputs = leaves(call.inputs, type);
        Call masked = call;
        masked.key_mask = at::arange(140).ne(101).unsqueeze(0);
        const auto expected = reference::attention(masked);
        call.inputs.bias = at::zeros({1, 1, queries, 140}, type);
        call.inputs.bias.select(3, 101).fill_(hidden);
        for (Tensor* x : {&call.inputs.k, &call.inputs.v}) {
          *x = x->detach().clone();
          x->select(2, 101).fill_(NAN);
        }
        const auto [out, lse] = run(call, call.inputs);
        EXPECT_LT(reference::error(out, expected.out), 2e-5);
        EXPECT_LT(reference::error(lse, expected.lse), 2e-5);
      }
    }
  }
}

/// Where float32 does not resolve them, nor hold them.
TEST(AttentionEdges, SinksOfAnySizeEqualTheFormula) {
  for (const int64_t queries : {2, 110}) {
    for (const double sink : {1e4, 1e9, 1e30, 3e38, -1e9, -1e30, -3e38, -reference::kInfinity}) {
      SCOPED_TRACE(sink);
      Call call = make_call({{2, 3, 1, queries, 130, 8, 8}, {}, ""}, terms()[0]);
      call.inputs.sinks = at::tensor({0.5, sink, -1.0}, kWide);
      if (std::isfinite(sink)) {  // a row of the sink alone
        call.key_mask = at::ones({2, 130}, at::kBool);
        call.key_mask.select(0, 1).fill_(false);
      }
      expect_reference(call, {at::kDouble});
      Call narrow = call;
      narrow.inputs = leaves(call.inputs, at::kFloat);
      const auto [out, lse] = run(narrow, narrow.inputs);
      const auto expected = reference::attention(narrow);
      EXPECT_LT(reference::error(out, expected.out), 2e-5);
      const Tensor moderate = expected.lse.abs() < 1e37;  // in base 2 the kernels reach no further
      EXPECT_LT(reference::error(lse.masked_fill(~moderate, 0.0), expected.lse.masked_fill(~moderate, 0.0)), 4e-6);
      const auto& in = narrow.inputs;
      const auto grads = torch::autograd::grad({out}, {in.q, in.k, in.v, in.sinks}, {at::ones_like(out)});
      const Inputs wanted = reference::gradients(narrow, at::ones_like(out), at::zeros_like(lse));
      EXPECT_LT(reference::error(grads[0], wanted.q), 2e-5);
      EXPECT_LT(reference::error(grads[1], wanted.k), 2e-5);
      EXPECT_LT(reference::error(grads[2], wanted.v), 2e-5);
      EXPECT_LT(reference::error(grads[3].masked_fill(~in.sinks.isfinite(), 0.0),
                                 wanted.sinks.masked_fill(~in.sinks.isfinite(), 0.0)),
                2e-5);
    }
  }
}

TEST(AttentionEdges, ASinkThatIsNoNumberReachesItsRowsAlone) {
  for (const int64_t queries : {2, 110}) {
    for (const double sink : {reference::kInfinity, static_cast<double>(NAN)}) {
      Call call = make_call({{2, 3, 1, queries, 130, 8, 8}, {}, ""}, terms()[0]);
      call.inputs.sinks = at::tensor({0.5, 0.25, -1.0}, kWide);
      const auto [clean, clean_lse] = run(call, call.inputs);
      call.inputs.sinks[1] = sink;
      const auto [out, lse] = run(call, call.inputs);
      EXPECT_TRUE(out.select(1, 1).isnan().all().item<bool>());
      EXPECT_TRUE(lse.select(1, 1).isnan().all().item<bool>());
      for (const int64_t head : {0, 2}) {
        EXPECT_TRUE(at::equal(out.select(1, head), clean.select(1, head)));
        EXPECT_TRUE(at::equal(lse.select(1, head), clean_lse.select(1, head)));
      }
    }
  }
}

/// Also caps that float32 does not hold, or whose inverse it does not.
TEST(AttentionEdges, CapsOfAnySizeEqualTheFormula) {
  for (const int64_t queries : {2, 110}) {
    for (const double cap : {1e-300, 1e-40, 1e-20, 1e20, 3e38, 1e300}) {
      for (const bool on_sum : {false, true}) {
        SCOPED_TRACE(cap);
        Call call = make_call({{1, 2, 1, queries, 130, 8, 8}, {}, ""}, terms()[0]);
        add_hiding_bias({{1, 2, 1, queries, 130, 8, 8}, {}, ""}, call);
        call.inputs.q.select(2, 0).zero_();
        call.softcap = cap;
        call.caps_sum = on_sum;
        const Inputs wide = leaves(call.inputs, at::kDouble);
        const auto expected = reference::attention(call);
        const Inputs wanted = reference::gradients(call, at::ones_like(expected.out), at::ones_like(expected.lse));
        for (const auto type : {at::kDouble, at::kFloat}) {
          const Inputs in = leaves(call.inputs, type);
          const auto [out, lse] = run(call, in);
          EXPECT_LT(reference::error(out, expected.out), 2e-5);
          EXPECT_LT(reference::error(lse, expected.lse), 2e-5);
          const auto grads =
              torch::autograd::grad({out, lse}, {in.v, in.bias}, {at::ones_like(out), at::ones_like(lse)});
          EXPECT_LT(reference::error(grads[0], wanted.v), 2e-5);
          EXPECT_TRUE(grads[1].isfinite().all().item<bool>());
          if (cap > 1.0) {
            EXPECT_LT(reference::error(grads[1], wanted.bias), 2e-5);
          }
        }
      }
    }
  }
}

TEST(AttentionEdges, WindowsOfFloatingPositionsEndWhereTheySay) {
  const Tensor positions = at::arange(130, kWide) * 0.5;
  for (const int64_t queries : {2, 110}) {
    const Tensor q_positions = positions.slice(0, 130 - queries);
    const Tensor back = q_positions.unsqueeze(1) - positions.unsqueeze(0);
    const Setting setting{{1, 2, 1, queries, 130, 8, 8}, {.is_causal = false}, ""};
    Call call = make_call(setting, terms()[0]), hidden = call;
    call.q_positions = q_positions;
    call.k_positions = positions;
    const auto expect_sight = [&](const Tensor& visible) {
      hidden.attn_mask = visible;
      const auto [out, lse] = run(call, call.inputs);
      const auto expected = reference::attention(hidden);
      EXPECT_LT(reference::error(out, expected.out), 1e-12);
      EXPECT_LT(reference::error(lse, expected.lse), 1e-12);
    };
    call.window_left = 3;
    call.window_right = 1;
    expect_sight((back <= 3).logical_and(back >= -1));
    call.window_right = std::nullopt;
    expect_sight(back <= 3);
    call.window_left = std::nullopt;
    call.window = 3;
    expect_sight((back < 3).logical_and(back > -3));
  }
}

TEST(AttentionEdges, PositionsThatCountUpByOneMayStartAnywhere) {
  for (const int64_t queries : {2, 110}) {
    Call call = make_call({{1, 2, 1, queries, 130, 8, 8}, {}, ""}, terms()[0]);
    call.inputs.slopes = at::rand({2}, kWide).mul(0.1);
    call.k_positions = at::arange(130) + 1000;
    call.q_positions = at::arange(queries) + (1000 + 130 - queries - 15);
    call.window_left = 60;
    expect_reference(call, {at::kDouble});
  }
}

TEST(AttentionEdges, AnyNumberOfThreadsEqualsTheFormula) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  for (const Term& term : terms()) {
    SCOPED_TRACE(term.name);
    expect_reference(make_call({{1, 2, 1, 110, 200, 16, 16}, {}, ""}, term), {at::kFloat});
    expect_reference(make_call({{1, 4, 1, 1, 6000, 64, 64}, {}, ""}, term), {at::kFloat});
  }
  at::set_num_threads(before);
}

// Derivatives of derivatives, which the ops compute in their plain form.

/// The sum of the gradients of a call in direction `along`, where out and lse have the gradients of_out and of_lse.
double reference_slope(const Call& call, const Tensor& of_out, const Tensor& of_lse, const Inputs& along) {
  const Inputs grads = reference::gradients(call, of_out, of_lse);
  double sum = 0;
  for (const auto& [name, tensor] : reference::kMembers) {
    if ((grads.*tensor).defined()) {
      sum += (grads.*tensor * along.*tensor).sum().item<double>();
    }
  }
  return sum;
}

const std::vector<Setting>& derivative_settings() {
  static const std::vector<Setting> all = {
      {{2, 2, 1, 11, 17, 4, 3}, {}, "Causal"},
      {{2, 2, 1, 11, 17, 4, 3}, {.is_causal = false, .window_left = 4, .window_right = 2}, "Windows"},
      {{2, 2, 1, 11, 17, 4, 3}, {.blocks = true}, "Blocks"},
      {{2, 2, 1, 19, 17, 4, 3}, {.is_causal = false, .segments = true, .q_segments = true}, "SegmentsOfQueries"},
      {{2, 2, 1, 11, 17, 4, 3}, {.start = true}, "Start"},
  };
  return all;
}

TEST(AttentionDerivatives, TheSecondIsTheDifferenceOfTheFirst) {
  for (const auto& [term, setting] : combinations(terms(), derivative_settings())) {
    SCOPED_TRACE(term.name + setting.name);
    const Call call = make_call(setting, term);
    const Inputs in = leaves(call.inputs, at::kDouble);
    const auto [out, lse] = run(call, in);
    const Tensor of_out = at::randn_like(out), of_lse = at::randn_like(lse).masked_fill(~lse.isfinite(), 0.0);
    Inputs along, moved;
    std::vector<Tensor> sources, directions, moves;
    for (const auto& [name, tensor] : reference::kMembers) {
      if ((in.*tensor).defined()) {
        sources.push_back(in.*tensor);
        directions.push_back(along.*tensor = at::randn_like(in.*tensor).detach());
        moves.push_back(moved.*tensor = at::randn_like(in.*tensor).detach());
      }
    }
    const auto grads =
        torch::autograd::grad({out, lse}, sources, {of_out, of_lse}, std::nullopt, /*create_graph=*/true);
    const auto second = torch::autograd::grad(grads, sources, directions);
    double computed = 0;
    for (size_t i = 0; i < second.size(); ++i) {
      computed += (second[i] * moves[i]).sum().item<double>();
    }
    const auto slope_at = [&](double step) {
      Call there = call;
      for (const auto& [name, tensor] : reference::kMembers) {
        if ((in.*tensor).defined()) {
          there.inputs.*tensor = (in.*tensor).detach() + step * moved.*tensor;
        }
      }
      return reference_slope(there, of_out, of_lse, along);
    };
    const double difference = (slope_at(1e-5) - slope_at(-1e-5)) / 2e-5;
    EXPECT_NEAR(computed, difference, 1e-6 * std::max(1.0, std::abs(difference)));
  }
}

TEST(AttentionOps, SixteenBitsAreOneRoundingOfFloat) {
  at::manual_seed(4);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t queries : {1, 130}) {
      const Tensor q = at::randn({1, 4, queries, 40}).to(type), k = at::randn({1, 2, 200, 40}).to(type);
      const Tensor out = attention(q, k, k, AttentionFuncOptions().is_causal(true));
      const Tensor wide =
          attention(q.to(at::kFloat), k.to(at::kFloat), k.to(at::kFloat), AttentionFuncOptions().is_causal(true));
      EXPECT_TRUE(at::allclose(out.to(at::kFloat), wide, type == at::kHalf ? 1e-3 : 8e-3, 1e-5));
    }
  }
}

TEST(AttentionOps, MoreThreadsThanHeadsGiveTheSameNumbers) {
  at::manual_seed(4);
  const Tensor q = at::randn({1, 1, 700, 64}).requires_grad_(), k = at::randn({1, 1, 900, 64});
  const Tensor last = at::randn({1, 4, 1, 64}), key = k.clone().requires_grad_();
  const int threads = at::get_num_threads();
  const auto run = [&](int count) {
    at::set_num_threads(count);
    const Tensor out = attention(q, key, k, AttentionFuncOptions().is_causal(true));
    auto results = torch::autograd::grad({out.square().sum()}, {q, key});
    results.push_back(out);
    results.push_back(attention(last, k, k));
    return results;
  };
  const auto one = run(1), four = run(4), again = run(4);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::allclose(one[i], four[i], 1e-4, 1e-5)) << i;
    EXPECT_TRUE(at::equal(four[i], again[i])) << i << ": the same threads give the same bits";
  }
}

TEST(AttentionOps, WhatAThreadKeepsOfOneCallDoesNotReachTheNext) {
  at::manual_seed(4);
  const auto call = [](int64_t tokens, int64_t width) {
    at::manual_seed(tokens);
    const Tensor x = at::randn({1, 2, tokens, width}).transpose(1, 2).contiguous().transpose(1, 2);
    return attention(x, x, x, AttentionFuncOptions().is_causal(true));
  };
  const Tensor first = call(130, 24);
  call(260, 64);
  attention(at::full({1, 2, 150, 40}, NAN), at::full({1, 2, 150, 40}, NAN), at::full({1, 2, 150, 40}, NAN));
  EXPECT_TRUE(at::equal(call(130, 24), first));
}

TEST(AttentionOps, EveryOpHasItsFunctions) {
  at::manual_seed(4);
  const Tensor q = at::randn({1, 2, 5, 8}), table = at::randn({3, 8});
  EXPECT_TRUE(at::equal(posenc::relative_attention(q, q, q, table, table),
                        std::get<0>(posenc::relative_attention_with_lse(q, q, q, table, table))));
  const Tensor pos_emb = at::randn({1, 8, 4});
  EXPECT_TRUE(at::equal(posenc::cope_attention(q, q, q, pos_emb),
                        std::get<0>(posenc::cope_attention_with_lse(q, q, q, pos_emb))));
  EXPECT_TRUE(at::equal(posenc::piecewise_attention(q, q, q, q, q, 2),
                        std::get<0>(posenc::piecewise_attention_with_lse(q, q, q, q, q, 2))));
  // Near and far alike, a piecewise score is the plain one.
  EXPECT_TRUE(at::allclose(posenc::piecewise_attention(q, q, q, q, q, 2),
                           attention(q, q, q, AttentionFuncOptions().is_causal(true)), 1e-5, 1e-6));
}

TEST(AttentionOps, ErrorsNameOpArgumentRuleAndValue) {
  const Tensor q = at::randn({1, 2, 5, 8});
  try {
    attention(q, q, q, AttentionFuncOptions().window(0));
    FAIL() << "a window of 0 was accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("attention: expected window to be at least 1, but got 0"),
              std::string::npos);
  }
}

}  // namespace
