/// The schemas of the additive encodings' ops, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/bias/fire_call.h"

namespace posenc {
namespace bias_ops {
namespace {

#define POSITIONS "Tensor? q_positions=None, Tensor? k_positions=None"
#define FIRE_PARAMETERS \
  "Tensor c, Tensor threshold, Tensor weight_in, Tensor bias_in, Tensor weight_out, Tensor bias_out, float eps, "
#define FIRE                                                                                                                  \
  "Tensor query, Tensor key, Tensor value, " FIRE_PARAMETERS                                                                  \
  "*, bool is_causal=False, float? scale=None, Tensor? key_mask=None, int? window=None, Tensor? segment_ids=None, " POSITIONS \
  ", float dropout_p=0.0"

POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  // What follows query's strides or draws dropout's seed, as in the attention ops.
  const std::vector<at::Tag> exact{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides};
  const std::vector<at::Tag> drawing{at::Tag::pt2_compliant_tag, at::Tag::needs_exact_strides,
                                     at::Tag::nondeterministic_seeded};
  m.def("alibi_slopes(int num_heads, *, ScalarType? dtype=None, Device? device=None) -> Tensor", tags);
  m.def(
      "t5_bucket(Tensor relative_position, *, int num_buckets=32, int max_distance=128, bool bidirectional=True) -> "
      "Tensor",
      tags);

  m.def("_alibi_terms(Tensor slopes, Tensor query, Tensor key) -> Tensor", tags);
  m.def("_t5_table(Tensor weight, Tensor query, Tensor key, *, int max_distance, bool bidirectional) -> Tensor", tags);
  m.def("_kerple_table(Tensor r1, Tensor r2, Tensor query, Tensor key, *, bool power, " POSITIONS ") -> Tensor", tags);
  m.def("_sandwich_table(Tensor inv_freq, int num_heads, Tensor query, Tensor key, *, " POSITIONS ") -> Tensor", tags);
  m.def("_cosine_sums(Tensor inv_freq, SymInt length) -> Tensor", tags);

  m.def("_fire_bias(" FIRE_PARAMETERS "Tensor query, Tensor key, *, " POSITIONS ") -> Tensor", tags);
  m.def("_fire_attention(" FIRE ") -> (Tensor out, Tensor lse)", drawing);
  m.def("_fire_attention_forward(" FIRE ") -> (Tensor out, Tensor lse, Tensor seeds)", drawing);
  m.def(
      "_fire_attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, Tensor seeds, int[] wanted, " FIRE
      ") -> Tensor[]",
      exact);
}

}  // namespace

Tensor alibi_terms(const Tensor& slopes, const Span& span) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&)>("posenc::_alibi_terms");
  return op.call(slopes, span.query, span.key);
}

Tensor t5_table(const Tensor& weight, const Span& span, int64_t max_distance, bool bidirectional) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, bool)>("posenc::_t5_table");
  return op.call(weight, span.query, span.key, max_distance, bidirectional);
}

Tensor kerple_table(const Tensor& r1, const Tensor& r2, const Span& span, bool power) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
                                        const OptionalTensor&, const OptionalTensor&)>("posenc::_kerple_table");
  return op.call(r1, r2, span.query, span.key, power, span.q_positions, span.k_positions);
}

Tensor sandwich_table(const Tensor& inv_freq, int64_t num_heads, const Span& span) {
  static const auto op = find_op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const OptionalTensor&,
                                        const OptionalTensor&)>("posenc::_sandwich_table");
  return op.call(inv_freq, num_heads, span.query, span.key, span.q_positions, span.k_positions);
}

Tensor cosine_sums(const Tensor& inv_freq, c10::SymInt length) {
  static const auto op = find_op<Tensor(const Tensor&, c10::SymInt)>("posenc::_cosine_sums");
  return op.call(inv_freq, std::move(length));
}

Tensor fire_bias(const FireParameters& p, double eps, const Span& span) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                     const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&)>("posenc::_fire_bias");
  return op.call(p.c, p.threshold, p.weight_in, p.bias_in, p.weight_out, p.bias_out, eps, span.query, span.key,
                 span.q_positions, span.k_positions);
}

OutAndLse call_fire(const FireCall& f) {
  static const auto op = find_op<FireSignature<OutAndLse>>("posenc::_fire_attention");
  return unpack_fire(f, [](const auto&... arguments) { return op.call(arguments...); });
}

FireForward call_fire_forward(const FireCall& f) {
  static const auto op = find_op<FireSignature<FireForward>>("posenc::_fire_attention_forward");
  return unpack_fire(f, [](const auto&... arguments) { return op.call(arguments...); });
}

std::vector<Tensor> call_fire_backward(const FireSaved& s, const FireCall& f) {
  static const auto op = find_op<FireBackwardSignature>("posenc::_fire_attention_backward");
  return unpack_fire(f, [&](const auto&... arguments) {
    return op.call(s.grad_out, s.grad_lse, s.out, s.lse, s.seeds, s.wanted, arguments...);
  });
}

std::tuple<Tensor, Tensor> fire_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                          const FireParameters& p, double eps, const AttentionFuncOptions& o) {
  return call_fire(pack_fire(query, key, value, p.c, p.threshold, p.weight_in, p.bias_in, p.weight_out, p.bias_out, eps,
                             o.is_causal(), o.scale(), o.key_mask(), o.window(), o.segment_ids(), o.q_positions(),
                             o.k_positions(), o.dropout_p()));
}

}  // namespace bias_ops

at::Tensor alibi_slopes(int64_t num_heads, at::ScalarType dtype, std::optional<at::Device> device) {
  static const auto op =
      find_op<at::Tensor(int64_t, std::optional<at::ScalarType>, std::optional<at::Device>)>("posenc::alibi_slopes");
  return op.call(num_heads, dtype, device);
}

at::Tensor t5_bucket(const at::Tensor& relative_position, int64_t num_buckets, int64_t max_distance,
                     bool bidirectional) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, int64_t, int64_t, bool)>("posenc::t5_bucket");
  return op.call(relative_position, num_buckets, max_distance, bidirectional);
}

}  // namespace posenc
