#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/rotary_call.h"

#include <ATen/core/grad_mode.h>

namespace posenc::nn {
namespace {

int64_t width(const RotaryOptions& o) { return o.rotary_dim().value_or(o.head_dim()); }

void check(const RotaryOptions& o) {
  const char* name = o.rotary_dim() ? "rotary_dim" : "head_dim (rotary_dim, where only part of a head turns)";
  check_options("Rotary", o);
  check_rotary_width("Rotary", o.head_dim(), name, width(o));
  TORCH_CHECK_VALUE(!o.learnable() || !scaling::depends_on_length(o.scaling()),
                    "Rotary: expected a scaling that does not depend on the length with learnable=True, but got ",
                    o.scaling());
}

}  // namespace

RotaryImpl::RotaryImpl(RotaryOptions options) : options(std::move(options)) { reset(); }

void RotaryImpl::reset() {
  check(options);
  frequencies_ = frequencies(options.seq_len());
  if (options.learnable()) {
    inv_freq = register_parameter("inv_freq", parameter_from(frequencies_.inv_freq));
  }
}

void RotaryImpl::reset_parameters() {
  if (options.learnable()) {
    at::NoGradGuard no_grad;
    inv_freq.copy_(frequencies_.inv_freq);
  }
}

void RotaryImpl::pretty_print(std::ostream& stream) const {
  auto shown = options;
  shown.rotary_dim(width(options));
  print_options(stream, "Rotary", shown);
}

scaling::Frequencies RotaryImpl::frequencies(std::optional<int64_t> seq_len) const {
  return scaling::frequencies(width(options), options.base(), options.scaling(), seq_len, options.exact());
}

at::Tensor RotaryImpl::frequencies_for(const at::Tensor& x, const RotaryForwardOptions& call) const {
  if (options.learnable()) {
    return at_least_float(inv_freq);
  }
  return frequencies_for_call("Rotary", frequencies_.inv_freq, options.scaling(), width(options), options.base(),
                              options.exact(), options.seq_len(), x, call);
}

RotaryFuncOptions RotaryImpl::op_options(const RotaryForwardOptions& call) const {
  return RotaryFuncOptions()
      .attention_scaling(frequencies_.attention_scaling)
      .interleaved(options.interleaved())
      .exact(options.exact())
      .offset(call.offset())
      .offsets(call.offsets());
}

at::Tensor RotaryImpl::forward(const at::Tensor& x, const RotaryForwardOptions& call) {
  check_call_shape("Rotary", options.head_dim(), x);
  return posenc::rotary(x, call.positions(), frequencies_for(x, call), op_options(call));
}

std::tuple<at::Tensor, at::Tensor> RotaryImpl::forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                          const RotaryForwardOptions& call) {
  check_call_shape("Rotary", options.head_dim(), q);
  return posenc::rotary_qk(q, k, call.positions(), frequencies_for(q, call), op_options(call));
}

at::Tensor RotaryImpl::shift(const at::Tensor& key, int64_t by) {
  const at::Tensor shifts = shifts_of("Rotary", options.head_dim(), key, by);
  TORCH_CHECK_VALUE(!depends_on_call_length(),
                    "Rotary: expected seq_len, one length for all calls, to shift keys whose scaling depends on the "
                    "length");
  return posenc::rotary(key, shifts, frequencies_for(key, {}), RotaryFuncOptions().interleaved(options.interleaved()));
}

}  // namespace posenc::nn
