/// Shapes of attention's results.

#include "attention/checks.h"
#include "attention/registration.h"
#include "attention/results.h"
#include "common/registration.h"

namespace posenc::attention_ops {
namespace {

OutAndLse attention_meta(const Call& c) {
  check(c);
  return {empty_out(c), empty_lse(c)};
}

Residuals forward_meta(const Call& c) {
  check(c);
  const Tensor seed = at::empty({}, c.query().options().dtype(at::kLong));
  return {empty_out(c, computing_dtype(c)), empty_lse(c), seed, empty_lse(c), empty_lse(c), empty_counts(c)};
}

Gradients backward_meta(const BackwardArgs& b, const Call& c) {
  check(c);
  Gradients gradients;
  for (int64_t input = 0; input < kInputs; ++input) {
    if (b.wanted[input]) {
      gradients[input] = at::empty_like(*c.inputs[input]);
    }
  }
  return gradients;
}

POSENC_LIBRARY_IMPL(Meta, m) { register_ops<attention_meta, forward_meta, backward_meta>(m); }

}  // namespace
}  // namespace posenc::attention_ops
