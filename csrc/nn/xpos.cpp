#include <posenc/nn/xpos.h>

#include "common/plain_tensors.h"
#include "nn/describe.h"
#include "nn/rotary_call.h"

#include <cmath>

namespace posenc::nn {

XPosImpl::XPosImpl(XPosOptions options) : options(std::move(options)) { reset(); }

void XPosImpl::reset() {
  check_options("XPos", options);
  check_rotary_width("XPos", options.head_dim(), "head_dim", options.head_dim());
  inv_freq_ = scaling::frequencies(options.head_dim(), options.base()).inv_freq;
  std::vector<double> decay;
  for (int64_t k = 0; k < options.head_dim() / 2; ++k) {
    const double zeta = (2.0 * static_cast<double>(k) / static_cast<double>(options.head_dim()) + 0.4) / 1.4;
    decay.push_back(std::log(zeta) / options.scale_base());
  }
  decay_ = plain_tensor(decay);
}

void XPosImpl::pretty_print(std::ostream& stream) const { print_options(stream, "XPos", options); }

at::Tensor XPosImpl::rotate_by(const at::Tensor& x, double sign, double centre,
                               const RotaryForwardOptions& call) const {
  const auto [cos, sin] = posenc::rotary_tables(call.positions(), inv_freq_.to(x.device()),
                                                RotaryTablesFuncOptions()
                                                    .length(x.sym_size(2))
                                                    .offset(call.offset())
                                                    .offsets(call.offsets())
                                                    .dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
                                                    .decay((sign * decay_).to(x.device()))
                                                    .centre(centre));
  return posenc::apply_rotary(x, cos, sin, options.interleaved());
}

at::Tensor XPosImpl::forward(const at::Tensor& x, const RotaryForwardOptions& call) {
  check_call_shape("XPos", options.head_dim(), x);
  return rotate_by(x, 1.0, options.centre(), call);
}

std::tuple<at::Tensor, at::Tensor> XPosImpl::forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                        const RotaryForwardOptions& call) {
  check_call_shape("XPos", options.head_dim(), q);
  check_same_tokens("XPos", q, k);
  return {rotate_by(q, 1.0, options.centre(), call), rotate_by(k, -1.0, options.centre(), call)};
}

at::Tensor XPosImpl::shift(const at::Tensor& key, int64_t by) {
  const auto call = RotaryForwardOptions().positions(shifts_of("XPos", options.head_dim(), key, by));
  return rotate_by(key, -1.0, /*centre=*/0.0, call);
}

}  // namespace posenc::nn
