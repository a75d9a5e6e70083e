#include <posenc/nn/cope.h>

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

}  // namespace

void check(const CoPEOptions& o) {
  check_options("CoPE", o);
  check_numbers("CoPE", "num_heads * head_dim * max_positions",
                {o.num_heads().value_or(1), o.head_dim(), o.max_positions()});
  TORCH_CHECK_VALUE(!o.gate_bias() || o.num_heads(),
                    "CoPE: expected num_heads with gate_bias, which has one number for each head");
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

void CoPEImpl::add_terms(OpCall& op, const AttendOptions& call) {
  check_query("CoPE", op.query, options.head_dim(), options.num_heads());
  std::optional<at::Tensor> gate_key = call.gate_key();
  if (options.gate() == CoPEGate::kValue && op.value.defined()) {
    check_width("CoPE", "value", op.value, options.head_dim());
    TORCH_CHECK_VALUE(!gate_key, "CoPE: expected no gate_key with gate='value', where the values make the gates");
    gate_key = op.value;
  } else {
    check_gate_key(options.gate(), gate_key.has_value());
  }
  check_causal_by_index("CoPE", call, "positions count the keys that a query sees, back from the query");
  check_free("CoPE", "pos_emb", op.options.pos_emb().has_value());
  op.options.is_causal(true)
      .pos_emb(pos_emb)
      .gate_key(gate_key)
      .gate_bias(where_defined(gate_bias))
      .scale_position_logits(options.scale_position_logits());
}

}  // namespace posenc::nn
