/// Derivatives of FIRE's attention, and its behaviour under autocast, as in csrc/attention/autograd.cpp.

#include "common/autograd_support.h"
#include "common/registration.h"
#include "encodings/bias/fire_call.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace posenc::bias_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool any_wants_gradient(const FireCall& f) {
  return std::any_of(f.inputs.begin(), f.inputs.end(), [](const Tensor& t) { return wants_gradient(t); });
}

bool transformed(const FireCall& f) {
  return under_transforms() ||
         std::any_of(f.inputs.begin(), f.inputs.end(), [](const Tensor& t) { return has_tangent(t); });
}

struct AttendFire : torch::autograd::Function<AttendFire> {
  static constexpr bool is_traceable = true;

  template <typename... Inputs>
  static variable_list forward(AutogradContext* ctx, const FireCall& f, const Inputs&...) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    const auto [out, lse, seeds] = call_fire_forward(f);
    const auto& a = f.attention;
    variable_list saved(f.inputs.begin(), f.inputs.end());
    for (const auto* other : {&a.key_mask, &a.segment_ids, &a.q_positions, &a.k_positions}) {
      saved.push_back(other->value_or(Tensor()));
    }
    saved.insert(saved.end(), {out, lse, seeds});
    const auto dtype = f.inputs[0].scalar_type();
    const bool rounds = out.scalar_type() != dtype;
    ctx->save_for_backward(saved);
    ctx->saved_data["eps"] = f.eps;
    ctx->saved_data["is_causal"] = a.is_causal;
    ctx->saved_data["scale"] = a.scale;
    ctx->saved_data["window"] = a.window;
    ctx->saved_data["dropout_p"] = a.dropout_p;
    return {rounds ? out.to(dtype) : out, lse};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(1 + kFireInputs);
    if (!grads[0].defined() && !grads[1].defined()) {
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    const Tensor* other = &saved[kFireInputs];
    FireCall f{{},
               ctx->saved_data["eps"].toDouble(),
               {.op = "FIRE",
                .is_causal = ctx->saved_data["is_causal"].toBool(),
                .scale = ctx->saved_data["scale"].toOptional<double>(),
                .key_mask = if_defined(other[0]),
                .window = ctx->saved_data["window"].toOptional<int64_t>(),
                .segment_ids = if_defined(other[1]),
                .q_positions = if_defined(other[2]),
                .k_positions = if_defined(other[3]),
                .dropout_p = ctx->saved_data["dropout_p"].toDouble()}};
    FireSaved s{.out = other[4], .lse = other[5], .seeds = other[6]};
    s.grad_out = grads[0].defined() ? grads[0] : at::zeros_like(s.out);
    s.grad_lse = if_defined(grads[1]);
    for (int64_t input = 0; input < kFireInputs; ++input) {
      f.inputs[input] = saved[input];
      if (ctx->needs_input_grad(input)) {
        s.wanted.push_back(input);
      }
    }
    const auto gradients = call_fire_backward(s, f);
    for (size_t i = 0; i < s.wanted.size(); ++i) {
      result[1 + s.wanted[i]] = gradients[i];
    }
    return result;
  }
};

OutAndLse fire_autograd(const FireCall& f) {
  if (transformed(f)) {
    return fire_at_once(f);
  }
  if (any_wants_gradient(f)) {
    const auto results = std::apply([&](const auto&... inputs) { return AttendFire::apply(f, inputs...); }, f.inputs);
    return {results[0], results[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_fire(f);
}

FireForward fire_forward_autograd(const FireCall& f) {
  at::AutoDispatchBelowADInplaceOrView below;
  return call_fire_forward(f);
}

std::vector<Tensor> fire_backward_autograd(const FireSaved& s, const FireCall& f) {
  if (wants_gradient(s.grad_out) || wants_gradient(s.grad_lse) || any_wants_gradient(f)) {
    return fire_gradients(s, f, /*differentiable=*/true);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_fire_backward(s, f);
}

POSENC_LIBRARY_IMPL(Autograd, m) {
  m.impl("_fire_attention", &flat_fire<fire_autograd>);
  m.impl("_fire_attention_forward", &flat_fire<fire_forward_autograd>);
  m.impl("_fire_attention_backward", &flat_fire_backward<fire_backward_autograd>);
}

template <c10::DispatchKey key, c10::DeviceType device>
OutAndLse fire_autocast(const FireCall& f) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device);
  FireCall cast = f;
  for (int64_t input = 0; input < kFirstParameter; ++input) {
    cast.inputs[input] = at::autocast::cached_cast(dtype, f.inputs[input], device);
  }
  return call_fire(cast);
}

POSENC_LIBRARY_IMPL(AutocastCPU, m) {
  m.impl("_fire_attention", &flat_fire<fire_autocast<c10::DispatchKey::AutocastCPU, c10::kCPU>>);
}

POSENC_LIBRARY_IMPL(Autocast, m) {
  m.impl("_fire_attention", &flat_fire<fire_autocast<c10::DispatchKey::AutocastCUDA, c10::kCUDA>>);
}

}  // namespace
}  // namespace posenc::bias_ops
