#include <posenc/scaling.h>

#include "common/checks.h"
#include "common/dispatch.h"
#include "common/registration.h"
#include "formulas.h"

#include <ATen/ops/empty.h>

namespace posenc::scaling {
namespace {

at::Tensor scaled_inv_freq_kernel(const at::Tensor& like, c10::ArrayRef<double> scaling, int64_t dim, double base,
                                  c10::SymInt seq_len, bool exact) {
  check_dense("scaled_inv_freq", "like", like);
  const int64_t length = seq_len.expect_int();
  return frequencies(dim, base, decode(scaling), length, exact).inv_freq.to(like.device());
}

at::Tensor scaled_inv_freq_meta(const at::Tensor& like, c10::ArrayRef<double> scaling, int64_t dim, double base,
                                c10::SymInt /*seq_len*/, bool exact) {
  check_dense("scaled_inv_freq", "like", like);
  check_arguments(dim, base, decode(scaling));
  return at::empty({dim / 2}, like.options().dtype(exact ? at::kDouble : at::kFloat));
}

}  // namespace

at::Tensor scaled_inv_freq(const at::Tensor& like, const Scaling& scaling, int64_t dim, double base,
                           c10::SymInt seq_len, bool exact) {
  static const auto op =
      find_op<at::Tensor(const at::Tensor&, c10::ArrayRef<double>, int64_t, double, c10::SymInt, bool)>(
          "posenc::scaled_inv_freq");
  return op.call(like, encode(scaling), dim, base, std::move(seq_len), exact);
}

POSENC_LIBRARY_FRAGMENT(m) {
  m.def("scaled_inv_freq(Tensor like, float[] scaling, int dim, float base, SymInt seq_len, bool exact=True) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("scaled_inv_freq", &scaled_inv_freq_kernel); }

POSENC_LIBRARY_IMPL(Meta, m) { m.impl("scaled_inv_freq", &scaled_inv_freq_meta); }

// Nested tensors come to these keys; check_dense() refuses them by name.
POSENC_LIBRARY_IMPL(NestedTensorCPU, m) { m.impl("scaled_inv_freq", &scaled_inv_freq_kernel); }
POSENC_LIBRARY_IMPL(AutogradNestedTensor, m) { m.impl("scaled_inv_freq", &scaled_inv_freq_kernel); }

// Not differentiable: the result depends on nothing that could ask for a gradient.
POSENC_LIBRARY_IMPL(Autograd, m) { m.impl("scaled_inv_freq", torch::CppFunction::makeFallthrough()); }

}  // namespace posenc::scaling
