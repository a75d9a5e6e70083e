#include "attention/terms/decay/term.h"

#include "attention/checks.h"
#include "attention/terms/decay/sums.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Decay::check(const Call& c) {
  check_table(c, kLogDecay);
  const Tensor& x = c[kLogDecay];
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1), keys = c.key().sym_size(2);
  TORCH_CHECK_VALUE(
      x.dim() == 3 && one_or(x.sym_size(0), batch) && equal(x.sym_size(1), heads) && equal(x.sym_size(2), keys),
      op_name(c), ": expected log_decay of shape (", batch, ", ", heads, ", ", keys, "), but got ", x.sym_sizes());
  check_counts_tokens(c, "log_decay");
  TORCH_CHECK_VALUE(!c.q_segment_ids, op_name(c),
                    ": expected no q_segment_ids with log_decay, whose queries are the last of its tokens");
  TORCH_CHECK_VALUE(holds(c.query().sym_size(2).sym_le(keys)), op_name(c),
                    ": expected at most as many queries as keys with log_decay, but got ", c.query().sym_size(2),
                    " queries and ", keys, " keys");
}

namespace {

/// x (B, H, Tk) of the block's queries, which are the last tokens, less that of each key: (B, H, r, Tk).
Tensor less_keys(const Operands& o, const Block& block, const Tensor& x) {
  const Tensor rows = x.narrow_symint(2, o.own_key(block.rows), block.rows.length);
  return rows.unsqueeze(-1) - x.unsqueeze(-2);
}

}  // namespace

void Decay::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  const auto [sums, undefined] = sum_decays(o.call, wide_type(o));
  const Tensor bias = less_keys(o, block, sums).to(o.dtype);
  scores = scores + at::where(less_keys(o, block, undefined) == 0, bias, kNaN);
}

void Decay::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                          GradientSums& sums) {
  if (!sums.wants(kLogDecay)) {
    return;
  }
  const c10::SymInt before = o.own_key(block.rows);
  const Tensor of_queries = at::constant_pad_nd_symint(grad.sum(3), {before, o.keys - before - block.rows.length});
  const Tensor of_sums = (of_queries - grad.sum(2)).to(wide_type(o));
  sums.add(kLogDecay, gradient_of_decays(o.call, of_sums).to(o.dtype));
}

}  // namespace posenc::attention_ops
