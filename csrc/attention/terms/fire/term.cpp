#include "attention/terms/fire/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Fire::check(const Call& c) {
  TORCH_CHECK_VALUE(c.has(kFireRate) && c.has(kFireNorm) && c.has(kFireOffset) && c.has(kFireSlope) && c.fire_knots,
                    op_name(c), ": expected fire_rate, fire_norm, fire_knots, fire_offset and fire_slope together");
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1), queries = c.query().sym_size(2);
  for (const Input input : {kFireRate, kFireNorm, kFireOffset, kFireSlope}) {
    check_table(c, input);
  }
  const Tensor &rate = c[kFireRate], &norm = c[kFireNorm], &knots = *c.fire_knots;
  check_beside_query(c, "fire_knots", knots);
  TORCH_CHECK_TYPE(at::isFloatingType(knots.scalar_type()), op_name(c),
                   ": expected fire_knots to be a floating type, but got ", knots.scalar_type());
  TORCH_CHECK_VALUE(rate.dim() == 1 && equal(rate.sym_size(0), 1), op_name(c),
                    ": expected fire_rate of shape (1), but got ", rate.sym_sizes());
  TORCH_CHECK_VALUE(norm.dim() == 3 && one_or(norm.sym_size(0), batch) && equal(norm.sym_size(1), queries) &&
                        equal(norm.sym_size(2), 1),
                    op_name(c), ": expected fire_norm of shape (", batch, ", ", queries, ", 1), but got ",
                    norm.sym_sizes());
  TORCH_CHECK_VALUE(knots.dim() == 1 && holds(knots.sym_size(0).sym_ge(1)), op_name(c),
                    ": expected fire_knots of shape (knots) with one knot or more, but got ", knots.sym_sizes());
  for (const Input input : {kFireOffset, kFireSlope}) {
    const Tensor& x = c[input];
    TORCH_CHECK_VALUE(x.dim() == 2 && equal(x.sym_size(0), heads) && equal(x.sym_size(1), knots.sym_size(0) + 1),
                      op_name(c), ": expected ", name_of(c, input), " of shape (", heads, ", knots + 1) with ",
                      knots.sym_size(0), " knots, but got ", x.sym_sizes());
  }
}

namespace {

/// What the function is taken at, and the segment between knots that each number lies in: (1 or B, 1, length, Tk).
struct Warped {
  Tensor distance, norm, x, segment;
};

Warped warp(const Operands& o, const Block& block) {
  Warped w;
  w.distance = block.distance->abs().to(o.dtype);
  w.norm = o[kFireNorm].narrow_symint(1, block.rows.begin, block.rows.length).unsqueeze(1);
  w.x = (o[kFireRate] * w.distance).abs().log1p() / w.norm;
  w.segment = at::bucketize(w.x.detach(), o.call.fire_knots->to(o.dtype), /*out_int32=*/false, /*right=*/true);
  return w;
}

/// Entries of a table (H, segments).
Tensor in_segment(const Operands& o, Input table, const Tensor& segment) {
  return look_up(o, o[table].unsqueeze(0).unsqueeze(2), segment);
}

}  // namespace

void Fire::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  const Warped w = warp(o, block);
  scores = scores + in_segment(o, kFireOffset, w.segment) + in_segment(o, kFireSlope, w.segment) * w.x;
}

void Fire::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                         GradientSums& sums) {
  const Warped w = warp(o, block);
  const c10::SymInt segments = o[kFireSlope].sym_size(1);
  if (sums.wants(kFireOffset)) {
    sums.add(kFireOffset, sum_bins(o, grad, w.segment, segments).sum({0, 2}));
  }
  if (sums.wants(kFireSlope)) {
    sums.add(kFireSlope, sum_bins(o, grad * w.x, w.segment, segments).sum({0, 2}));
  }
  if (!sums.wants(kFireRate) && !sums.wants(kFireNorm)) {
    return;
  }
  const Tensor of_x = (grad * in_segment(o, kFireSlope, w.segment)).sum(1, /*keepdim=*/true);
  if (sums.wants(kFireNorm)) {
    const Tensor rows = -(of_x * w.x).sum(-1, /*keepdim=*/true) / w.norm;
    sums.add_rows(kFireNorm, rows.squeeze(1).sum_to_size_symint(w.norm.squeeze(1).sym_sizes()));
  }
  if (sums.wants(kFireRate)) {
    const Tensor& rate = o[kFireRate];
    const Tensor slope = rate.sign() * w.distance / (1 + (rate * w.distance).abs());
    sums.add(kFireRate, (of_x * slope / w.norm).sum().reshape({1}));
  }
}

}  // namespace posenc::attention_ops
