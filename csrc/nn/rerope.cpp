#include <posenc/nn/rerope.h>

#include "common/plain_tensors.h"
#include "encodings/piecewise/ops.h"
#include "nn/describe.h"
#include "nn/rotary_call.h"

namespace posenc::nn {

ReRoPEImpl::ReRoPEImpl(ReRoPEOptions options) : options(std::move(options)) { reset(); }

void ReRoPEImpl::reset() {
  check_options("ReRoPE", options);
  check_rotary_width("ReRoPE", options.head_dim(), "head_dim", options.head_dim());
  inv_freq_ = scaling::frequencies(options.head_dim(), options.base()).inv_freq;
  if (options.leak()) {
    const PlainTensorsGuard guard;
    far_inv_freq_ = inv_freq_ / *options.leak();
  }
}

void ReRoPEImpl::pretty_print(std::ostream& stream) const { print_options(stream, "ReRoPE", options); }

PiecewiseSides ReRoPEImpl::sides(const at::Tensor& query, const at::Tensor& key,
                                 const std::optional<at::Tensor>& q_positions,
                                 const std::optional<at::Tensor>& k_positions) const {
  const at::Tensor inv_freq = inv_freq_.to(query.device());
  const piecewise_ops::Positions positions{q_positions, k_positions};
  if (options.leak()) {
    auto [q_near, k_near, q_far, k_far] = piecewise_ops::leaky_rerope_qk(
        query, key, inv_freq, far_inv_freq_.to(query.device()), positions, options.window(), *options.leak(),
        options.interleaved(), options.log_scale_length());
    return {q_near, k_near, q_far, k_far};
  }
  auto [q_near, k_near, q_far] = piecewise_ops::rerope_qk(query, key, inv_freq, positions, options.window(),
                                                          options.interleaved(), options.log_scale_length());
  return {q_near, k_near, q_far, key};
}

}  // namespace posenc::nn
