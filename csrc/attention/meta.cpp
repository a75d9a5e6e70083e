/// Shapes of the attention ops' results.

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

Forward forward_meta(const Call& c) {
  check(c);
  const Tensor seed = at::empty({}, c.query().options().dtype(at::kLong));
  return {empty_out(c, computing_dtype(c)), empty_lse(c), seed, empty_state(c)};
}

std::vector<Tensor> backward_meta(const Saved& s, const Call& c) {
  check(c);
  std::vector<Tensor> gradients;
  for (const int64_t slot : s.wanted) {
    gradients.push_back(at::empty_like(*c.inputs[slot]));
  }
  return gradients;
}

POSENC_LIBRARY_IMPL(Meta, m) { register_ops<attention_meta, forward_meta, backward_meta>(m); }

}  // namespace
}  // namespace posenc::attention_ops
