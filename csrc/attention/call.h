#pragma once

/// One call of an attention op, and the flat argument lists of the four schemas, adapted once for all backends: a
/// kernel is a function of a Call and is registered as `&Flat<Dot>::forward<kernel>`.

#include <posenc/ops.h>

#include <array>
#include <cmath>
#include <tuple>

namespace posenc::attention_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OutAndLse = std::tuple<Tensor, Tensor>;

/// The tensors that may have a gradient, over all ops. For piecewise_attention query and key are the near ones.
enum Slot : int64_t {
  kQuery,
  kKey,
  kValue,
  kFarQuery,
  kFarKey,
  kRelK,
  kRelV,
  kPosEmb,
  kGateKey,
  kGateBias,
  kSlopes,
  kDistanceBias,
  kBias,
  kLogDecay,
  kSlots,
};

/// Entries of log_decay below count as this one: sums keep their digits, and a weight of exp(-100000) is 0.
inline constexpr double kLowestDecay = -1e5;

struct Call {
  /// Name of the public op, for messages.
  const char* op;
  std::array<OptionalTensor, kSlots> inputs = {};

  bool is_causal = false;
  std::optional<double> scale = {};
  OptionalTensor key_mask = {};
  std::optional<int64_t> window = {};
  OptionalTensor segment_ids = {};
  OptionalTensor q_positions = {};
  OptionalTensor k_positions = {};
  double dropout_p = 0.0;
  /// cope_attention
  bool scale_position_logits = false;
  /// piecewise_attention
  int64_t threshold = 0;

  const Tensor& query() const { return *inputs[kQuery]; }
  const Tensor& key() const { return *inputs[kKey]; }
  const Tensor& value() const { return *inputs[kValue]; }
  bool has(Slot slot) const { return inputs[slot].has_value(); }
  const Tensor& operator[](Slot slot) const { return *inputs[slot]; }
  /// What query . key is multiplied by.
  double score_scale() const { return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(query().size(-1))); }
};

/// What the backward of an op gets beside the op's own arguments.
struct Saved {
  Tensor grad_out;
  OptionalTensor grad_lse;
  Tensor out;
  Tensor lse;
  /// int64 scalar that dropout's mask follows from.
  Tensor seed;
  /// What else the forward pass left for its own backward.
  std::vector<Tensor> state;
  /// Slots whose gradients are wanted, in the order of the result.
  std::vector<int64_t> wanted;
};

/// out in the computing dtype (the backward sums with it: rounded to 16 bits it would cost gradients of tables their
/// leading digits), lse, seed, state.
using Forward = std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>>;

// Each op: the types of its flat arguments, and the way from them to a Call and back.

struct Dot {
  static constexpr const char *name = "posenc::attention", *forward_name = "posenc::_attention_forward",
                              *backward_name = "posenc::_attention_backward", *node_name = "AttentionBackward";
  using Args =
      std::tuple<const Tensor&, const Tensor&, const Tensor&, bool, std::optional<double>, const OptionalTensor&,
                 std::optional<int64_t>, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                 const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, double>;

  static Call pack(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                   std::optional<double> scale, const OptionalTensor& key_mask, std::optional<int64_t> window,
                   const OptionalTensor& segment_ids, const OptionalTensor& q_positions,
                   const OptionalTensor& k_positions, const OptionalTensor& alibi_slopes,
                   const OptionalTensor& distance_bias, const OptionalTensor& bias, const OptionalTensor& log_decay,
                   double dropout_p) {
    Call c{.op = "attention",
           .is_causal = is_causal,
           .scale = scale,
           .key_mask = key_mask,
           .window = window,
           .segment_ids = segment_ids,
           .q_positions = q_positions,
           .k_positions = k_positions,
           .dropout_p = dropout_p};
    c.inputs[kQuery] = query;
    c.inputs[kKey] = key;
    c.inputs[kValue] = value;
    c.inputs[kSlopes] = alibi_slopes;
    c.inputs[kDistanceBias] = distance_bias;
    c.inputs[kBias] = bias;
    c.inputs[kLogDecay] = log_decay;
    return c;
  }

  static Args unpack(const Call& c) {
    return {c.query(),         c.key(),
            c.value(),         c.is_causal,
            c.scale,           c.key_mask,
            c.window,          c.segment_ids,
            c.q_positions,     c.k_positions,
            c.inputs[kSlopes], c.inputs[kDistanceBias],
            c.inputs[kBias],   c.inputs[kLogDecay],
            c.dropout_p};
  }
};

struct Relative {
  static constexpr const char *name = "posenc::relative_attention",
                              *forward_name = "posenc::_relative_attention_forward",
                              *backward_name = "posenc::_relative_attention_backward",
                              *node_name = "RelativeAttentionBackward";
  using Args = std::tuple<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, bool,
                          std::optional<double>, const OptionalTensor&, std::optional<int64_t>, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, double>;

