#include "attention/ops.h"
#include "common/checks.h"
#include "nn/additive_call.h"
#include "nn/score_call.h"

#include <ATen/ops/zeros.h>

namespace posenc::nn {
void AdditiveEncoding::add_terms(OpCall& op, const AttendOptions& call) {
  const ScoreTerms added = terms({op.query, op.key, call.q_positions(), call.k_positions()});
  if (added.slopes) {
    add_term(op.options.alibi_slopes(), *added.slopes);
  }
  if (added.distance_bias) {
    add_table(op.options.distance_bias(), *added.distance_bias, -1);
  }
  if (added.bias) {
    add_term(op.options.bias(), *added.bias);
  }
  if (added.grid_bias) {
    check_free_of_axes(op, "AdditiveEncoding");
    op.options.grid_bias(added.grid_bias);
  }
  if (added.q_positions && added.k_positions) {
    op.options.q_positions(added.q_positions).k_positions(added.k_positions);
  }
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
