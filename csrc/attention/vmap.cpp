/// Several gradients at once (torch.autograd.grad(is_grads_batched=True), vectorised jacobians): torch's vmap of graphs
/// that are recorded already.

#include "attention/call.h"
#include "attention/registration.h"
#include "common/registration.h"

#include <ATen/ATen.h>
#include <ATen/LegacyVmapTransforms.h>

namespace posenc::attention_ops {
namespace {

Gradients backward_batched(const BackwardArgs& b, const Call& c) {
  std::vector<Tensor> logical{b.grad_out};
  if (b.grad_lse) {
    logical.push_back(*b.grad_lse);
  }
  const auto physical = at::MultiBatchVmapTransform::logicalToPhysical(logical);
  const auto samples = [&](size_t i) { return physical[i].tensor().flatten(0, physical[i].numBatchDims() - 1); };
  const Tensor grad_out = samples(0);
  const OptionalTensor grad_lse = b.grad_lse ? OptionalTensor(samples(1)) : std::nullopt;

  std::array<std::vector<Tensor>, kInputs> by_input;
  for (int64_t sample = 0; sample < grad_out.size(0); ++sample) {
    BackwardArgs one = b;
    one.grad_out = grad_out[sample];
    one.grad_lse = grad_lse ? OptionalTensor((*grad_lse)[sample]) : std::nullopt;
    const Gradients gradients = call_backward(one, c);
    for (int64_t input = 0; input < kInputs; ++input) {
      if (b.wanted[input]) {
        by_input[input].push_back(gradients[input]);
      }
    }
  }
  Gradients results;
  const auto batch = physical[0].tensor().sizes().slice(0, physical[0].numBatchDims());
  for (int64_t input = 0; input < kInputs; ++input) {
    if (b.wanted[input]) {
      results[input] = physical[0].getPhysicalToLogicalMap().apply(at::stack(by_input[input]).unflatten(0, batch));
    }
  }
  return results;
}

POSENC_LIBRARY_IMPL(Batched, m) {
  m.impl("_attention_backward", &Entries<AttentionSignature>::template backward<backward_batched>);
}

}  // namespace
}  // namespace posenc::attention_ops
