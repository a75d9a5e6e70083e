#include <posenc/nn/cope.h>

#include "attention/ops.h"
#include "common/checks.h"
#include "encodings/cope/ops.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace posenc::nn {
namespace {

void check_gate_key(CoPEGate gate, bool given) {
  switch (gate) {
    case CoPEGate::kLogits:
      TORCH_CHECK_VALUE(!given, "CoPE: expected no gate_key with gate='logits', where the keys make the gates");
      break;
    case CoPEGate::kKey:
      TORCH_CHECK_VALUE(given, "CoPE: expected gate_key (batch, kv_heads, keys, head_dim) with gate='key'");
      break;
    case CoPEGate::kValue:
      TORCH_CHECK_VALUE(given, "CoPE: expected gate_key, the values, in logits with gate='value'");
      break;
  }
}

/// The op's options for a call whose gates are made by `gate_key`.
CopeAttentionFuncOptions cope_options(const CoPEImpl& self, const AttendOptions& call,
                                      const std::optional<at::Tensor>& gate_key) {
  check_token_state(self, call);
  check_causal_by_index("CoPE", call, "positions count the keys that a query sees, back from the query");
  return op_options<CopeAttentionFuncOptions>(call)
      .gate_key(gate_key)
      .gate_bias(where_defined(self.gate_bias))
      .scale_position_logits(self.options.scale_position_logits());
}

}  // namespace

void check(const CoPEOptions& o) {
  check_options("CoPE", o);
  check_numbers("CoPE", "num_heads * head_dim * max_positions",
                {o.num_heads().value_or(1), o.head_dim(), o.max_positions()});
  TORCH_CHECK_VALUE(!o.gate_bias() || o.num_heads(),
                    "CoPE: expected num_heads beside gate_bias, which has one number for each head");
}

CoPEImpl::CoPEImpl(CoPEOptions options) : options(std::move(options)) { reset(); }

void CoPEImpl::reset() {
  check(options);
  const int64_t tables = options.num_heads().value_or(1);
  pos_emb = register_parameter("pos_emb", unset_parameter({tables, options.head_dim(), options.max_positions()}));
  if (options.gate_bias()) {
    gate_bias = register_parameter("gate_bias", unset_parameter({tables}));
  }
  reset_parameters();
}

void CoPEImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  pos_emb.zero_();
  if (gate_bias.defined()) {
    gate_bias.fill_(*options.gate_bias());
  }
}

void CoPEImpl::pretty_print(std::ostream& stream) const { print_options(stream, "CoPE", options); }

at::Tensor CoPEImpl::forward(const at::Tensor& query, const at::Tensor& attn_logits) {
  return cope_ops::position_logits(query, attn_logits, pos_emb, where_defined(gate_bias),
                                   options.scale_position_logits());
}

std::tuple<at::Tensor, at::Tensor> CoPEImpl::attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                             const at::Tensor& value, const AttendOptions& call) {
  check_query("CoPE", query, options.head_dim(), options.num_heads());
  if (options.gate() == CoPEGate::kValue) {
    check_width("CoPE", "value", value, options.head_dim());
    TORCH_CHECK_VALUE(!call.gate_key(),
                      "CoPE: expected no gate_key with gate='value', where the values make the gates");
    return posenc::cope_attention_with_lse(query, key, value, pos_emb, cope_options(*this, call, value));
  }
  check_gate_key(options.gate(), call.gate_key().has_value());
  return posenc::cope_attention_with_lse(query, key, value, pos_emb, cope_options(*this, call, call.gate_key()));
}

at::Tensor CoPEImpl::logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  check_query("CoPE", query, options.head_dim(), options.num_heads());
  check_gate_key(options.gate(), call.gate_key().has_value());
  check_no_dropout(*this, call);
  return attention_ops::cope_attention_logits(query, key, pos_emb, cope_options(*this, call, call.gate_key()));
}

}  // namespace posenc::nn
