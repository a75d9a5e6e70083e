#include <posenc/nn/piecewise.h>

#include "attention/ops.h"
#include "nn/score_call.h"

namespace posenc::nn {

std::tuple<at::Tensor, at::Tensor> PiecewiseEncoding::attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                                      const at::Tensor& value,
                                                                      const AttendOptions& call) {
  check_token_state(*this, call);
  const auto s = sides(query, key, call.q_positions(), call.k_positions());
  return posenc::piecewise_attention_with_lse(s.q_near, s.k_near, s.q_far, s.k_far, value, threshold(),
                                              op_options<PiecewiseAttentionFuncOptions>(call));
}

at::Tensor PiecewiseEncoding::logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  check_token_state(*this, call);
  check_no_dropout(*this, call);
  const auto s = sides(query, key, call.q_positions(), call.k_positions());
  return attention_ops::piecewise_attention_logits(s.q_near, s.k_near, s.q_far, s.k_far, threshold(),
                                                   op_options<PiecewiseAttentionFuncOptions>(call));
}

}  // namespace posenc::nn
