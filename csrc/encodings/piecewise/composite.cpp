/// The rotations of piecewise attention in terms of posenc::rotary, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "encodings/piecewise/checks.h"

#include <posenc/ops.h>

#include <ATen/ATen.h>

namespace posenc::piecewise_ops {
namespace {

/// Positions that need not be whole: float64, which MPS lacks.
at::TensorOptions fractional(const Tensor& x) { return x.options().dtype(x.is_mps() ? at::kFloat : at::kDouble); }

Tensor rotated(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, bool interleaved,
               c10::SymInt offset = 0) {
  return posenc::rotary(x, positions, inv_freq, RotaryFuncOptions().interleaved(interleaved).offset(std::move(offset)));
}

/// The position of the first query where none are given.
c10::SymInt first_query(const Tensor& query, const Tensor& key) { return key.sym_size(2) - query.sym_size(2); }

Tensor query_positions(const Tensor& query, const Tensor& key, const OptionalTensor& given) {
  return given ? *given
               : at::arange(c10::Scalar(first_query(query, key)), c10::Scalar(key.sym_size(2)),
                            query.options().dtype(at::kLong));
}

Tensor key_positions(const Tensor& key, const OptionalTensor& given) {
  return given ? *given : at::arange(c10::Scalar(key.sym_size(2)), key.options().dtype(at::kLong));
}

/// RoPE of the queries at their positions.
Tensor near_query(const Tensor& query, const Tensor& key, const Tensor& inv_freq, const OptionalTensor& positions,
                  bool interleaved) {
  return rotated(query, positions, inv_freq, interleaved, positions ? c10::SymInt(0) : first_query(query, key));
}

/// query max(1, ln(position + 1) / ln L0), wide, so that rounding to 16 bits happens once, after the rotation.
Tensor log_scaled(const Tensor& query, const Tensor& key, const OptionalTensor& positions,
                  std::optional<int64_t> log_scale_length) {
  if (!log_scale_length) {
    return query;
  }
  const auto wide = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // Positions before the first token have no logarithm and are not scaled.
  const Tensor count = query_positions(query, key, positions).to(fractional(query).dtype()).clamp_min(0).add(1);
  const Tensor factor = count.log().div(std::log(static_cast<double>(*log_scale_length))).clamp_min(1);
  return query.to(wide) * factor.to(wide).unsqueeze(-2).unsqueeze(-1);  // (T) -> (1, T, 1), (B, T) -> (B, 1, T, 1)
}

std::tuple<Tensor, Tensor, Tensor> rerope_qk_composite(const Tensor& query, const Tensor& key, const Tensor& inv_freq,
                                                       int64_t window, bool interleaved,
                                                       std::optional<int64_t> log_scale_length,
                                                       const OptionalTensor& q_positions,
                                                       const OptionalTensor& k_positions) {
  const char* module = "ReRoPE";
  check_call(module, query, key, inv_freq, {q_positions, k_positions});
  check_at_least_1(module, "window", window);
  check_log_scale_length(module, log_scale_length);
  const Tensor q = log_scaled(query, key, q_positions, log_scale_length);
  const Tensor farthest = at::full({1}, window, query.options().dtype(at::kLong)).expand_symint({query.sym_size(2)});
  return {near_query(q, key, inv_freq, q_positions, interleaved).to(query.scalar_type()),
          rotated(key, k_positions, inv_freq, interleaved),
          rotated(q, farthest, inv_freq, interleaved).to(query.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> leaky_rerope_qk_composite(const Tensor& query, const Tensor& key,
                                                                     const Tensor& inv_freq, const Tensor& far_inv_freq,
                                                                     int64_t window, double leak, bool interleaved,
                                                                     std::optional<int64_t> log_scale_length,
                                                                     const OptionalTensor& q_positions,
                                                                     const OptionalTensor& k_positions) {
  const char* module = "ReRoPE";
  check_call(module, query, key, inv_freq, {q_positions, k_positions});
  check_at_least_1(module, "window", window);
  check_leak(module, leak);
  check_log_scale_length(module, log_scale_length);
  const Tensor q = log_scaled(query, key, q_positions, log_scale_length);
  const Tensor far = query_positions(query, key, q_positions)
                         .to(fractional(query).dtype())
                         .add(static_cast<double>(window) * (leak - 1));
  return {near_query(q, key, inv_freq, q_positions, interleaved).to(query.scalar_type()),
          rotated(key, k_positions, inv_freq, interleaved),
          rotated(q, far, far_inv_freq, interleaved).to(query.scalar_type()),
          rotated(key, k_positions, far_inv_freq, interleaved)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> self_extend_qk_composite(const Tensor& query, const Tensor& key,
                                                                    const Tensor& inv_freq, int64_t group,
                                                                    int64_t window, bool interleaved,
                                                                    const OptionalTensor& q_positions,
                                                                    const OptionalTensor& k_positions) {
  const char* module = "SelfExtend";
  check_call(module, query, key, inv_freq, {q_positions, k_positions});
  check_at_least_1(module, "group", group);
  check_at_least_1(module, "window", window);
  const auto in_groups = [group](const Tensor& positions) { return at::div(positions, group, "floor"); };
  const double shift = static_cast<double>(window) - static_cast<double>(window) / static_cast<double>(group);
  const Tensor far = in_groups(query_positions(query, key, q_positions)).to(fractional(query).dtype()).add(shift);
  return {near_query(query, key, inv_freq, q_positions, interleaved), rotated(key, k_positions, inv_freq, interleaved),
          rotated(query, far, inv_freq, interleaved),
          rotated(key, in_groups(key_positions(key, k_positions)), inv_freq, interleaved)};
}

POSENC_COMPOSITES(m) {
  m.impl("_rerope_qk", &rerope_qk_composite);
  m.impl("_leaky_rerope_qk", &leaky_rerope_qk_composite);
  m.impl("_self_extend_qk", &self_extend_qk_composite);
}

}  // namespace
}  // namespace posenc::piecewise_ops
