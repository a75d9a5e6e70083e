/// CoPE's position logits in plain ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "common/checks.h"
#include "common/registration.h"
#include "encodings/cope/ops.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace posenc::cope_ops {
namespace {

void check_call(const Tensor& query, const Tensor& attn_logits, const Tensor& pos_emb,
                const std::optional<Tensor>& gate_bias) {
  for (const auto& [name, x] : {std::pair<const char*, const Tensor&>{"query", query}, {"attn_logits", attn_logits}}) {
    check_dense("CoPE", name, x);
    TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), "CoPE: expected ", name,
                     " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
    check_same_device("CoPE", name, x, pos_emb.device());
  }
  check_dense("CoPE", "pos_emb", pos_emb);
  check_dense("CoPE", "gate_bias", gate_bias);
  TORCH_CHECK_VALUE(pos_emb.dim() == 3 && holds(pos_emb.sym_size(2).sym_ge(1)),
                    "CoPE: expected pos_emb of shape (1 or heads, head_dim, max_positions), but got ",
                    pos_emb.sym_sizes());
  const c10::SymInt head_dim = pos_emb.sym_size(1), tables = pos_emb.sym_size(0);
  TORCH_CHECK_VALUE(query.dim() == 4 && holds(query.sym_size(3).sym_eq(head_dim)),
                    "CoPE: expected query of shape (batch, heads, length, head_dim) with head_dim ", head_dim,
                    ", but got ", query.sym_sizes());
  const auto same = [&](int64_t d) { return holds(attn_logits.sym_size(d).sym_eq(query.sym_size(d))); };
  TORCH_CHECK_VALUE(attn_logits.dim() == 4 && same(0) && same(1) && same(2),
                    "CoPE: expected attn_logits of shape (batch, heads, queries, keys) with query of shape ",
                    query.sym_sizes(), ", but got ", attn_logits.sym_sizes());
  TORCH_CHECK_VALUE(holds(tables.sym_eq(1).sym_or(tables.sym_eq(query.sym_size(1)))), "CoPE: expected query with the ",
                    tables, " heads of pos_emb, but got query of shape ", query.sym_sizes());
  TORCH_CHECK_VALUE(!gate_bias || (gate_bias->dim() == 1 && holds(gate_bias->sym_size(0).sym_eq(query.sym_size(1)))),
                    "CoPE: expected gate_bias of shape (heads) for query of shape ", query.sym_sizes(), ", but got ",
                    gate_bias ? gate_bias->sym_sizes() : c10::SymIntArrayRef());
}

/// arXiv 2405.18719, eq. 3 to 5.
Tensor position_logits_composite(const Tensor& query, const Tensor& attn_logits, const Tensor& pos_emb,
                                 const std::optional<Tensor>& gate_bias, bool scale_position_logits) {
  check_call(query, attn_logits, pos_emb, gate_bias);
  // Sums of 16-bit gates stall at a few hundred.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const bool wide = query.scalar_type() == at::kDouble || attn_logits.scalar_type() == at::kDouble;
  const auto type = wide ? at::kDouble : at::kFloat;

  Tensor gate_logits = attn_logits.to(type);
  if (gate_bias) {
    gate_logits = gate_logits + gate_bias->to(type).unsqueeze(-1).unsqueeze(-1);
  }
  const Tensor raw = gate_logits.sigmoid().flip({-1}).cumsum(-1).flip({-1});
  const c10::SymInt last = pos_emb.sym_size(2) - 1;
  const Tensor p = at::where(raw < c10::Scalar(last), raw, c10::Scalar(last));
  // At most last - 1, so that p = last is the upper end of the last interval; floor + 1 rather than the ceiling, which
  // would take the slope away where p is whole.
  const c10::SymInt last_floor = (last - 1).max(0);
  const Tensor floor = p.detach().floor().clamp_max(c10::Scalar(last_floor));
  const Tensor index = floor.to(at::kLong);

  Tensor z = at::matmul(query.to(type), pos_emb.to(type));
  if (scale_position_logits) {
    z = z * (1.0 / std::sqrt(static_cast<double>(query.sym_size(3).guard_int(__FILE__, __LINE__))));
  }
  const Tensor lower = z.gather(-1, index);
  const Tensor upper = z.gather(-1, index.add(1).clamp_max(c10::Scalar(last)));
  return (lower + (p - floor) * (upper - lower)).to(attn_logits.scalar_type());
}

POSENC_COMPOSITES(m) { m.impl("_cope_position_logits", &position_logits_composite); }

}  // namespace
}  // namespace posenc::cope_ops
