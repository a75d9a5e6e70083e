#include "attention/terms/cope/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Cope::check(const Call& c) {
  TORCH_CHECK_VALUE(c.has(kPosEmb), op_name(c),
                    ": expected pos_emb where gate_key, gate_bias or scale_position_logits is given");
  check_table(c, kPosEmb);
  const Tensor& x = c[kPosEmb];
  const c10::SymInt heads = c.query().sym_size(1), width = c.query().sym_size(3);
  TORCH_CHECK_VALUE(
      x.dim() == 3 && one_or(x.sym_size(0), heads) && equal(x.sym_size(1), width) && holds(x.sym_size(2).sym_ge(1)),
      op_name(c), ": expected pos_emb of shape (1, ", width, ", positions) or (", heads, ", ", width,
      ", positions), but got ", x.sym_sizes());
  if (c.has(kGateBias)) {
    check_table(c, kGateBias);
    const Tensor& bias = c[kGateBias];
    TORCH_CHECK_VALUE(bias.dim() == 1 && equal(bias.sym_size(0), heads), op_name(c), ": expected gate_bias of shape (",
                      heads, "), but got ", bias.sym_sizes());
  }
  check_counts_tokens(c, "pos_emb");
}

namespace {

/// (B, H, r, Tk) each, but for the tables.
struct Positions {
  /// sigmoid(scale * query . gate_key + gate_bias), 0 where hidden.
  Tensor gates;
  /// The sum of gates is below P - 1: positions further off are clamped, without a gradient.
  Tensor unsaturated;
  /// Position p lies between entries cell and next, at fraction of the way: with cell at most P - 2, the last entry is
  /// reached with fraction 1, and entries c and c + 1 give the slope at an integer p.
  Tensor cell, next, fraction;
};

Input gate_input(const Operands& o) { return o.call.has(kGateKey) ? kGateKey : kKey; }

Positions positions(const Operands& o, const Block& block) {
  Tensor logits = o.scores(block.query, gate_input(o)) * o.call.score_scale();
  if (o.call.has(kGateBias)) {
    logits = logits + o[kGateBias].unsqueeze(-1).unsqueeze(-1);
  }
  Positions p;
  p.gates = at::where(block.visible, logits.sigmoid(), 0.0);
  const c10::SymInt last = o[kPosEmb].sym_size(2) - 1;
  const Tensor sum = p.gates.to(wide_type(o)).flip(3).cumsum(3).flip(3);
  p.unsaturated = sum < last;
  const Tensor clamped = at::where(p.unsaturated, sum, at::scalar_tensor(last, sum.options()));
  p.cell = clamped.detach().floor().clamp_max(last - 1).clamp_min(0).to(at::kLong);
  p.next = (p.cell + 1).clamp_max(last);
  p.fraction = (clamped - p.cell).to(o.dtype);
  return p;
}

/// query . pos_emb (B, H, r, P).
Tensor by_entry(const Operands& o, const Block& block) { return block.query.matmul(o[kPosEmb]); }

/// What query . pos_emb is multiplied by.
double position_scale(const Operands& o) { return o.call.scale_position_logits ? o.call.score_scale() : 1.0; }

}  // namespace

void Cope::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  const Positions p = positions(o, block);
  const Tensor z = by_entry(o, block);
  const Tensor at_cell = look_up(o, z, p.cell), at_next = look_up(o, z, p.next);
  const Tensor position_logits = at::rsub(p.fraction, 1) * at_cell + p.fraction * at_next;
  scores = scores + position_logits * position_scale(o);
}

void Cope::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                         GradientSums& sums) {
  const Positions p = positions(o, block);
  const Tensor& table = o[kPosEmb];
  const Tensor z = by_entry(o, block);
  const Tensor grad_logits = grad * position_scale(o);

  const c10::SymInt entries = table.sym_size(2);
  const Tensor grad_z = sum_bins(o, grad_logits * at::rsub(p.fraction, 1), p.cell, entries) +
                        sum_bins(o, grad_logits * p.fraction, p.next, entries);
  const Tensor slope = look_up(o, z, p.next) - look_up(o, z, p.cell);
  const Tensor grad_sum = at::where(p.unsaturated.logical_and(block.visible), grad_logits * slope, 0.0);
  // The gate of key l is counted in the position of every key up to l.
  const Tensor grad_gates = grad_sum.to(wide_type(o)).cumsum(3).to(o.dtype);
  const Tensor grad_gate_logits = at::where(block.visible, p.gates * (1 - p.gates) * grad_gates, 0.0);

  const Input gate = gate_input(o);
  add_product_gradients(o, block.query, kQuery, gate, {grad_gate_logits, block.visible}, sums);
  if (sums.wants(kQuery)) {
    sums.add_rows(kQuery, grad_z.matmul(table.transpose(-1, -2)));
  }
  if (sums.wants(kPosEmb)) {
    sums.add(kPosEmb, block.query.transpose(-1, -2).matmul(grad_z).sum(0).sum_to_size_symint(table.sym_sizes()));
  }
  if (sums.wants(kGateBias)) {
    sums.add(kGateBias, grad_gate_logits.sum({0, 2, 3}));
  }
}

}  // namespace posenc::attention_ops
