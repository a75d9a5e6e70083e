#pragma once

/// What the score modules share.

#include <posenc/nn/encoding.h>

#include <c10/util/Exception.h>

namespace posenc::nn {

/// Raises unless x, the argument `name`, is (B, heads, length, D) with the width D that the module was built for.
void check_width(const char* module, const char* name, const at::Tensor& x, int64_t head_dim);

/// Raises unless query is (B, H, Tq, D) with the width and, where the module tells heads apart, the heads it was built
/// for.
void check_query(const char* module, const at::Tensor& query, int64_t head_dim, std::optional<int64_t> num_heads);

/// Raises where a call has gate keys, which only CoPE reads.
void check_no_gate_key(const char* module, const AttendOptions& call);

/// Raises where a call has decays, which only ForgettingBias reads.
void check_no_log_decay(const char* module, const AttendOptions& call);

/// Raises where logits() is asked for dropout.
void check_no_dropout(const char* module, const AttendOptions& call);

/// Sets what the op options of relative_attention and piecewise_attention share.
template <typename OpOptions>
OpOptions op_options(const AttendOptions& call) {
  auto o = OpOptions();
  if (call.is_causal()) {
    o.is_causal(*call.is_causal());
  }
  return o.scale(call.scale())
      .key_mask(call.key_mask())
      .window(call.window())
      .segment_ids(call.segment_ids())
      .q_positions(call.q_positions())
      .k_positions(call.k_positions())
      .dropout_p(call.dropout_p());
}

}  // namespace posenc::nn
