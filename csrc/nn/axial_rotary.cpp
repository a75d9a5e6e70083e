#include <posenc/nn/axial_rotary.h>

#include "common/checks.h"
#include "common/plain_tensors.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/rotary_call.h"

#include <ATen/core/grad_mode.h>

namespace posenc::nn {
namespace {

void check(const AxialRotaryOptions& o) {
  check_options("AxialRotary", o);
  check_entries("AxialRotary", "num_axes", o.num_axes());
  check_entries("AxialRotary", "head_dim", o.head_dim());
  TORCH_CHECK_VALUE(o.head_dim() >= 1 && o.head_dim() % (2 * o.num_axes()) == 0,
                    "AxialRotary: expected head_dim to be a multiple of 2 * num_axes = ", 2 * o.num_axes(),
                    ", but got ", o.head_dim());
  TORCH_CHECK_VALUE(!o.num_heads() || o.learnable(),
                    "AxialRotary: expected num_heads only with learnable=True, but got ", o.num_heads().value_or(0));
  check_numbers("AxialRotary", "num_axes * num_heads * head_dim",
                {o.num_axes(), o.num_heads().value_or(1), o.head_dim()}, 2 * kMostEntries);
}

}  // namespace

AxialRotaryImpl::AxialRotaryImpl(AxialRotaryOptions options) : options(std::move(options)) { reset(); }

void AxialRotaryImpl::reset() {
  check(options);
  initial_ = initial_inv_freq();
  if (options.learnable()) {
    inv_freq = register_parameter("inv_freq", parameter_from(initial_));
  }
}

void AxialRotaryImpl::reset_parameters() {
  if (options.learnable()) {
    at::NoGradGuard no_grad;
    inv_freq.copy_(initial_);
  }
}

void AxialRotaryImpl::pretty_print(std::ostream& stream) const { print_options(stream, "AxialRotary", options); }

at::Tensor AxialRotaryImpl::initial_inv_freq() const {
  const int64_t axes = options.num_axes(), pairs = options.head_dim() / 2, own = pairs / axes;
  const at::Tensor spectrum = scaling::frequencies(2 * own, options.base()).inv_freq;
  const double* theta = spectrum.const_data_ptr<double>();
  if (!options.learnable()) {
    std::vector<double> all;
    for (int64_t axis = 0; axis < axes; ++axis) {
      all.insert(all.end(), theta, theta + own);
    }
    return plain_tensor(all);
  }
  const int64_t heads = options.num_heads().value_or(1);
  std::vector<double> mixed(axes * heads * pairs, 0.0);
  for (int64_t axis = 0; axis < axes; ++axis) {
    for (int64_t head = 0; head < heads; ++head) {
      std::copy_n(theta, own, mixed.begin() + (axis * heads + head) * pairs + axis * own);
    }
  }
  const PlainTensorsGuard guard;
  const at::Tensor result = plain_tensor(mixed);
  return options.num_heads() ? result.view({axes, heads, pairs}) : result.view({axes, pairs});
}

std::vector<int64_t> AxialRotaryImpl::axes() const {
  std::vector<int64_t> axes;
  for (int64_t axis = 0; axis < options.num_axes(); ++axis) {
    axes.insert(axes.end(), options.head_dim() / 2 / options.num_axes(), axis);
  }
  return axes;
}

at::Tensor AxialRotaryImpl::frequencies_for(const at::Tensor& x) const {
  return options.learnable() ? at_least_float(inv_freq) : initial_.to(x.device());
}

RotaryFuncOptions AxialRotaryImpl::op_options(const RotaryForwardOptions& call) const {
  TORCH_CHECK_VALUE(call.positions(),
                    "AxialRotary: expected positions of shape (axes, length) or (axes, batch, length)");
  const at::Tensor& positions = *call.positions();
  TORCH_CHECK_VALUE(positions.dim() >= 2 && positions.size(0) == options.num_axes(),
                    "AxialRotary: expected positions of shape (axes, length) or (axes, batch, length) with ",
                    options.num_axes(), " axes, but got ", positions.sizes());
  auto o = RotaryFuncOptions().interleaved(options.interleaved()).offset(call.offset()).offsets(call.offsets());
  if (!options.learnable()) {
    o.axes(axes());
  }
  return o;
}

at::Tensor AxialRotaryImpl::forward(const at::Tensor& x, const RotaryForwardOptions& call) {
  check_call_shape("AxialRotary", options.head_dim(), x);
  return posenc::rotary(x, call.positions(), frequencies_for(x), op_options(call));
}

std::tuple<at::Tensor, at::Tensor> AxialRotaryImpl::forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                               const RotaryForwardOptions& call) {
  check_call_shape("AxialRotary", options.head_dim(), q);
  return posenc::rotary_qk(q, k, call.positions(), frequencies_for(q), op_options(call));
}

}  // namespace posenc::nn
