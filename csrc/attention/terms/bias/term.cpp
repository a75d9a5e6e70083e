#include "attention/terms/bias/term.h"

#include "attention/checks.h"
#include "attention/terms/bias/bound.h"
#include "cpu/tensors.h"

namespace posenc::attention_ops {

using namespace reference;

void Bias::check(const Call& c) {
  check_table(c, kBias);
  check_broadcastable_to_scores(c, "bias", c[kBias]);
}

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
