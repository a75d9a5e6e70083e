/// Several gradients at once (torch.autograd.grad(is_grads_batched=True), vectorised jacobians): the vmap behind these
/// has no fallback for ops that return lists.

#include "attention/call.h"
#include "attention/registration.h"
#include "common/registration.h"

#include <ATen/ATen.h>
#include <ATen/LegacyVmapTransforms.h>

namespace posenc::attention_ops {
namespace {

template <typename Op>
std::vector<Tensor> backward_batched(const Saved& s, const Call& c) {
  std::vector<Tensor> logical{s.grad_out};
  if (s.grad_lse) {
    logical.push_back(*s.grad_lse);
  }
  const auto physical = at::MultiBatchVmapTransform::logicalToPhysical(logical);
  const auto samples = [&](size_t i) { return physical[i].tensor().flatten(0, physical[i].numBatchDims() - 1); };
  const Tensor grad_out = samples(0);
  const OptionalTensor grad_lse = s.grad_lse ? OptionalTensor(samples(1)) : std::nullopt;

  std::vector<std::vector<Tensor>> by_input(s.wanted.size());
  for (int64_t sample = 0; sample < grad_out.size(0); ++sample) {
    Saved one = s;
    one.grad_out = grad_out[sample];
    one.grad_lse = grad_lse ? OptionalTensor((*grad_lse)[sample]) : std::nullopt;
    const auto gradients = call_backward<Op>(one, c);
    for (size_t i = 0; i < gradients.size(); ++i) {
      by_input[i].push_back(gradients[i]);
    }
  }
  std::vector<Tensor> results;
  const auto batch = physical[0].tensor().sizes().slice(0, physical[0].numBatchDims());
  for (const auto& gradients : by_input) {
    results.push_back(physical[0].getPhysicalToLogicalMap().apply(at::stack(gradients).unflatten(0, batch)));
  }
  return results;
}

POSENC_LIBRARY_IMPL(Batched, m) {
  m.impl(Dot::backward_name, &Flat<Dot>::backward<backward_batched<Dot>>);
  m.impl(Relative::backward_name, &Flat<Relative>::backward<backward_batched<Relative>>);
  m.impl(Cope::backward_name, &Flat<Cope>::backward<backward_batched<Cope>>);
  m.impl(Piecewise::backward_name, &Flat<Piecewise>::backward<backward_batched<Piecewise>>);
}

}  // namespace
}  // namespace posenc::attention_ops