  static Call pack(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& rel_k,
                   const OptionalTensor& rel_v, bool is_causal, std::optional<double> scale,
                   const OptionalTensor& key_mask, std::optional<int64_t> window, const OptionalTensor& segment_ids,
                   const OptionalTensor& q_positions, const OptionalTensor& k_positions, double dropout_p) {
    Call c{.op = "relative_attention",
           .is_causal = is_causal,
           .scale = scale,
           .key_mask = key_mask,
           .window = window,
           .segment_ids = segment_ids,
           .q_positions = q_positions,
           .k_positions = k_positions,
           .dropout_p = dropout_p};
    c.inputs[kQuery] = query;
    c.inputs[kKey] = key;
    c.inputs[kValue] = value;
    c.inputs[kRelK] = rel_k;
    c.inputs[kRelV] = rel_v;
    return c;
  }

  static Args unpack(const Call& c) {
    return {c.query(),  c.key(),  c.value(),     c[kRelK],      c.inputs[kRelV], c.is_causal, c.scale,
            c.key_mask, c.window, c.segment_ids, c.q_positions, c.k_positions,   c.dropout_p};
  }
};

struct Cope {
  static constexpr const char *name = "posenc::cope_attention", *forward_name = "posenc::_cope_attention_forward",
                              *backward_name = "posenc::_cope_attention_backward", *node_name = "CopeAttentionBackward";
  using Args = std::tuple<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                          const OptionalTensor&, std::optional<double>, bool, const OptionalTensor&,
                          std::optional<int64_t>, const OptionalTensor&, double>;

  static Call pack(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& pos_emb,
                   const OptionalTensor& gate_key, const OptionalTensor& gate_bias, std::optional<double> scale,
                   bool scale_position_logits, const OptionalTensor& key_mask, std::optional<int64_t> window,
                   const OptionalTensor& segment_ids, double dropout_p) {
    Call c{.op = "cope_attention",
           .is_causal = true,
           .scale = scale,
           .key_mask = key_mask,
           .window = window,
           .segment_ids = segment_ids,
           .dropout_p = dropout_p,
           .scale_position_logits = scale_position_logits};
    c.inputs[kQuery] = query;
    c.inputs[kKey] = key;
    c.inputs[kValue] = value;
    c.inputs[kPosEmb] = pos_emb;
    c.inputs[kGateKey] = gate_key;
    c.inputs[kGateBias] = gate_bias;
    return c;
  }

  static Args unpack(const Call& c) {
    return {c.query(),
            c.key(),
            c.value(),
            c[kPosEmb],
            c.inputs[kGateKey],
            c.inputs[kGateBias],
            c.scale,
            c.scale_position_logits,
            c.key_mask,
            c.window,
            c.segment_ids,
            c.dropout_p};
  }
};

struct Piecewise {
  static constexpr const char *name = "posenc::piecewise_attention",
                              *forward_name = "posenc::_piecewise_attention_forward",
                              *backward_name = "posenc::_piecewise_attention_backward",
                              *node_name = "PiecewiseAttentionBackward";
  using Args = std::tuple<const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool,
                          std::optional<double>, const OptionalTensor&, std::optional<int64_t>, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, double>;

  static Call pack(const Tensor& q_near, const Tensor& k_near, const Tensor& q_far, const Tensor& k_far,
                   const Tensor& value, int64_t threshold, bool is_causal, std::optional<double> scale,
                   const OptionalTensor& key_mask, std::optional<int64_t> window, const OptionalTensor& segment_ids,
                   const OptionalTensor& q_positions, const OptionalTensor& k_positions, double dropout_p) {
    Call c{.op = "piecewise_attention",
           .is_causal = is_causal,
           .scale = scale,
           .key_mask = key_mask,
           .window = window,
           .segment_ids = segment_ids,
           .q_positions = q_positions,
           .k_positions = k_positions,
           .dropout_p = dropout_p,
           .threshold = threshold};
    c.inputs[kQuery] = q_near;
    c.inputs[kKey] = k_near;
    c.inputs[kFarQuery] = q_far;
    c.inputs[kFarKey] = k_far;
    c.inputs[kValue] = value;
    return c;
  }

  static Args unpack(const Call& c) {
    return {c.query(), c.key(),    c[kFarQuery], c[kFarKey],    c.value(),     c.threshold,   c.is_causal,
            c.scale,   c.key_mask, c.window,     c.segment_ids, c.q_positions, c.k_positions, c.dropout_p};
  }
};

/// Dispatcher functions of an op with these arguments.
template <typename Op, typename Args = typename Op::Args>
struct Flat;

template <typename Op, typename... Args>
struct Flat<Op, std::tuple<Args...>> {
  using Public = OutAndLse(Args...);
  using ForwardOp = Forward(Args...);
  using BackwardOp = std::vector<Tensor>(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                                         const Tensor&, at::TensorList, at::IntArrayRef, Args...);

  /// The public op and `_NAME_forward`.
  template <auto kernel>
  static auto forward(Args... args) {
    return kernel(Op::pack(args...));
  }

  template <auto kernel>
  static std::vector<Tensor> backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& out,
                                      const Tensor& lse, const Tensor& seed, at::TensorList state,
                                      at::IntArrayRef wanted, Args... args) {
    return kernel(Saved{grad_out, grad_lse, out, lse, seed, state.vec(), wanted.vec()}, Op::pack(args...));
  }
};

/// Calls through the dispatcher.
template <typename Op>
OutAndLse call_public(const Call& c);
template <typename Op>
Forward call_forward(const Call& c);
template <typename Op>
std::vector<Tensor> call_backward(const Saved& s, const Call& c);

}  // namespace posenc::attention_ops
