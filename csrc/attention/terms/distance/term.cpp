#include "attention/terms/distance/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Distance::check(const Call& c) {
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1);
  if (c.has(kSlopes)) {
    check_table(c, kSlopes);
    const Tensor& x = c[kSlopes];
    TORCH_CHECK_VALUE((x.dim() == 1 || (x.dim() == 2 && equal(x.sym_size(0), batch))) && equal(x.sym_size(-1), heads),
                      op_name(c), ": expected alibi_slopes of shape (", heads, ") or (", batch, ", ", heads,
                      "), but got ", x.sym_sizes());
  }
  if (c.has(kDistanceBias)) {
    check_table(c, kDistanceBias);
    const Tensor& x = c[kDistanceBias];
    TORCH_CHECK_VALUE(x.dim() == 2 && equal(x.sym_size(0), heads) && holds((x.sym_size(1) % 2).sym_eq(1)), op_name(c),
                      ": expected distance_bias of shape (", heads, ", 2R + 1), but got ", x.sym_sizes());
  }
}

namespace {

/// (H) or (B, H) -> (1 or B, H, 1, 1).
Tensor per_head(const Tensor& x) { return (x.dim() == 1 ? x.unsqueeze(0) : x).unsqueeze(-1).unsqueeze(-1); }

}  // namespace

void Distance::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  if (o.call.has(kSlopes)) {
    scores = scores - per_head(o[kSlopes]) * block.distance->abs();
  }
  if (o.call.has(kDistanceBias)) {
    const Tensor& table = o[kDistanceBias];
    scores = scores + look_up(o, table.unsqueeze(0).unsqueeze(2), clipped(block, table.sym_size(1)));
  }
}

void Distance::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                             GradientSums& sums) {
  if (sums.wants(kSlopes)) {
    const Tensor by_row = (grad * block.distance->abs()).sum({2, 3}).neg();
    sums.add(kSlopes, o[kSlopes].dim() == 1 ? by_row.sum(0) : by_row);
  }
  if (sums.wants(kDistanceBias)) {
    const c10::SymInt entries = o[kDistanceBias].sym_size(1);
    sums.add(kDistanceBias, sum_bins(o, grad, clipped(block, entries), entries).sum({0, 2}));
  }
}

}  // namespace posenc::attention_ops
