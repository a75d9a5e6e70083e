/// The schemas of the attention ops, and their C++ functions: calls through the dispatcher.
///
/// There is one op, posenc::attention. relative_attention, cope_attention and piecewise_attention are composites that
/// call it.

#include "attention/checks.h"
#include "attention/ops.h"
#include "attention/registration.h"
#include "common/composite.h"
#include "common/dispatch.h"
#include "common/registration.h"

namespace posenc {
namespace attention_ops {
namespace {

/// A call through posenc::attention, refused where an argument that the alias requires is None.
OutAndLse alias(const Call& c) {
  check_defined(c);
  return call_public(c);
}

/// Tables over -left .. right as tables of 2R + 1 rows, whose further rows hold what distances beyond get. Gradients
/// follow from torch's.
Call with_even_tables(Call c) {
  check_defined(c);
  TORCH_CHECK_VALUE(c.beyond == "clip" || c.beyond == "zero",
                    "relative_attention: expected beyond to be 'clip' or 'zero', but got '", c.beyond, "'");
  TORCH_CHECK_VALUE(c.max_distance_left.has_value() == c.max_distance_right.has_value(),
                    "relative_attention: expected max_distance_left with max_distance_right, but got one of them");
  TORCH_CHECK_VALUE(
      c.has(kRelK) || c.has(kRelQ) || c.has(kGridRelY) || c.has(kGridRelX),
      "relative_attention: expected rel_k, a table or a pair of them for two axes, or rel_q, but got None");
  const bool zero = c.beyond == "zero";
  for (const Input input : {kRelK, kRelV, kRelQ}) {
    if (!c.has(input) || (!c.max_distance_left && !zero)) {
      continue;
    }
    Tensor& table = *c.inputs[input];
    check_beside_query(c, kInputNames[input], table);
    TORCH_CHECK_VALUE(table.dim() == 2 || table.dim() == 3, "relative_attention: expected ", kInputNames[input],
                      " of shape (rows, width) or (heads, rows, width), but got ", table.sym_sizes());
    const c10::SymInt rows = table.sym_size(-2);
    const c10::SymInt left = c.max_distance_left ? c10::SymInt(*c.max_distance_left) : (rows - 1) / 2,
                      right = c.max_distance_left ? c10::SymInt(*c.max_distance_right) : left;
    TORCH_CHECK_VALUE(holds(left.sym_ge(0)) && holds(right.sym_ge(0)),
                      "relative_attention: expected max_distance to be at least 0 on both sides, but got (", left, ", ",
                      right, ")");
    TORCH_CHECK_VALUE(holds(rows.sym_eq(left + right + 1)), "relative_attention: expected ", kInputNames[input],
                      " to have ", left + right + 1, " rows, one for each distance from -", left, " to ", right,
                      ", but got shape ", table.sym_sizes());
    const c10::SymInt radius = left.max(right) + (zero ? 1 : 0);
    if (zero) {
      table = at::constant_pad_nd_symint(table, {0, 0, radius - left, radius - right});
    } else {
      const auto place = at::arange(-radius, radius + 1, table.options().dtype(at::kLong).requires_grad({}));
      table = table.index_select(-2, place.clamp(-left, right) + left);
    }
  }
  return c;
}

OutAndLse relative_alias(const Call& c) {
  const bool by_distance = c.max_distance_left || c.beyond != "clip";
  TORCH_CHECK_VALUE(
      c.has(kRelK) || !(c.has(kGridRelY) || c.has(kGridRelX)) ||
          !(c.has(kRelV) || c.has(kRelQuery) || (by_distance && !c.has(kRelQ))),
      "relative_attention: expected no rel_v, rel_query, max_distance or beyond with a pair of tables for "
      "two axes, which serve keys alone and have 2R + 1 rows each");
  return call_public(with_even_tables(c));
}

OutAndLse causal_alias(Call c) {
  c.is_causal = true;
  return alias(c);
}

std::string gradients_schema() {
  std::string text;
  for (int64_t input = 0; input < kInputs; ++input) {
    text += c10::str(input == 0 ? "" : ", ", "Tensor grad_", kInputNames[input]);
  }
  return text;
}

POSENC_LIBRARY_FRAGMENT(m) {
  // Output strides follow query's, so a compiler must not change those.
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides};
  // The seed of dropout is drawn inside.
  const std::vector<at::Tag> drawing{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides,
                                     at::Tag::nondeterministic_seeded};
  const std::string arguments = AttentionSignature::schema();
  m.def(c10::str("attention(", arguments, ") -> (Tensor out, Tensor lse)").c_str(), drawing);
  m.def(c10::str("_attention_forward(", arguments, ") -> (", Residuals::kSchema, ")").c_str(), drawing);
  m.def(c10::str("_attention_backward(Tensor grad_out, Tensor? grad_lse, ", Residuals::kSchema, ", bool[",
                 static_cast<int64_t>(kInputs), "] wanted, ", arguments, ") -> (", gradients_schema(), ")")
            .c_str(),
        tags);
  m.def(c10::str("relative_attention(", RelativeSignature::schema(), ") -> (Tensor out, Tensor lse)").c_str(), drawing);
  m.def(c10::str("cope_attention(", CopeSignature::schema(), ") -> (Tensor out, Tensor lse)").c_str(), drawing);
  m.def(c10::str("piecewise_attention(", PiecewiseSignature::schema(), ") -> (Tensor out, Tensor lse)").c_str(),
        drawing);
  m.def(c10::str("_attention_logits(", LogitsSignature::schema(), ") -> Tensor").c_str(), tags);
}

POSENC_COMPOSITES(m) {
  m.impl("relative_attention", kEntry<RelativeSignature, relative_alias>);
  m.impl("cope_attention", kEntry<CopeSignature, causal_alias>);
  m.impl("piecewise_attention", kEntry<PiecewiseSignature, alias>);
}

/// The call that options of an op in C++ stand for. Only attention()'s hold the tables of the other ops; CoPE's lack
/// is_causal, as it always is.
template <typename Options>
Call call_of(const Options& o, const Tensor& query, const Tensor& key) {
  Call c;
  c.inputs[kQuery] = query;
  c.inputs[kKey] = key;
#define POSENC_INPUT(slot, name) c.inputs[slot] = o.name();
#define POSENC_VALUE(name) c.name = o.name();
#define POSENC_OPTION(type, name, value) c.name = o.name();
  POSENC_ATTENTION_TERM_INPUTS(POSENC_INPUT)
  POSENC_ATTENTION_TENSORS(POSENC_VALUE)
  POSENC_ATTENTION_OPTIONS(POSENC_OPTION)
  if constexpr (requires { o.is_causal(); }) {
    c.is_causal = o.is_causal();
  } else {
    c.is_causal = true;
  }
  if constexpr (requires { o.threshold(); }) {
    POSENC_ATTENTION_TABLES(POSENC_INPUT)
    POSENC_ATTENTION_TABLE_OPTIONS(POSENC_OPTION)
  }
#undef POSENC_INPUT
#undef POSENC_VALUE
#undef POSENC_OPTION
  return c;
}

Call relative_call(const RelativeAttentionFuncOptions& o, const Tensor& query, const Tensor& key,
                   const OptionalTensor& rel_k, const OptionalTensor& rel_v) {
  Call c = call_of(o, query, key);
  c.inputs[kRelK] = rel_k;
  c.inputs[kRelV] = rel_v;
  c.inputs[kRelQuery] = o.rel_query();
  c.inputs[kRelQ] = o.rel_q();
  c.max_distance_left = o.max_distance_left();
  c.max_distance_right = o.max_distance_right();
  c.beyond = o.beyond();
  return with_even_tables(std::move(c));
}

Call cope_call(const CopeAttentionFuncOptions& o, const Tensor& query, const Tensor& key, const Tensor& pos_emb) {
  Call c = call_of(o, query, key);
  c.inputs[kPosEmb] = pos_emb;
  return c;
}

Call piecewise_call(const PiecewiseAttentionFuncOptions& o, const Tensor& q_near, const Tensor& k_near,
                    const Tensor& q_far, const Tensor& k_far, int64_t threshold) {
  Call c = call_of(o, q_near, k_near);
  c.inputs[kFarQuery] = q_far;
  c.inputs[kFarKey] = k_far;
  c.threshold = threshold;
  return c;
}

Call with_fire(Call c, const FireTerms& fire) {
  c.inputs[kFireRate] = fire.rate;
  c.inputs[kFireNorm] = fire.norm;
  c.inputs[kFireOffset] = fire.offset;
  c.inputs[kFireSlope] = fire.slope;
  c.fire_knots = fire.knots;
  return c;
}

OutAndLse call_with(Call c, const Tensor& value) {
  c.inputs[kValue] = value;
  check_defined(c);
  return call_public(c);
}

Tensor call_logits(Call c) {
  static const auto op = find_op<LogitsSignature::Function<Tensor>>("posenc::_attention_logits");
  c.dropout_p = 0.0;
  check_defined(c);
  return LogitsSignature::apply(c, [](const auto&... a) { return op.call(a...); });
}

}  // namespace

OutAndLse call_public(const Call& c) {
  static const auto op = find_op<AttentionSignature::Function<OutAndLse>>("posenc::attention");
  return AttentionSignature::apply(c, [](const auto&... a) { return op.call(a...); });
}

Residuals call_forward(const Call& c) {
  static const auto op = find_op<AttentionSignature::Function<Residuals::Tuple>>("posenc::_attention_forward");
  return Residuals::of(AttentionSignature::apply(c, [](const auto&... a) { return op.call(a...); }));
}

Gradients call_backward(const BackwardArgs& b, const Call& c) {
  static const auto op = find_op<BackwardFunction>("posenc::_attention_backward");
  const auto& s = b.saved;
  const auto tuple = AttentionSignature::apply(c, [&](const auto&... a) {
    return op.call(b.grad_out, b.grad_lse, s.out, s.lse, s.seed, s.largest, s.total, s.counts, b.wanted, a...);
  });
  return std::apply([](const auto&... each) { return Gradients{each...}; }, tuple);
}

Tensor attention_logits(const Tensor& query, const Tensor& key, const AttentionFuncOptions& o) {
  return call_logits(call_of(o, query, key));
}

Tensor relative_attention_logits(const Tensor& query, const Tensor& key, const OptionalTensor& rel_k,
                                 const RelativeAttentionFuncOptions& o) {
  return call_logits(relative_call(o, query, key, rel_k, std::nullopt));
}

Tensor cope_attention_logits(const Tensor& query, const Tensor& key, const Tensor& pos_emb,
                             const CopeAttentionFuncOptions& o) {
  return call_logits(cope_call(o, query, key, pos_emb));
}

Tensor piecewise_attention_logits(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far, const Tensor& k_far,
                                  int64_t threshold, const PiecewiseAttentionFuncOptions& o) {
  return call_logits(piecewise_call(o, q_near, k_near, q_far, k_far, threshold));
}

OutAndLse fire_attention(const Tensor& query, const Tensor& key, const Tensor& value, const FireTerms& fire,
                         const AttentionFuncOptions& o) {
  return call_with(with_fire(call_of(o, query, key), fire), value);
}

Tensor fire_logits(const Tensor& query, const Tensor& key, const FireTerms& fire, const AttentionFuncOptions& o) {
  return call_logits(with_fire(call_of(o, query, key), fire));
}

}  // namespace attention_ops

