#pragma once

/// One call of attention as a value, and what its forward pass leaves for its backward pass.

#include <posenc/ops_attention.h>

#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

/// The arguments of terms that only modules use, in rows like those of posenc/attention_arguments.h.
#define POSENC_ATTENTION_MODULE_INPUTS(INPUT) \
  INPUT(kFireRate, fire_rate)                 \
  INPUT(kFireNorm, fire_norm)                 \
  INPUT(kFireOffset, fire_offset)             \
  INPUT(kFireSlope, fire_slope)
#define POSENC_ATTENTION_MODULE_TENSORS(TENSOR) TENSOR(fire_knots)

/// All rows in the order of the schema.
#define POSENC_ATTENTION_INPUTS(INPUT) \
  INPUT(kQuery, query)                 \
  INPUT(kKey, key)                     \
  INPUT(kValue, value)                 \
  POSENC_ATTENTION_TABLES(INPUT)       \
  POSENC_ATTENTION_TERM_INPUTS(INPUT)  \
  POSENC_ATTENTION_MODULE_INPUTS(INPUT)
#define POSENC_ATTENTION_ALL_TENSORS(TENSOR) \
  POSENC_ATTENTION_TENSORS(TENSOR)           \
  POSENC_ATTENTION_MODULE_TENSORS(TENSOR)
#define POSENC_ATTENTION_ALL_OPTIONS(OPTION) \
  OPTION(bool, is_causal, false)             \
  POSENC_ATTENTION_OPTIONS(OPTION)           \
  POSENC_ATTENTION_TABLE_OPTIONS(OPTION)

namespace posenc::attention_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OutAndLse = std::tuple<Tensor, Tensor>;

/// The tensors that may have a gradient. For piecewise_attention query and key are the near ones.
enum Input : int64_t {
#define POSENC_INPUT(slot, name) slot,
  POSENC_ATTENTION_INPUTS(POSENC_INPUT)
#undef POSENC_INPUT
      kInputs
};

/// By input: whether its gradient is wanted.
using Wanted = std::array<bool, kInputs>;

struct Call {
  std::array<OptionalTensor, kInputs> inputs = {};
#define POSENC_TENSOR(name) OptionalTensor name = {};
#define POSENC_OPTION(type, name, value) type name = value;
  POSENC_ATTENTION_ALL_TENSORS(POSENC_TENSOR)
  POSENC_ATTENTION_ALL_OPTIONS(POSENC_OPTION)
#undef POSENC_TENSOR
#undef POSENC_OPTION

  /// Of relative_attention alone: the distances that its tables cover to the left and to the right, and what those
  /// beyond get, "clip" or "zero". Attention takes tables of 2R + 1 rows.
  std::optional<int64_t> max_distance_left = std::nullopt, max_distance_right = std::nullopt;
  std::string beyond = "clip";

  const Tensor& query() const { return *inputs[kQuery]; }
  const Tensor& key() const { return *inputs[kKey]; }
  const Tensor& value() const { return *inputs[kValue]; }
  bool has(Input input) const { return inputs[input].has_value(); }
  const Tensor& operator[](Input input) const { return *inputs[input]; }
  /// Whether q_positions and k_positions are coordinates on two axes, of a term that has its own use for them.
  bool on_grid() const { return has(kGridBias) || has(kGridRelY) || has(kGridRelX); }
  /// The positions in the sequence that are given: causality, windows and distances go by these.
  const OptionalTensor& q_places() const { return on_grid() ? none() : q_positions; }
  const OptionalTensor& k_places() const { return on_grid() ? none() : k_positions; }
  /// Whether softcap acts on the sum of all terms.
  bool caps_sum() const { return softcap && softcap_on == "sum"; }
  /// What query . key is multiplied by.
  double score_scale() const {
    return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(query().sym_size(-1).guard_int(__FILE__, __LINE__)));
  }
  /// What products of query with grid_rel_y and grid_rel_x are multiplied by.
  double grid_scale() const { return grid_rel_scale ? *grid_rel_scale : score_scale(); }

 private:
  static const OptionalTensor& none() {
    static const OptionalTensor absent;
    return absent;
  }
};

/// Calls body(tensor) for all tensors of a call, those that may have a gradient first.
template <typename SomeCall, typename Body>
void for_each_tensor(SomeCall& c, const Body& body) {
  for (auto& input : c.inputs) {
    body(input);
  }
#define POSENC_TENSOR(name) body(c.name);
  POSENC_ATTENTION_ALL_TENSORS(POSENC_TENSOR)
#undef POSENC_TENSOR
}

/// Calls body(option) for all options of a call that are no tensors.
template <typename SomeCall, typename Body>
void for_each_option(SomeCall& c, const Body& body) {
#define POSENC_OPTION(type, name, value) body(c.name);
  POSENC_ATTENTION_ALL_OPTIONS(POSENC_OPTION)
#undef POSENC_OPTION
}

/// What a forward pass leaves for its backward pass, in tensors whose shapes results.h gives. Another backend than the
/// one that made them must not read `largest`, `total` and `counts`.
struct Residuals {
  /// out in the computing dtype: the backward sums with it, and rounded to 16 bits it would cost gradients of tables
  /// their leading digits.
  Tensor out;
  Tensor lse;
  /// int64 scalar that dropout's mask follows from.
  Tensor seed;
  /// For each query its largest score, or one near it, and the sum of the exponentials of (score - largest). Where
  /// scores are large, lse = largest + log(total) rounds total away.
  Tensor largest;
  Tensor total;
  /// Where the counting of CoPE's gates left off, for each query.
  Tensor counts;

  static constexpr const char* kSchema =
      "Tensor out, Tensor lse, Tensor seed, Tensor largest, Tensor total, Tensor counts";
  using Tuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
  Tuple tuple() const { return {out, lse, seed, largest, total, counts}; }
  static Residuals of(const Tuple& t) {
    return std::apply([](const auto&... each) { return Residuals{each...}; }, t);
  }
};

/// What the backward pass gets in addition to the call.
struct BackwardArgs {
  Tensor grad_out;
  OptionalTensor grad_lse;
  Residuals saved;
  Wanted wanted = {};
};

/// By input; undefined where not wanted.
using Gradients = std::array<Tensor, kInputs>;

// Calls through the dispatcher.
OutAndLse call_public(const Call& c);
Residuals call_forward(const Call& c);
Gradients call_backward(const BackwardArgs& b, const Call& c);

}  // namespace posenc::attention_ops
