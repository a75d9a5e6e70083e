#include "attention/terms/bias/term.h"

#include "attention/checks.h"
#include "attention/terms/bias/bound.h"
#include "common/checks.h"
#include "cpu/tensors.h"

namespace posenc::attention_ops {

using namespace reference;

void Bias::check(const Call& c) {
  check_table(c, kBias);
  const Tensor& x = c[kBias];
  const c10::SymInt full[] = {c.query().sym_size(0), c.query().sym_size(1), c.query().sym_size(2), c.key().sym_size(2)};
  bool fits = x.dim() <= 4;
  for (int64_t dim = 1; fits && dim <= x.dim(); ++dim) {
    fits = one_or(x.sym_size(-dim), full[4 - dim]);
  }
  TORCH_CHECK_VALUE(fits, op_name(c), ": expected bias to be broadcastable to (", full[0], ", ", full[1], ", ", full[2],
                    ", ", full[3], "), but got ", x.sym_sizes());
}

namespace {

bool has_row_for_each_query(const Tensor& bias) { return bias.dim() >= 2 && bias.sym_size(-2) != 1; }

Tensor block_rows(const Tensor& bias, const Rows& rows) {
  return has_row_for_each_query(bias) ? bias.narrow_symint(-2, rows.begin, rows.length) : bias;
}

}  // namespace

void Bias::hide(const Operands& o, const Rows& rows, Tensor& visible) {
  const Tensor& bias = o.call[kBias];
  const double bound =
      hiding_bound(cpu::element_type(bias), o.dtype == at::kDouble ? ElementType::kDouble : ElementType::kFloat);
  visible = visible.logical_and((block_rows(bias, rows) <= bound).logical_not());
}

void Bias::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  scores = scores + block_rows(o[kBias], block.rows);
}

void Bias::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                         GradientSums& sums) {
  if (!sums.wants(kBias)) {
    return;
  }
  const Tensor rows = grad.sum_to_size_symint(block_rows(o[kBias], block.rows).sym_sizes());
  if (has_row_for_each_query(o[kBias])) {
    sums.add_rows(kBias, rows);
  } else {
    sums.add(kBias, rows);
  }
}

}  // namespace posenc::attention_ops
