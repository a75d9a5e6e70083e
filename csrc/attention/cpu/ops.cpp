/// The attention ops on CPU: checks, results, and the choice of a path.

#include "attention/cpu/ops.h"

#include "attention/checks.h"
#include "attention/reference/reference.h"
#include "attention/registration.h"
#include "attention/results.h"
#include "common/registration.h"

#include <ATen/ATen.h>

#include <limits>

namespace posenc::attention_ops {
namespace {

template <typename T>
void run(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state) {
  const bool wants_bands = c.has(kPosEmb) && !state.empty();
  if (!wants_bands && decodes(c)) {
    run_decode<T>(c, seed, out, lse, state);
  } else {
    run_forward<T>(c, seed, out, lse, state);
  }
}

bool is_empty(const Call& c) { return c.query().numel() == 0 || c.key().numel() == 0; }

void run(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state) {
  lse.scalar_type() == at::kDouble ? run<double>(c, seed, out, lse, state) : run<float>(c, seed, out, lse, state);
}

Tensor scalar(int64_t x) {
  Tensor scalar = at::empty({}, at::kLong);
  *scalar.mutable_data_ptr<int64_t>() = x;
  return scalar;
}

int64_t drawn_seed(const Call& c) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return c.dropout_p == 0.0 ? 0 : at::empty({}, at::kLong).random_(0, kLargest).item<int64_t>();
}

OutAndLse attention_cpu(const Call& c) {
  check(c);
  if (is_empty(c)) {
    auto [out, lse, seed, state] = reference::forward(c, reference::Mode::kEager);
    return {out.to(c.query().scalar_type()), lse};
  }
  Tensor out = empty_out(c), lse = empty_lse(c);
  run(c, drawn_seed(c), out, lse, {});
  return {std::move(out), std::move(lse)};
}

Forward attention_forward_cpu(const Call& c) {
  check(c);
  if (is_empty(c)) {
    return reference::forward(c, reference::Mode::kEager);
  }
  const Tensor out = empty_out(c, computing_dtype(c)), lse = empty_lse(c);
  const std::vector<Tensor> state = empty_state(c);
  const int64_t seed = drawn_seed(c);
  run(c, seed, out, lse, state);
  return {out, lse, scalar(seed), state};
}

/// A state is whole, or empty.
void check_state(const Saved& s, const Call& c) {
  const auto check = [&](bool fits, const auto&... got) {
    TORCH_CHECK_VALUE(fits, c.op, ": expected the state that the forward pass left, ", state_size(c),
                      " tensors of shape ", s.lse.sizes(), ", but got ", got...);
  };
  check(s.state.empty() || s.state.size() == state_size(c), s.state.size());
  for (const Tensor& x : s.state) {
    check(x.sizes() == s.lse.sizes(), "one of shape ", x.sizes());
  }
}

std::vector<Tensor> attention_backward_cpu(const Saved& s, const Call& c) {
  check(c);
  check_state(s, c);
  const bool lacks_state = c.has(kPosEmb) && s.state.empty();
  if (is_empty(c) || lacks_state) {
    return reference::backward(s, c, reference::Mode::kEager);
  }
  return s.lse.scalar_type() == at::kDouble ? run_backward<double>(s, c) : run_backward<float>(s, c);
}

POSENC_LIBRARY_IMPL(CPU, m) { register_ops<attention_cpu, attention_forward_cpu, attention_backward_cpu>(m); }

}  // namespace
}  // namespace posenc::attention_ops
