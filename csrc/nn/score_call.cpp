#include "nn/score_call.h"

#include "common/checks.h"

namespace posenc::nn {

void check_width(const char* module, const char* name, const at::Tensor& x, int64_t head_dim) {
  if (x.defined()) {
    check_dense(module, name, x);
  }
  TORCH_CHECK_VALUE(x.defined() && x.dim() == 4 && x.size(3) == head_dim, module, ": expected ", name,
                    " of shape (batch, heads, length, head_dim) with head_dim ", head_dim, ", but got ",
                    x.defined() ? c10::str(x.sizes()) : "an undefined tensor");
}

void check_query(const char* module, const at::Tensor& query, int64_t head_dim, std::optional<int64_t> num_heads) {
  check_width(module, "query", query, head_dim);
  TORCH_CHECK_VALUE(!num_heads || query.size(1) == *num_heads, module,
                    ": expected query of shape (batch, heads, length, head_dim) with num_heads ", num_heads.value_or(0),
                    ", but got ", query.sizes());
}

void check_no_gate_key(const char* module, const AttendOptions& call) {
  TORCH_CHECK_VALUE(!call.gate_key(), module, ": expected no gate_key, which is for CoPE with gates from keys");
}

void check_no_log_decay(const char* module, const AttendOptions& call) {
  TORCH_CHECK_VALUE(!call.log_decay(), module, ": expected no log_decay, which is for ForgettingBias");
}

void check_no_dropout(const char* module, const AttendOptions& call) {
  TORCH_CHECK_VALUE(call.dropout_p() == 0, module, ": expected no dropout_p in logits, which drop nothing, but got ",
                    call.dropout_p());
}

}  // namespace posenc::nn
