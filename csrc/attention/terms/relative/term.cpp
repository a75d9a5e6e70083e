#include "attention/terms/relative/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

namespace {

/// The input that is multiplied with rel_k.
Input query_input(const Call& c) { return c.has(kRelQuery) ? kRelQuery : kQuery; }

/// Where an entry stands for each query and key.
Tensor entries_of(const Block& block, const Tensor& table) { return clipped(block, table.sym_size(-2)); }

}  // namespace

void Relative::check(const Call& c) {
  TORCH_CHECK_VALUE(c.has(kRelK), op_name(c), ": expected rel_k where rel_v or rel_query is given");
  if (c.has(kRelQuery)) {
    const Tensor &query = c.query(), &own = c[kRelQuery];
    TORCH_CHECK_VALUE(equal(own.sym_size(1), query.sym_size(1)) && equal(own.sym_size(2), query.sym_size(2)) &&
                          holds(own.sym_size(3).sym_ge(1)),
                      op_name(c), ": expected rel_query of shape (", query.sym_size(0), ", ", query.sym_size(1), ", ",
                      query.sym_size(2), ", width), but got ", own.sym_sizes());
  }
  check_rows_of_distances(c, kRelK, c[query_input(c)].sym_size(3));
  if (c.has(kRelV) && c.has(kValue)) {
    check_rows_of_distances(c, kRelV, c.value().sym_size(3));
    TORCH_CHECK_VALUE(equal(c[kRelV].sym_size(-2), c[kRelK].sym_size(-2)), op_name(c),
                      ": expected rel_k and rel_v to cover the same distances, but got ", c[kRelK].sym_sizes(), " and ",
                      c[kRelV].sym_sizes());
  }
}

void Relative::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  const Tensor& rel_k = o[kRelK];
  const Tensor by_entry = o.rows_of(query_input(o.call), block.rows).matmul(rel_k.transpose(-1, -2));
  scores = scores + look_up(o, by_entry, entries_of(block, rel_k)) * o.call.score_scale();
}

void Relative::add_output(const Operands& o, const Block& block, const Tensor& weights, Tensor& out) {
  if (o.call.has(kRelV)) {
    const Tensor& rel_v = o[kRelV];
    out = out + sum_bins(o, weights, entries_of(block, rel_v), rel_v.sym_size(-2)).matmul(rel_v);
  }
}

void Relative::add_weight_gradients(const Operands& o, const Block& block, const Tensor& weights,
                                    const Tensor& grad_out, Tensor& grad_weights, GradientSums& sums) {
  if (!o.call.has(kRelV)) {
    return;
  }
  const Tensor& rel_v = o[kRelV];
  const Tensor index = entries_of(block, rel_v);
  if (sums.wants(kRelV)) {
    const Tensor bins = sum_bins(o, weights, index, rel_v.sym_size(-2));
    sums.add(kRelV, bins.transpose(-1, -2).matmul(grad_out).sum_to_size_symint(rel_v.sym_sizes()));
  }
  grad_weights = grad_weights + look_up(o, grad_out.matmul(rel_v.transpose(-1, -2)), index);
}

void Relative::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                             GradientSums& sums) {
  const Input query = query_input(o.call);
  if (!sums.wants(query) && !sums.wants(kRelK)) {
    return;
  }
  const Tensor& rel_k = o[kRelK];
  const Tensor bins = sum_bins(o, grad * o.call.score_scale(), entries_of(block, rel_k), rel_k.sym_size(-2));
  if (sums.wants(query)) {
    sums.add_rows(query, bins.matmul(rel_k));
  }
  if (sums.wants(kRelK)) {
    sums.add(kRelK, bins.transpose(-1, -2).matmul(o.rows_of(query, block.rows)).sum_to_size_symint(rel_k.sym_sizes()));
  }
}

}  // namespace posenc::attention_ops
