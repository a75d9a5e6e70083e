/// Derivatives of the attention ops, and their behaviour under autocast. The backward is an op of its own; its own
/// derivatives, and torch.func's, come from the reference form.

#include "attention/checks.h"
#include "attention/reference.h"
#include "attention/registration.h"
#include "transforms.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace posenc::attention_ops {
namespace {

using reference::Mode;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool transformed(const Call& c) {
  return under_transforms() ||
         std::any_of(c.inputs.begin(), c.inputs.end(), [](const OptionalTensor& t) { return has_tangent(t); });
}

bool any_wants_gradient(const Call& c) {
  return std::any_of(c.inputs.begin(), c.inputs.end(), [](const OptionalTensor& t) { return wants_gradient(t); });
}

template <typename Op>
struct Attend : torch::autograd::Function<Attend<Op>> {
  static constexpr bool is_traceable = true;
  // Two entries of three: each entry costs a quarter of a microsecond, and longer tuples make torch's headers warn.
  using Visibility = std::tuple<bool, std::optional<double>, std::optional<int64_t>>;
  using Options = std::tuple<double, bool, int64_t>;

  template <typename... Inputs>
  static variable_list forward(AutogradContext* ctx, const Call& c, const Inputs&...) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    auto [out, lse, seed, state] = call_forward<Op>(c);
    variable_list saved;
    for (const auto& input : c.inputs) {
      saved.push_back(input.value_or(Tensor()));
    }
    for (const auto* other : {&c.key_mask, &c.segment_ids, &c.q_positions, &c.k_positions}) {
      saved.push_back(other->value_or(Tensor()));
    }
    saved.insert(saved.end(), {out, lse, seed});
    saved.insert(saved.end(), state.begin(), state.end());
    const auto dtype = c.query().scalar_type();
    const bool rounds = out.scalar_type() != dtype;
    ctx->save_for_backward(saved);
    ctx->saved_data["visibility"] = Visibility(c.is_causal, c.scale, c.window);
    ctx->saved_data["options"] = Options(c.dropout_p, c.scale_position_logits, c.threshold);
    return {rounds ? out.to(dtype) : out, lse};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(1 + kSlots);
    if (!grads[0].defined() && !grads[1].defined()) {
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    Call c{.op = ""};
    Saved s;
    // The inputs of apply() that were tensors, in order, after the Call.
    for (int64_t slot = 0, edge = 0; slot < kSlots; ++slot) {
      c.inputs[slot] = if_defined(saved[slot]);
      if (c.inputs[slot] && ctx->needs_input_grad(edge++)) {
        s.wanted.push_back(slot);
      }
    }
    c.key_mask = if_defined(saved[kSlots]);
    c.segment_ids = if_defined(saved[kSlots + 1]);
    c.q_positions = if_defined(saved[kSlots + 2]);
    c.k_positions = if_defined(saved[kSlots + 3]);
    std::tie(c.is_causal, c.scale, c.window) = ctx->saved_data["visibility"].to<Visibility>();
    std::tie(c.dropout_p, c.scale_position_logits, c.threshold) = ctx->saved_data["options"].to<Options>();
    s.out = saved[kSlots + 4];
    s.lse = saved[kSlots + 5];
    s.seed = saved[kSlots + 6];
    s.state.assign(saved.begin() + kSlots + 7, saved.end());
    s.grad_out = grads[0].defined() ? grads[0] : at::zeros_like(s.out);
    s.grad_lse = if_defined(grads[1]);
    const auto gradients = call_backward<Op>(s, c);
    for (size_t i = 0; i < s.wanted.size(); ++i) {
      result[1 + s.wanted[i]] = gradients[i];
    }
    return result;
  }
};

template <typename Op>
OutAndLse attention_autograd(const Call& c) {
  if (transformed(c)) {
    check(c);
    auto [out, lse, seed, state] = reference::forward(c, Mode::kComposite);
    return {out.to(c.query().scalar_type()), std::move(lse)};
  }
  if (any_wants_gradient(c)) {
    const auto results = std::apply([&](const auto&... inputs) { return Attend<Op>::apply(c, inputs...); }, c.inputs);
    return {results[0], results[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_public<Op>(c);
}

template <typename Op>
Forward forward_autograd(const Call& c) {
  at::AutoDispatchBelowADInplaceOrView below;
  return call_forward<Op>(c);
}

template <typename Op>
std::vector<Tensor> backward_autograd(const Saved& s, const Call& c) {
  const bool differentiated = wants_gradient(s.grad_out) || wants_gradient(s.grad_lse) || any_wants_gradient(c);
  if (differentiated || transformed(c)) {
    check(c);
    return reference::backward(s, c, Mode::kComposite);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_backward<Op>(s, c);
}

template <typename Op>
void register_autograd(torch::Library& m) {
  register_op<Op, attention_autograd<Op>, forward_autograd<Op>, backward_autograd<Op>>(m);
}

TORCH_LIBRARY_IMPL(posenc, Autograd, m) {
  register_autograd<Dot>(m);
  register_autograd<Relative>(m);
  register_autograd<Cope>(m);
  register_autograd<Piecewise>(m);
}

/// Casts queries, keys and values as torch's scaled_dot_product_attention does; tables and biases stay as they are.
template <typename Op, c10::DispatchKey key, c10::DeviceType device>
OutAndLse attention_autocast(const Call& c) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device);
  Call cast = c;
  for (const Slot slot : {kQuery, kKey, kValue, kFarQuery, kFarKey, kGateKey}) {
    cast.inputs[slot] = at::autocast::cached_cast(dtype, c.inputs[slot], device);
  }
  return call_public<Op>(cast);
}

template <c10::DispatchKey key, c10::DeviceType device>
void register_autocast(torch::Library& m) {
  m.impl(Dot::name, &Flat<Dot>::forward<attention_autocast<Dot, key, device>>);
  m.impl(Relative::name, &Flat<Relative>::forward<attention_autocast<Relative, key, device>>);
  m.impl(Cope::name, &Flat<Cope>::forward<attention_autocast<Cope, key, device>>);
  m.impl(Piecewise::name, &Flat<Piecewise>::forward<attention_autocast<Piecewise, key, device>>);
}

TORCH_LIBRARY_IMPL(posenc, AutocastCPU, m) { register_autocast<c10::DispatchKey::AutocastCPU, c10::kCPU>(m); }
TORCH_LIBRARY_IMPL(posenc, Autocast, m) { register_autocast<c10::DispatchKey::AutocastCUDA, c10::kCUDA>(m); }

}  // namespace
}  // namespace posenc::attention_ops
