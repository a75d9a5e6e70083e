/// The attention ops on CPU: checks, results, and the choice of a path.

#include "attention/cpu/ops.h"

#include "attention/checks.h"
#include "attention/reference.h"
#include "attention/registration.h"
#include "attention/results.h"
#include "common/checks.h"
#include "common/registration.h"

#include <ATen/ATen.h>

#include <limits>

namespace posenc::attention_ops {
namespace {

template <typename T>
void run(const Call& c, int64_t seed, const Tensor& out, const Residuals& r) {
  const bool wants_counts = r.counts.defined() && r.counts.numel() != 0;
  if (!wants_counts && decodes(c)) {
    run_decode<T>(c, seed, out, r);
  } else {
    run_forward<T>(c, seed, out, r);
  }
}

bool is_empty(const Call& c) { return c.query().numel() == 0 || c.key().numel() == 0; }

void run(const Call& c, int64_t seed, const Tensor& out, const Residuals& r) {
  r.lse.scalar_type() == at::kDouble ? run<double>(c, seed, out, r) : run<float>(c, seed, out, r);
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
    return reference::attention(c, reference::Mode::kDevice);
  }
  Residuals r;
  r.lse = empty_lse(c);
  Tensor out = empty_out(c);
  run(c, drawn_seed(c), out, r);
  return {std::move(out), std::move(r.lse)};
}

Residuals attention_forward_cpu(const Call& c) {
  check(c);
  if (is_empty(c)) {
    return reference::forward(c, reference::Mode::kDevice);
  }
  const int64_t seed = drawn_seed(c);
  Residuals r{
      empty_out(c, computing_dtype(c)), empty_lse(c), scalar(seed), empty_lse(c), empty_lse(c), empty_counts(c)};
  run(c, seed, r.out, r);
  return r;
}

/// The kernels read these without a look at their sizes.
void check_backward_args(const BackwardArgs& b, const Call& c) {
  const auto expect = [&](const char* name, const char* origin, const Tensor& x, at::IntArrayRef sizes,
                          at::ScalarType type) {
    check_beside_query(c, name, x);
    TORCH_CHECK_VALUE(x.sizes() == sizes && x.scalar_type() == type, op_name(c), ": expected ", name, origin, ", ",
                      type, " of shape ", sizes, ", but got ", x.scalar_type(), " of shape ", x.sizes());
  };
  const int64_t batch = c.query().size(0), heads = c.query().size(1), queries = c.query().size(2);
  const int64_t out[] = {batch, heads, queries, c.value().size(3)}, by_query[] = {batch, heads, queries};
  const int64_t counted[] = {batch, heads, 3, queries}, none[] = {0};
  const auto type = computing_dtype(c);
  const auto expect_left = [&](const char* name, const Tensor& x, at::IntArrayRef sizes, at::ScalarType of_type) {
    expect(name, " that the forward pass left", x, sizes, of_type);
  };
  expect_left("out", b.saved.out, out, type);
  expect_left("lse", b.saved.lse, by_query, type);
  expect_left("seed", b.saved.seed, {}, at::kLong);
  expect_left("largest", b.saved.largest, by_query, type);
  expect_left("total", b.saved.total, by_query, type);
  expect_left("counts", b.saved.counts, c.has(kPosEmb) ? at::IntArrayRef(counted) : at::IntArrayRef(none),
              counts_dtype(c));
  const auto given = b.grad_out.scalar_type();
  expect("grad_out", " like out", b.grad_out, out, is_supported_float(given) ? given : type);
  if (b.grad_lse) {
    expect("grad_lse", " like lse", *b.grad_lse, by_query, type);
  }
}

Gradients attention_backward_cpu(const BackwardArgs& b, const Call& c) {
  check(c);
  if (is_empty(c)) {
    return reference::backward(b, c, reference::Mode::kDevice);
  }
  check_backward_args(b, c);
  return b.saved.lse.scalar_type() == at::kDouble ? run_backward<double>(b, c) : run_backward<float>(b, c);
}

void register_cpu_ops(torch::Library& m) {
  register_ops<attention_cpu, attention_forward_cpu, attention_backward_cpu>(m);
}

POSENC_LIBRARY_IMPL(CPU, m) { register_cpu_ops(m); }

// Nested tensors come to these keys; check() refuses them by name.
POSENC_LIBRARY_IMPL(NestedTensorCPU, m) { register_cpu_ops(m); }
POSENC_LIBRARY_IMPL(AutogradNestedTensor, m) { register_cpu_ops(m); }

}  // namespace
}  // namespace posenc::attention_ops
