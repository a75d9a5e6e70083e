#pragma once

/// The cases of the attention tests: the op that computes a call of attention_terms.h, and how far it may be from
/// reference.h.

#include "attention_terms.h"

#include <posenc/ops.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace {

std::optional<Tensor> maybe(const Tensor& x) { return x.defined() ? std::make_optional(x) : std::nullopt; }

/// What all options have.
template <typename Options>
Options common(Options o, const Call& c) {
  if (c.caps_sum) {
    o.softcap_on("sum");
  }
  return o.scale(c.scale)
      .key_mask(maybe(c.key_mask))
      .attn_mask(maybe(c.attn_mask))
      .window(c.window)
      .window_left(c.window_left)
      .window_right(c.window_right)
      .segment_ids(maybe(c.segment_ids))
      .q_segment_ids(maybe(c.q_segment_ids))
      .softcap(c.softcap)
      .sinks(maybe(c.inputs.sinks))
      .grid_bias(maybe(c.inputs.grid_bias))
      .grid_rel_y(maybe(c.inputs.grid_rel_y))
      .grid_rel_x(maybe(c.inputs.grid_rel_x))
      .grid_rel_scale(c.grid_rel_scale)
      .q_positions(maybe(c.q_grid))
      .k_positions(maybe(c.k_grid));
}

template <typename Options>
Options with_places(const Call& c) {
  return common(Options(), c)
      .is_causal(c.is_causal)
      .block_ids(maybe(c.block_ids))
      .q_start(maybe(c.q_start))
      .q_positions(maybe(c.q_grid.defined() ? c.q_grid : c.q_positions))
      .k_positions(maybe(c.k_grid.defined() ? c.k_grid : c.k_positions));
}

/// Whether a call has terms beside its table, so that the one op of all terms computes it.
inline bool combines(const Inputs& in) {
  const bool others = in.slopes.defined() || in.distance_bias.defined() || in.bias.defined() || in.log_decay.defined();
  const bool relative = in.rel_k.defined() || in.rel_q.defined();
  return others || (relative && (in.pos_emb.defined() || in.q_far.defined()));
}

/// The op of a call, with inputs `in`.
inline std::tuple<Tensor, Tensor> run(const Call& call, const Inputs& in, double dropout_p = 0.0) {
  Call c = call;
  c.inputs = in;
  if (combines(in) || !(in.rel_k.defined() || in.rel_q.defined() || in.q_far.defined() || in.pos_emb.defined())) {
    return posenc::attention_with_lse(in.q, in.k, in.v,
                                      with_places<posenc::AttentionFuncOptions>(c)
                                          .alibi_slopes(maybe(in.slopes))
                                          .distance_bias(maybe(in.distance_bias))
                                          .bias(maybe(in.bias))
                                          .log_decay(maybe(in.log_decay))
                                          .rel_k(maybe(in.rel_k))
                                          .rel_v(maybe(in.rel_v))
                                          .rel_query(maybe(in.rel_query))
                                          .rel_q(maybe(in.rel_q))
                                          .q_far(maybe(in.q_far))
                                          .k_far(maybe(in.k_far))
                                          .threshold(c.threshold)
                                          .pos_emb(maybe(in.pos_emb))
                                          .gate_key(maybe(in.gate_key))
                                          .gate_bias(maybe(in.gate_bias))
                                          .scale_position_logits(c.scale_position_logits)
                                          .dropout_p(dropout_p));
  }
  if (in.rel_k.defined() || in.rel_q.defined()) {
    return posenc::relative_attention_with_lse(
        in.q, in.k, in.v, maybe(in.rel_k), maybe(in.rel_v),
        with_places<posenc::RelativeAttentionFuncOptions>(c)
            .rel_query(maybe(in.rel_query))
            .rel_q(maybe(in.rel_q))
            .max_distance_left(c.max_distance ? std::make_optional(c.max_distance->first) : std::nullopt)
            .max_distance_right(c.max_distance ? std::make_optional(c.max_distance->second) : std::nullopt)
            .beyond(c.zero_beyond ? "zero" : "clip")
            .dropout_p(dropout_p));
  }
  if (in.q_far.defined()) {
    return posenc::piecewise_attention_with_lse(
        in.q, in.k, in.q_far, in.k_far, in.v, c.threshold,
        with_places<posenc::PiecewiseAttentionFuncOptions>(c).dropout_p(dropout_p));
  }
  return posenc::cope_attention_with_lse(in.q, in.k, in.v, in.pos_emb,
                                         common(posenc::CopeAttentionFuncOptions(), c)
                                             .gate_key(maybe(in.gate_key))
                                             .gate_bias(maybe(in.gate_bias))
                                             .scale_position_logits(c.scale_position_logits)
                                             .dropout_p(dropout_p));
}

