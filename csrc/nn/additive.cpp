#include "attention/ops.h"
#include "common/checks.h"
#include "nn/additive_call.h"
#include "nn/score_call.h"

#include <ATen/ops/zeros.h>

namespace posenc::nn {
namespace {

AttentionFuncOptions with_terms(const AttendOptions& call, std::optional<double> scale, const ScoreTerms& terms) {
  return op_options<AttentionFuncOptions>(call)
      .scale(scale)
      .q_positions(terms.q_positions ? terms.q_positions : call.q_positions())
      .k_positions(terms.k_positions ? terms.k_positions : call.k_positions())
      .alibi_slopes(terms.slopes)
      .distance_bias(terms.distance_bias)
      .grid_bias(terms.grid_bias)
      .bias(terms.bias && call.bias() ? std::make_optional(*terms.bias + *call.bias())
            : terms.bias              ? terms.bias
                                      : call.bias());
}

ScoreCall score_call(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  return {query, key, call.q_positions(), call.k_positions()};
}

}  // namespace

std::optional<double> AdditiveEncoding::scale_of(const AttendOptions& call) const {
  return call.scale() ? call.scale() : own_scale();
}

std::tuple<at::Tensor, at::Tensor> AdditiveEncoding::attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                                     const at::Tensor& value,
                                                                     const AttendOptions& call) {
  check_token_state(*this, call);
  const ScoreTerms added = terms(score_call(query, key, call));
  return attention_with_lse(query, key, value, with_terms(call, scale_of(call), added));
}

at::Tensor AdditiveEncoding::logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  check_token_state(*this, call);
  check_no_dropout(*this, call);
  const ScoreTerms added = terms(score_call(query, key, call));
  return attention_ops::attention_logits(query, key, with_terms(call, scale_of(call), added));
}

at::Tensor AdditiveEncoding::bias(int64_t q_len, std::optional<int64_t> k_len) {
  for (const auto& [name, length] : {std::pair("q_len", q_len), std::pair("k_len", k_len.value_or(q_len))}) {
    TORCH_CHECK_VALUE(length >= 0, "bias: expected ", name, " to be at least 0, but got ", length);
  }
  check_numbers("bias", "num_heads * q_len * k_len", {heads(), q_len, k_len.value_or(q_len)});
  at::TensorOptions options = at::TensorOptions(at::kFloat).device(at::kCPU);
  if (const at::Tensor like = parameter(); like.defined()) {
    options = like.options().dtype(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).requires_grad({});
  }
  // The scores of queries and keys that are zero.
  const at::Tensor query = at::zeros({1, heads(), q_len, 1}, options);
  const at::Tensor key = at::zeros({1, 1, k_len.value_or(q_len), 1}, options);
  return logits(query, key, AttendOptions().scale(1.0)).squeeze(0);
}

}  // namespace posenc::nn
