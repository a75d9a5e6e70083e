/// attention on CPU: checks, results, and the choice of a path.

#include "attention/cpu.h"

#include "attention/checks.h"
#include "attention/reference.h"
#include "attention/registration.h"
#include "attention/results.h"

#include <ATen/ATen.h>

#include <limits>

namespace posenc::attention_ops {
namespace {

Forward attention_into(const Call& c, at::ScalarType dtype) {
  check(c);
  if (c.query().numel() == 0 || c.key().numel() == 0) {
    auto [out, lse, seed, state] = reference::forward(c, reference::Mode::kEager);
    return {out.to(dtype), lse, seed, state};
  }
  const auto counted = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  const Tensor seed = c.dropout_p == 0.0 ? at::zeros({}, counted)
                                         : at::empty({}, counted).random_(0, std::numeric_limits<int64_t>::max());
  Tensor out = empty_out(c, dtype), lse = empty_lse(c);
  const int64_t number = seed.item<int64_t>();
  if (lse.scalar_type() == at::kDouble) {
    decodes(c) ? run_decode<double>(c, number, out, lse) : run_forward<double>(c, number, out, lse);
  } else {
    decodes(c) ? run_decode<float>(c, number, out, lse) : run_forward<float>(c, number, out, lse);
  }
  return {out, lse, seed, {}};
}

OutAndLse attention_cpu(const Call& c) {
  auto [out, lse, seed, state] = attention_into(c, c.query().scalar_type());
  return {std::move(out), std::move(lse)};
}

Forward attention_forward_cpu(const Call& c) { return attention_into(c, computing_dtype(c)); }

std::vector<Tensor> attention_backward_cpu(const Saved& s, const Call& c) {
  check(c);
  if (c.query().numel() == 0 || c.key().numel() == 0) {
    return reference::backward(s, c, reference::Mode::kEager);
  }
  return s.lse.scalar_type() == at::kDouble ? run_backward<double>(s, c) : run_backward<float>(s, c);
}

TORCH_LIBRARY_IMPL(posenc, CPU, m) {
  register_op<Dot, attention_cpu, attention_forward_cpu, attention_backward_cpu>(m);
}

}  // namespace
}  // namespace posenc::attention_ops
