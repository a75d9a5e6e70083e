#pragma once

/// What reference.h computes: a call of attention and the tensors that gradients flow to; and sums over float64
/// numbers.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace reference {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A float64 tensor that loops may read.
inline Tensor wide(const Tensor& x) { return x.defined() ? x.detach().to(at::kDouble).contiguous() : x; }

/// The numbers of x at [index..], for contiguous float64 x. Dimensions of size 1 are shared; missing leading dimensions
/// count as size 1.
inline double* at(const Tensor& x, std::initializer_list<int64_t> index) {
  const at::IntArrayRef sizes = x.sizes(), strides = x.strides();
  const size_t missing = index.size() - std::min(index.size(), sizes.size());
  const int64_t* given = index.begin() + missing;
  int64_t offset = 0;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    offset += sizes[dim] > 1 ? given[dim] * strides[dim] : 0;
  }
  return static_cast<double*>(const_cast<void*>(x.const_data_ptr())) + offset;
}

/// What gradients flow to. Undefined: absent.
struct Inputs {
  /// (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv).
  Tensor q, k, v;
  /// (H) or (B, H); (H, 2R+1); up to (B, H, Tq, Tk); (B or 1, H, Tk).
  Tensor slopes, distance_bias, bias, log_decay;
  /// (H), or (B, H, Tq).
  Tensor sinks;
  /// (2R+1, D) or (H, 2R+1, D); with rel_query (B, H, Tq, r) rel_k is r wide.
  Tensor rel_k, rel_v, rel_query;
  /// (2R+1, D) or (H, 2R+1, D).
  Tensor rel_q;
  /// Queries and keys of distances from `threshold` on.
  Tensor q_far, k_far;
  /// (1 or H, D, P); (B, G, Tk, D); (H).
  Tensor pos_emb, gate_key, gate_bias;
  /// (H, 2Ry+1, 2Rx+1); (2R+1, D) or (H, 2R+1, D).
  Tensor grid_bias, grid_rel_y, grid_rel_x;
};

struct Member {
  const char* name;
  Tensor Inputs::* tensor;
};

inline constexpr Member kMembers[] = {{"query", &Inputs::q},
                                      {"key", &Inputs::k},
                                      {"value", &Inputs::v},
                                      {"alibi_slopes", &Inputs::slopes},
                                      {"distance_bias", &Inputs::distance_bias},
                                      {"bias", &Inputs::bias},
                                      {"log_decay", &Inputs::log_decay},
                                      {"sinks", &Inputs::sinks},
                                      {"rel_k", &Inputs::rel_k},
                                      {"rel_v", &Inputs::rel_v},
                                      {"rel_query", &Inputs::rel_query},
                                      {"rel_q", &Inputs::rel_q},
                                      {"q_far", &Inputs::q_far},
                                      {"k_far", &Inputs::k_far},
                                      {"pos_emb", &Inputs::pos_emb},
                                      {"gate_key", &Inputs::gate_key},
                                      {"gate_bias", &Inputs::gate_bias},
                                      {"grid_bias", &Inputs::grid_bias},
                                      {"grid_rel_y", &Inputs::grid_rel_y},
                                      {"grid_rel_x", &Inputs::grid_rel_x}};

/// A call to attention with any score terms.
struct Call {
  Inputs inputs;
  std::optional<double> scale = std::nullopt;
  bool is_causal = false;
  std::optional<int64_t> window = std::nullopt, window_left = std::nullopt, window_right = std::nullopt;
  /// (B, Tk) bool, (B, Tk) integer, (T) or (B, T).
  Tensor key_mask, segment_ids, q_positions, k_positions;
  /// Up to (B, H, Tq, Tk) bool; (B, Tq) and (B, Tk) integer; () or (B).
  Tensor attn_mask, q_segment_ids, block_ids, q_start;
  /// Coordinates on two axes, (2, 1 or B, T).
  Tensor q_grid, k_grid;
  /// Multiplies products with grid_rel_y and grid_rel_x.
  std::optional<double> grid_rel_scale = std::nullopt;
  /// c tanh(s / c) of the product, or of the sum of all terms.
  std::optional<double> softcap = std::nullopt;
  bool caps_sum = false;
  /// The distances that rel_k and rel_v cover, to the left and to the right, where these differ; and whether those
  /// beyond get nothing.
  std::optional<std::pair<int64_t, int64_t>> max_distance = std::nullopt;
  bool zero_beyond = false;
  /// Of the inputs q_far and k_far.
  int64_t threshold = 0;
  /// CoPE: whether scale multiplies the position logits too.
  bool scale_position_logits = false;
  /// What dropout multiplies weights by, (B, H, Tq, Tk).
  Tensor kept;
};

/// The sum of products of n numbers, `step` apart in b.
inline double dot(const double* a, const double* b, int64_t n, int64_t step = 1) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[i] * b[i * step];
  }
  return sum;
}

/// to[i * to_step] += factor * from[i * from_step].
inline void add(double factor, const double* from, int64_t from_step, int64_t n, double* to, int64_t to_step = 1) {
  for (int64_t i = 0; i < n; ++i) {
    to[i * to_step] += factor * from[i * from_step];
  }
}

}  // namespace reference
