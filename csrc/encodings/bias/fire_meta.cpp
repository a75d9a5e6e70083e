/// Shapes of FIRE's results.

#include "attention/results.h"
#include "common/registration.h"
#include "encodings/bias/fire_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace posenc::bias_ops {
namespace {

OutAndLse fire_meta(const FireCall& f) {
  check_fire_call(f);
  return {attention_ops::empty_out(f.without_bias()), attention_ops::empty_lse(f.without_bias())};
}

FireForward fire_forward_meta(const FireCall& f) {
  const Tensor& query = f.inputs[0];
  const auto plain = f.without_bias();
  check_fire_call(f);
  return {attention_ops::empty_out(plain, attention_ops::computing_dtype(plain)), attention_ops::empty_lse(plain),
          at::empty_symint({query.sym_size(2)}, query.options().dtype(at::kLong))};
}

std::vector<Tensor> fire_backward_meta(const FireSaved& s, const FireCall& f) {
  check_fire_call(f);
  std::vector<Tensor> gradients;
  for (const int64_t input : s.wanted) {
    gradients.push_back(at::empty_like(f.inputs[input]));
  }
  return gradients;
}

POSENC_LIBRARY_IMPL(Meta, m) {
  m.impl("_fire_attention", &flat_fire<fire_meta>);
  m.impl("_fire_attention_forward", &flat_fire<fire_forward_meta>);
  m.impl("_fire_attention_backward", &flat_fire_backward<fire_backward_meta>);
}

}  // namespace
}  // namespace posenc::bias_ops
