/// The schemas of the attention ops, and their C++ functions: calls through the dispatcher.

#include "attention/call.h"
#include "attention/ops.h"
#include "common/dispatch.h"
#include "common/registration.h"

namespace posenc {
namespace attention_ops {
namespace {

// What hides keys, in the order of Call.
#define VISIBLE                                                                                                      \
  "float? scale=None, Tensor? key_mask=None, int? window=None, Tensor? segment_ids=None, Tensor? q_positions=None, " \
  "Tensor? k_positions=None"
#define ATTENTION_OPTIONS                                                        \
  "*, bool is_causal=False, " VISIBLE                                            \
  ", Tensor? alibi_slopes=None, Tensor? distance_bias=None, Tensor? bias=None, " \
  "Tensor? log_decay=None"
#define RELATIVE_OPTIONS "*, bool is_causal=False, " VISIBLE
#define COPE_OPTIONS                                                                                                \
  "*, Tensor? gate_key=None, Tensor? gate_bias=None, float? scale=None, bool scale_position_logits=False, Tensor? " \
  "key_mask=None, int? window=None, Tensor? segment_ids=None"
#define PIECEWISE_OPTIONS "*, bool is_causal=True, " VISIBLE
#define DROPOUT ", float dropout_p=0.0) -> "

#define ATTENTION "Tensor query, Tensor key, Tensor value, " ATTENTION_OPTIONS DROPOUT
#define RELATIVE "Tensor query, Tensor key, Tensor value, Tensor rel_k, Tensor? rel_v=None, " RELATIVE_OPTIONS DROPOUT
#define COPE "Tensor query, Tensor key, Tensor value, Tensor pos_emb, " COPE_OPTIONS DROPOUT
#define PIECEWISE \
  "Tensor q_near, Tensor k_near, Tensor q_far, Tensor k_far, Tensor value, int threshold, " PIECEWISE_OPTIONS DROPOUT

#define SAVED "Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, Tensor seed, Tensor[] state, int[] wanted, "

POSENC_LIBRARY_FRAGMENT(m) {
  // Output strides follow query's, so a compiler must not change those.
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides};
  // The seed of dropout is drawn inside.
  const std::vector<at::Tag> drawing{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides,
                                     at::Tag::nondeterministic_seeded};
  const auto define = [&](const std::string& name, const std::string& arguments) {
    m.def(c10::str(name, "(", arguments, "(Tensor out, Tensor lse)").c_str(), drawing);
    m.def(c10::str("_", name, "_forward(", arguments, "(Tensor out, Tensor lse, Tensor seed, Tensor[] state)").c_str(),
          drawing);
    m.def(c10::str("_", name, "_backward(" SAVED, arguments, "Tensor[]").c_str(), tags);
  };
  define("attention", ATTENTION);
  define("relative_attention", RELATIVE);
  define("cope_attention", COPE);
  define("piecewise_attention", PIECEWISE);

  m.def("_attention_logits(Tensor query, Tensor key, " ATTENTION_OPTIONS ") -> Tensor", tags);
  m.def("_relative_attention_logits(Tensor query, Tensor key, Tensor rel_k, " RELATIVE_OPTIONS ") -> Tensor", tags);
  m.def("_cope_attention_logits(Tensor query, Tensor key, Tensor pos_emb, " COPE_OPTIONS ") -> Tensor", tags);
  m.def(
      "_piecewise_attention_logits(Tensor q_near, Tensor k_near, Tensor q_far, Tensor k_far, int "
      "threshold, " PIECEWISE_OPTIONS ") -> Tensor",
      tags);
}

template <typename Op, typename Arguments>
auto call(const Op& op, const Arguments& arguments) {
  return std::apply([&](const auto&... each) { return op.call(each...); }, arguments);
}

}  // namespace

template <typename Op>
OutAndLse call_public(const Call& c) {
  static const auto op = find_op<typename Flat<Op>::Public>(Op::name);
  return call(op, Op::unpack(c));
}

template <typename Op>
Forward call_forward(const Call& c) {
  static const auto op = find_op<typename Flat<Op>::ForwardOp>(Op::forward_name);
  return call(op, Op::unpack(c));
}

template <typename Op>
std::vector<Tensor> call_backward(const Saved& s, const Call& c) {
  static const auto op = find_op<typename Flat<Op>::BackwardOp>(Op::backward_name);
  const at::TensorList state(s.state);
  const at::IntArrayRef wanted(s.wanted);
  const auto saved = std::tie(s.grad_out, s.grad_lse, s.out, s.lse, s.seed, state, wanted);
  return call(op, std::tuple_cat(saved, Op::unpack(c)));
}

#define INSTANTIATE(Op)                            \
  template OutAndLse call_public<Op>(const Call&); \
  template Forward call_forward<Op>(const Call&);  \
  template std::vector<Tensor> call_backward<Op>(const Saved&, const Call&)
INSTANTIATE(Dot);
INSTANTIATE(Relative);
INSTANTIATE(Cope);
INSTANTIATE(Piecewise);
#undef INSTANTIATE

Tensor attention_logits(const Tensor& query, const Tensor& key, const AttentionFuncOptions& o) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, bool, std::optional<double>, const OptionalTensor&,
                     std::optional<int64_t>, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&)>(
          "posenc::_attention_logits");
  return op.call(query, key, o.is_causal(), o.scale(), o.key_mask(), o.window(), o.segment_ids(), o.q_positions(),
                 o.k_positions(), o.alibi_slopes(), o.distance_bias(), o.bias(), o.log_decay());
}

