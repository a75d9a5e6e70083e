#include "attention/terms/sinks/term.h"

#include "attention/checks.h"
#include "common/checks.h"

namespace posenc::attention_ops {

using namespace reference;

void Sinks::check(const Call& c) {
  check_table(c, kSinks);
  const Tensor& x = c[kSinks];
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1), queries = c.query().sym_size(2);
  const bool of_heads = x.dim() == 1 && equal(x.sym_size(0), heads);
  TORCH_CHECK_VALUE(of_heads || (x.dim() == 3 && equal(x.sym_size(0), batch) && equal(x.sym_size(1), heads) &&
                                 equal(x.sym_size(2), queries)),
                    op_name(c), ": expected sinks of shape (", heads, ") or (", batch, ", ", heads, ", ", queries,
                    "), but got ", x.sym_sizes());
}

void Sinks::add_sink(const Operands& o, const Rows& rows, OptionalTensor& sink) {
  const Tensor& x = o[kSinks];
  sink = x.dim() == 1 ? x.unsqueeze(-1) : x.narrow_symint(2, rows.begin, rows.length);
}

void Sinks::add_sink_gradient(const Operands& o, const Rows& rows, const Tensor& grad, GradientSums& sums) {
  if (!sums.wants(kSinks)) {
    return;
  }
  if (o[kSinks].dim() == 1) {
    sums.add(kSinks, grad.sum({0, 2}));
  } else {
    const c10::SymInt after = o.call.query().sym_size(2) - rows.begin - rows.length;
    sums.add(kSinks, at::constant_pad_nd_symint(grad, {rows.begin, after}));
  }
}

}  // namespace posenc::attention_ops
