#include <posenc/nn/self_extend.h>

#include "encodings/piecewise/ops.h"
#include "nn/describe.h"
#include "nn/rotary_call.h"

namespace posenc::nn {

SelfExtendImpl::SelfExtendImpl(SelfExtendOptions options) : options(std::move(options)) { reset(); }

void SelfExtendImpl::reset() {
  check_options("SelfExtend", options);
  check_rotary_width("SelfExtend", options.head_dim(), "head_dim", options.head_dim());
  inv_freq_ = scaling::frequencies(options.head_dim(), options.base()).inv_freq;
}

void SelfExtendImpl::pretty_print(std::ostream& stream) const { print_options(stream, "SelfExtend", options); }

PiecewiseSides SelfExtendImpl::sides(const at::Tensor& query, const at::Tensor& key,
                                     const std::optional<at::Tensor>& q_positions,
                                     const std::optional<at::Tensor>& k_positions) const {
  auto [q_near, k_near, q_far, k_far] =
      piecewise_ops::self_extend_qk(query, key, inv_freq_.to(query.device()), {q_positions, k_positions},
                                    options.group(), options.window(), options.interleaved());
  return {q_near, k_near, q_far, k_far};
}

}  // namespace posenc::nn