using namespace attention_ops;

std::tuple<Tensor, Tensor> attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                              const AttentionFuncOptions& o) {
  return call_with(call_of(o, query, key), value);
}

std::tuple<Tensor, Tensor> relative_attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                                       const OptionalTensor& rel_k, const OptionalTensor& rel_v,
                                                       const RelativeAttentionFuncOptions& o) {
  return call_with(relative_call(o, query, key, rel_k, rel_v), value);
}

std::tuple<Tensor, Tensor> cope_attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   const Tensor& pos_emb, const CopeAttentionFuncOptions& o) {
  return call_with(cope_call(o, query, key, pos_emb), value);
}

std::tuple<Tensor, Tensor> piecewise_attention_with_lse(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far,
                                                        const Tensor& k_far, const Tensor& value, int64_t threshold,
                                                        const PiecewiseAttentionFuncOptions& o) {
  return call_with(piecewise_call(o, q_near, k_near, q_far, k_far, threshold), value);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionFuncOptions& options) {
  return std::get<0>(attention_with_lse(query, key, value, options));
}

Tensor relative_attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& rel_k,
                          const OptionalTensor& rel_v, const RelativeAttentionFuncOptions& options) {
  return std::get<0>(relative_attention_with_lse(query, key, value, rel_k, rel_v, options));
}

Tensor cope_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& pos_emb,
                      const CopeAttentionFuncOptions& options) {
  return std::get<0>(cope_attention_with_lse(query, key, value, pos_emb, options));
}

Tensor piecewise_attention(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far, const Tensor& k_far,
                           const Tensor& value, int64_t threshold, const PiecewiseAttentionFuncOptions& options) {
  return std::get<0>(piecewise_attention_with_lse(q_near, k_near, q_far, k_far, value, threshold, options));
}

}  // namespace posenc
