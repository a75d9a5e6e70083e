#include "attention/terms/relative_keys/term.h"

#include "attention/checks.h"

namespace posenc::attention_ops {

using namespace reference;

namespace {

/// The table for each head, (B, H, 2R+1, D).
Tensor by_head(const Operands& o) {
  const Tensor& table = o[kRelQ];
  return table.expand_symint({o.batch, o.heads, table.sym_size(-2), table.sym_size(-1)});
}

/// Where an entry stands for each query and key, (B, H, length, Tk).
Tensor entries_of(const Operands& o, const Block& block) {
  const Tensor entries = clipped(block, o[kRelQ].sym_size(-2));
  return entries.expand_symint({o.batch, o.heads, entries.sym_size(2), o.keys});
}

}  // namespace

void RelativeKeys::check(const Call& c) { check_rows_of_distances(c, kRelQ, c.query().sym_size(3)); }

void RelativeKeys::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  const Tensor by_entry = o.scores(by_head(o), kKey);
  scores = scores + by_entry.gather(2, entries_of(o, block)) * o.call.score_scale();
}

void RelativeKeys::add_gradients(const Operands& o, const Block& block, const Tensor& grad,
                                 ProductGradient& /*product*/, GradientSums& sums) {
  if (!sums.wants(kKey) && !sums.wants(kRelQ)) {
    return;
  }
  const Tensor& table = o[kRelQ];
  const Tensor entries = entries_of(o, block);
  const auto by_entry = [&](const Tensor& x) {
    return at::zeros_symint({o.batch, o.heads, table.sym_size(-2), o.keys}, x.options())
        .scatter_add(2, entries, x.expand_symint(entries.sym_sizes()));
  };
  const Tensor bins = by_entry(grad * o.call.score_scale()), visible = by_entry(block.visible.to(o.dtype)) > 0;
  if (sums.wants(kKey)) {
    sums.add(kKey, o.sum_queries(bins, by_head(o), visible));
  }
  if (sums.wants(kRelQ)) {
    sums.add(kRelQ, o.sum_keys(bins, kKey, visible).sum_to_size_symint(table.sym_sizes()));
  }
}

}  // namespace posenc::attention_ops
