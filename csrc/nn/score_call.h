#pragma once

/// What the score modules share: checks of a call, and from its options to those of an attention op.

#include <posenc/nn/encoding.h>

#include <c10/util/Exception.h>

namespace posenc::nn {

/// Raises unless x, the argument `name`, is (B, heads, length, D) with the width D that the module was built for.
void check_width(const char* module, const char* name, const at::Tensor& x, int64_t head_dim);

/// Raises unless query is (B, H, Tq, D) with the width and, where the module has num_heads, the heads it was built for.
void check_query(const char* module, const at::Tensor& query, int64_t head_dim, std::optional<int64_t> num_heads);

/// Raises where a call has token state that `encoding` does not take.
void check_token_state(const ScoreEncoding& encoding, const AttendOptions& call);

/// Raises where a call of an encoding that is causal by index is not causal, or has positions. `reason` ends the
/// messages.
void check_causal_by_index(const char* module, const AttendOptions& call, const char* reason);

/// Raises where logits() is called with dropout.
void check_no_dropout(const ScoreEncoding& encoding, const AttendOptions& call);

/// The options of an attention op that a call gives: what every op takes, and is_causal and positions where the op
/// takes them. What a call does not give keeps the op's default.
template <typename OpOptions>
OpOptions op_options(const AttendOptions& call) {
  auto o = OpOptions();
  o.scale(call.scale())
      .key_mask(call.key_mask())
      .attn_mask(call.attn_mask())
      .window(call.window())
      .window_left(call.window_left())
      .window_right(call.window_right())
      .segment_ids(call.segment_ids())
      .q_segment_ids(call.q_segment_ids())
      .block_ids(call.block_ids())
      .bias(call.bias())
      .softcap(call.softcap())
      .softcap_on(call.softcap_on())
      .sinks(call.sinks())
      .dropout_p(call.dropout_p());
  if constexpr (requires { o.is_causal(true); }) {
    if (call.is_causal()) {
      o.is_causal(*call.is_causal());
    }
  }
  if constexpr (requires { o.q_positions(call.q_positions()); }) {
    o.q_positions(call.q_positions()).k_positions(call.k_positions());
  }
  return o;
}

/// The call that encodings, all in one attention, make of a call of theirs.
OpCall op_call(const std::vector<ScoreEncoding*>& encodings, const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, const AttendOptions& call);
std::tuple<at::Tensor, at::Tensor> attend(const OpCall& op);

/// Adds a term, or where one is there already, its numbers to those.
void add_term(std::optional<at::Tensor>& place, const at::Tensor& term);
/// The same for tables over clipped distances, 2R+1 entries along `dim`: the ends of the shorter one go on.
void add_table(std::optional<at::Tensor>& place, const at::Tensor& table, int64_t dim);
/// Raises where another encoding of the call has the term `name` already, of which the op takes one.
void check_free(const char* module, const char* name, bool taken);

/// Raises where another encoding of the call has a term on two axes: positions serve one.
void check_free_of_axes(const OpCall& op, const char* module);

/// A parameter that may be undefined, as an optional argument of an op.
inline std::optional<at::Tensor> where_defined(const at::Tensor& parameter) {
  return parameter.defined() ? std::make_optional(parameter) : std::nullopt;
}

}  // namespace posenc::nn