Tensor relative_attention_logits(const Tensor& query, const Tensor& key, const Tensor& rel_k,
                                 const RelativeAttentionFuncOptions& o) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, std::optional<double>, const OptionalTensor&,
                     std::optional<int64_t>, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&)>(
          "posenc::_relative_attention_logits");
  return op.call(query, key, rel_k, o.is_causal(), o.scale(), o.key_mask(), o.window(), o.segment_ids(),
                 o.q_positions(), o.k_positions());
}

Tensor cope_attention_logits(const Tensor& query, const Tensor& key, const Tensor& pos_emb,
                             const CopeAttentionFuncOptions& o) {
  static const auto op = find_op<Tensor(
      const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&, std::optional<double>,
      bool, const OptionalTensor&, std::optional<int64_t>, const OptionalTensor&)>("posenc::_cope_attention_logits");
  return op.call(query, key, pos_emb, o.gate_key(), o.gate_bias(), o.scale(), o.scale_position_logits(), o.key_mask(),
                 o.window(), o.segment_ids());
}

Tensor piecewise_attention_logits(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far, const Tensor& k_far,
                                  int64_t threshold, const PiecewiseAttentionFuncOptions& o) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool, std::optional<double>,
                     const OptionalTensor&, std::optional<int64_t>, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&)>("posenc::_piecewise_attention_logits");
  return op.call(q_near, k_near, q_far, k_far, threshold, o.is_causal(), o.scale(), o.key_mask(), o.window(),
                 o.segment_ids(), o.q_positions(), o.k_positions());
}

}  // namespace attention_ops

using namespace attention_ops;

std::tuple<Tensor, Tensor> attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                              const AttentionFuncOptions& o) {
  return call_public<Dot>(Dot::pack(query, key, value, o.is_causal(), o.scale(), o.key_mask(), o.window(),
                                    o.segment_ids(), o.q_positions(), o.k_positions(), o.alibi_slopes(),
                                    o.distance_bias(), o.bias(), o.log_decay(), o.dropout_p()));
}

std::tuple<Tensor, Tensor> relative_attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                                       const Tensor& rel_k, const OptionalTensor& rel_v,
                                                       const RelativeAttentionFuncOptions& o) {
  return call_public<Relative>(Relative::pack(query, key, value, rel_k, rel_v, o.is_causal(), o.scale(), o.key_mask(),
                                              o.window(), o.segment_ids(), o.q_positions(), o.k_positions(),
                                              o.dropout_p()));
}

std::tuple<Tensor, Tensor> cope_attention_with_lse(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   const Tensor& pos_emb, const CopeAttentionFuncOptions& o) {
  return call_public<Cope>(Cope::pack(query, key, value, pos_emb, o.gate_key(), o.gate_bias(), o.scale(),
                                      o.scale_position_logits(), o.key_mask(), o.window(), o.segment_ids(),
                                      o.dropout_p()));
}

std::tuple<Tensor, Tensor> piecewise_attention_with_lse(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far,
                                                        const Tensor& k_far, const Tensor& value, int64_t threshold,
                                                        const PiecewiseAttentionFuncOptions& o) {
  return call_public<Piecewise>(Piecewise::pack(q_near, k_near, q_far, k_far, value, threshold, o.is_causal(),
                                                o.scale(), o.key_mask(), o.window(), o.segment_ids(), o.q_positions(),
                                                o.k_positions(), o.dropout_p()));
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionFuncOptions& options) {
  return std::get<0>(attention_with_lse(query, key, value, options));
}

Tensor relative_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& rel_k,
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
