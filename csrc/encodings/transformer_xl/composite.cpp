/// The terms of TransformerXL over rotary_tables and ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "encodings/bias/checks.h"
#include "encodings/transformer_xl/ops.h"

#include <posenc/ops.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace posenc::transformer_xl_ops {
namespace {

constexpr const char* kModule = "TransformerXL";

void check_parameters(const Parameters& p, const bias_ops::Span& span) {
  check_dense(kModule, "content_bias", p.content_bias);
  check_dense(kModule, "position_bias", p.position_bias);
  check_dense(kModule, "pos_proj", p.pos_proj);
  check_dense(kModule, "inv_freq", p.inv_freq);
  const Tensor &u = p.content_bias, &v = p.position_bias, &w = p.pos_proj;
  TORCH_CHECK_VALUE(u.dim() == 2, kModule, ": expected content_bias of shape (num_heads, head_dim), but got ",
                    u.sym_sizes());
  const c10::SymInt heads = u.sym_size(0), width = u.sym_size(1);
  TORCH_CHECK_VALUE(v.dim() == 2 && holds(v.sym_size(0).sym_eq(heads)) && holds(v.sym_size(1).sym_eq(width)), kModule,
                    ": expected position_bias of shape (num_heads, head_dim) like content_bias, but got ",
                    v.sym_sizes());
  TORCH_CHECK_VALUE(p.inv_freq.dim() == 1, kModule, ": expected inv_freq of shape (pos_dim / 2), but got ",
                    p.inv_freq.sym_sizes());
  TORCH_CHECK_VALUE(w.dim() == 2 && holds(w.sym_size(0).sym_eq(heads * width)) &&
                        holds(w.sym_size(1).sym_eq(p.inv_freq.sym_size(0) * 2)),
                    kModule, ": expected pos_proj of shape (", heads * width, ", ", p.inv_freq.sym_size(0) * 2,
                    "), but got ", w.sym_sizes());
  bias_ops::check_span(kModule, heads, u, span);
  TORCH_CHECK_VALUE(holds(span.query.sym_size(3).sym_eq(width)), kModule,
                    ": expected query of shape (batch, heads, length, head_dim) with head_dim ", width, ", but got ",
                    span.query.sym_sizes());
}

/// The reach of the keys that distances alone do not hide.
bias_ops::Reach seen(const bias_ops::Span& span, const Hidden& h) {
  auto [before, after] = bias_ops::reach(kModule, span);
  const auto limit = [](c10::SymInt& side, std::optional<int64_t> most) {
    if (most) {
      side = side.min(std::max<int64_t>(*most, 0));  // what is negative attention refuses
    }
  };
  if (!h.has_blocks) {
    const auto within = h.window ? std::make_optional(*h.window - 1) : std::nullopt;
    limit(before, within);
    limit(before, h.window_left);
    limit(after, h.is_causal ? std::make_optional<int64_t>(0) : within);
    limit(after, h.window_right);
  }
  return {before, after};
}

/// Sinusoids of the distances to keys from `before` tokens before to `after` tokens after their query, (rows, P).
Tensor sinusoids(const Tensor& inv_freq, const bias_ops::Reach& reach, bool interleaved, at::ScalarType type) {
  const auto options = inv_freq.options().dtype(at::kLong);
  const Tensor ahead = at::arange(c10::Scalar(-reach.before), c10::Scalar(reach.after + 1), options);
  const auto [cos, sin] = posenc::rotary_tables(ahead.neg(), inv_freq, RotaryTablesFuncOptions().dtype(type));
  return interleaved ? at::stack({sin, cos}, -1).flatten(-2) : at::cat({sin, cos}, -1);
}

/// Rows (.., rows, width) of these distances as the middle of 2R + 1, with zeros where no key is.
Tensor even(const Tensor& rows, const bias_ops::Reach& reach) {
  const c10::SymInt radius = reach.before.max(reach.after);
  return at::constant_pad_nd_symint(rows, {0, 0, radius - reach.before, radius - reach.after});
}

/// Whether there are so few queries that these are multiplied with pos_proj instead of the rows: q . (W r) is (q W) .
/// r, P numbers for each query and key instead of D. A graph for any length does not ask.
bool is_few(const Tensor& query) {
  const auto tokens = (query.sym_size(0) * query.sym_size(2)).maybe_as_int();
  const auto width = query.sym_size(3).maybe_as_int();
  return tokens && width && 4 * *tokens <= *width;
}

std::tuple<Tensor, Tensor, Tensor> terms_composite(const Tensor& content_bias, const Tensor& position_bias,
                                                   const Tensor& pos_proj, const Tensor& inv_freq, const Tensor& query,
                                                   const Tensor& key, bool interleaved,
                                                   const OptionalTensor& q_positions, const OptionalTensor& k_positions,
                                                   bool is_causal, std::optional<int64_t> window,
                                                   std::optional<int64_t> window_left,
                                                   std::optional<int64_t> window_right, bool has_blocks) {
  const Parameters parameters{content_bias, position_bias, pos_proj, inv_freq};
  const bias_ops::Span span{query, key, q_positions, k_positions};
  check_parameters(parameters, span);
  const auto type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto reach = seen(span, {is_causal, window, window_left, window_right, has_blocks});
  const Tensor table = sinusoids(inv_freq, reach, interleaved, type), weight = pos_proj.to(type);
  const Tensor content = query.add(content_bias.unsqueeze(1)).to(query.scalar_type());
  if (is_few(query)) {
    const Tensor position = query.to(type).add(position_bias.unsqueeze(1)).to(type);
    const Tensor projected = at::matmul(position, weight.unflatten_symint(0, content_bias.sym_sizes()));
    return {content, projected.to(query.scalar_type()), even(table, reach)};
  }
  const Tensor position = query.add(position_bias.unsqueeze(1)).to(query.scalar_type());
  const Tensor rows = at::linear(table, weight).unflatten_symint(-1, content_bias.sym_sizes()).transpose(0, 1);
  return {content, position, even(rows, reach)};
}

POSENC_COMPOSITES(m) { m.impl("_transformer_xl_terms", &terms_composite); }

}  // namespace
}  // namespace posenc::transformer_xl_ops