/// The inputs in a dtype, as leaves. Slopes and decays, which bfloat16 does not hold, stay float32 at least.
Inputs leaves(const Inputs& inputs, at::ScalarType type) {
  Inputs result;
  for (const auto& [name, tensor] : reference::kMembers) {
    const Tensor& x = inputs.*tensor;
    const bool narrow = type == at::kBFloat16 || type == at::kHalf;
    const bool rounds = tensor == &Inputs::slopes || tensor == &Inputs::log_decay;
    if (x.defined()) {
      result.*tensor = x.to(narrow && rounds ? at::kFloat : type, false, /*copy=*/true).set_requires_grad(true);
    }
  }
  return result;
}

/// How far results may be from the reference, relative to the largest number.
struct Bounds {
  double out, gradient;
};

Bounds bounds(at::ScalarType type, const Call& c) {
  const bool cope = c.inputs.pos_emb.defined();
  switch (type) {
    case at::kDouble:
      return {1e-12, 1e-11};
    case at::kFloat:
      // A sum of gates that is a rounding away from a whole number takes the slope between the next two entries.
      return {2e-5, cope ? 3e-3 : 2e-5};
    case at::kHalf:
      return {1.0 / 1024, cope ? 3e-3 : 1.0 / 512};
    default:
      return {1.0 / 256, cope ? 1.0 / 64 : 1.0 / 128};
  }
}

/// Expects the op to compute what the reference computes, in each of the dtypes, from inputs that the narrowest, the
/// last, holds.
inline void expect_reference(const Call& call, const std::vector<at::ScalarType>& types, double dropout_p = 0.0,
                             uint64_t seed = 0) {
  Call rounded = call;
  rounded.inputs = leaves(call.inputs, types.back());
  const auto expected = reference::attention(rounded);
  at::manual_seed(6);
  const Tensor seen = expected.lse.isfinite();
  const Tensor grad_out = numbers(expected.out.sizes()).to(at::kBFloat16).to(at::kDouble);
  const Tensor grad_lse = numbers(expected.lse.sizes()).to(at::kBFloat16).to(at::kDouble).masked_fill(~seen, 0.0);
  const Inputs wanted = reference::gradients(rounded, grad_out, grad_lse);
  for (const at::ScalarType type : types) {
    SCOPED_TRACE(c10::toString(type));
    const Inputs in = leaves(rounded.inputs, type);
    at::manual_seed(seed);
    const auto [out, lse] = run(call, in, dropout_p);
    ASSERT_EQ(out.scalar_type(), type);
    const Bounds bound = bounds(type, call);
    EXPECT_LT(reference::error(out, expected.out), bound.out);
    EXPECT_LT(reference::error(lse, expected.lse), type == at::kDouble ? 1e-12 : 4e-6);
    {  // where nothing is kept for a backward, as in generation
      const at::NoGradGuard no_grad;
      at::manual_seed(seed);
      const auto [same_out, same_lse] = run(call, in, dropout_p);
      EXPECT_LT(reference::error(same_out, expected.out), bound.out) << "without gradients";
      EXPECT_LT(reference::error(same_lse, expected.lse), type == at::kDouble ? 1e-12 : 4e-6) << "without gradients";
    }
    std::vector<Tensor> sources;
    for (const auto& [name, tensor] : reference::kMembers) {
      if ((in.*tensor).defined()) {
        sources.push_back(in.*tensor);
      }
    }
    const auto grads = torch::autograd::grad({out, lse}, sources, {grad_out.to(type), grad_lse.to(lse.scalar_type())});
    size_t at = 0;
    for (const auto& [name, tensor] : reference::kMembers) {
      if ((in.*tensor).defined()) {
        EXPECT_LT(reference::error(grads[at++], wanted.*tensor), bound.gradient) << "gradient of " << name;
      }
    }
  }
}

using Parameters = std::tuple<Term, Setting>;

std::string name_of(const testing::TestParamInfo<Parameters>& info) {
  return std::get<0>(info.param).name + std::get<1>(info.param).name;
}

/// Those combinations that the ops take.
std::vector<Parameters> combinations(const std::vector<Term>& of_terms, const std::vector<Setting>& of_settings) {
  std::vector<Parameters> all;
  for (const Term& term : of_terms) {
    for (const Setting& setting : of_settings) {
      const bool by_index = setting.is_causal && !setting.positions && !setting.blocks && !setting.start;
      const bool decays = term.name.find("Decay") != std::string::npos;  // over the segments of keys
      if ((!term.by_index || by_index) && !(decays && setting.q_segments)) {
        all.emplace_back(term, setting);
      }
    }
  }
  return all;
}

}  // namespace
