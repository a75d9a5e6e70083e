/// Derivatives of the rotary ops. The backward of a rotation is the same op with `inverse` flipped, so gradients of any
/// order exist and only positions and frequencies are saved. Gradients to frequencies and positions go through tables.

#include "common/autograd_support.h"
#include "common/registration.h"
#include "rotary/checks.h"
#include "rotary/reference.h"

#include <torch/csrc/autograd/custom_function.h>

namespace posenc::rotary_ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool transformed(std::initializer_list<std::reference_wrapper<const Tensor>> inputs) {
  return under_transforms() ||
         std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return has_tangent(t); });
}

const Tensor& value_or(const OptionalTensor& t, const Tensor& other) { return t ? *t : other; }

/// The outputs of a function of q and k, where only that of an input with a gradient asks for one.
variable_list mark(AutogradContext* ctx, const Tensor& q, const Tensor& k, std::tuple<Tensor, Tensor> turned) {
  if (!q.requires_grad()) {
    ctx->mark_non_differentiable({std::get<0>(turned)});
  }
  if (!k.requires_grad()) {
    ctx->mark_non_differentiable({std::get<1>(turned)});
  }
  return {std::get<0>(turned), std::get<1>(turned)};
}

/// rotary (k absent) and rotary_qk.
struct Rotate : torch::autograd::Function<Rotate> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const OptionalTensor& k,
                               const OptionalTensor& positions, const Tensor& inv_freq, const RotaryFuncOptions& o) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({positions.value_or(Tensor()), inv_freq, o.offsets().value_or(Tensor())});
    ctx->saved_data["attention_scaling"] = o.attention_scaling();
    ctx->saved_data["interleaved"] = o.interleaved();
    ctx->saved_data["inverse"] = o.inverse();
    ctx->saved_data["axes"] = o.axes();
    ctx->saved_data["exact"] = o.exact();
    ctx->saved_data["offset"] = o.offset();
    if (!k) {
      return {rotary(q, positions, inv_freq, o)};
    }
    return mark(ctx, q, *k, rotary_qk(q, *k, positions, inv_freq, o));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto o = RotaryFuncOptions()
                       .attention_scaling(ctx->saved_data["attention_scaling"].toDouble())
                       .interleaved(ctx->saved_data["interleaved"].toBool())
                       .inverse(!ctx->saved_data["inverse"].toBool())
                       .axes(ctx->saved_data["axes"].toOptional<std::vector<int64_t>>())
                       .exact(ctx->saved_data["exact"].toBool())
                       .offset(ctx->saved_data["offset"].toSymInt())
                       .offsets(if_defined(saved[2]));
    variable_list result(5);
    const bool both = grads.size() == 2 && grads[0].defined() && grads[1].defined() && ctx->needs_input_grad(0) &&
                      ctx->needs_input_grad(1);
    if (both) {
      std::tie(result[0], result[1]) = rotary_qk(grads[0], grads[1], if_defined(saved[0]), saved[1], o);
      return result;
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined() && ctx->needs_input_grad(i)) {
        result[i] = rotary(grads[i], if_defined(saved[0]), saved[1], o);
      }
    }
    return result;
  }
};

struct ApplyRotary : torch::autograd::Function<ApplyRotary> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved,
                        bool inverse) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    const bool tables = cos.requires_grad() || sin.requires_grad();
    ctx->save_for_backward({tables ? x : Tensor(), cos, sin});
    ctx->saved_data["interleaved"] = interleaved;
    ctx->saved_data["inverse"] = inverse;
    return apply_rotary(x, cos, sin, interleaved, inverse);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined()) {
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    const bool interleaved = ctx->saved_data["interleaved"].toBool(), inverse = ctx->saved_data["inverse"].toBool();
    if (ctx->needs_input_grad(0)) {
      result[0] = apply_rotary(grads[0], saved[1], saved[2], interleaved, !inverse);
    }
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      std::tie(result[1], result[2]) =
          reference::table_gradients(grads[0], saved[0], saved[1], saved[2], interleaved, inverse);
    }
    return result;
  }
};

/// apply_rotary_qk with tables that need no gradient.
struct ApplyRotaryQK : torch::autograd::Function<ApplyRotaryQK> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& cos,
                               const Tensor& sin, bool interleaved, bool inverse) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["interleaved"] = interleaved;
    ctx->saved_data["inverse"] = inverse;
    return mark(ctx, q, k, apply_rotary_qk(q, k, cos, sin, interleaved, inverse));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const bool interleaved = ctx->saved_data["interleaved"].toBool(), inverse = !ctx->saved_data["inverse"].toBool();
    variable_list result(6);
    if (grads[0].defined() && grads[1].defined() && ctx->needs_input_grad(0) && ctx->needs_input_grad(1)) {
      std::tie(result[0], result[1]) = apply_rotary_qk(grads[0], grads[1], saved[0], saved[1], interleaved, inverse);
      return result;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (grads[i].defined() && ctx->needs_input_grad(i)) {
        result[i] = apply_rotary(grads[i], saved[0], saved[1], interleaved, inverse);
      }
    }
    return result;
  }
};

Tensor rotary_autograd(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                       const RotaryFuncOptions& o) {
  if (transformed({x, value_or(positions, x), inv_freq})) {
    return reference::rotary(x, positions, inv_freq, o);
  }
  if (wants_gradient(inv_freq) || wants_gradient(positions)) {
    check_rotary("rotary", {{"x", x}}, positions, inv_freq, o);
    const auto [cos, sin] = reference::rotary_tables(positions, inv_freq, table_options(x, o));
    return apply_rotary(x, cos, sin, o.interleaved(), o.inverse());
  }
  if (wants_gradient(x)) {
    return Rotate::apply(x, OptionalTensor(), positions, inv_freq, o)[0];
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return rotary(x, positions, inv_freq, o);
}

std::tuple<Tensor, Tensor> rotary_qk_autograd(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                              const Tensor& inv_freq, const RotaryFuncOptions& o) {
  if (transformed({q, k, value_or(positions, q), inv_freq})) {
    return reference::rotary_qk(q, k, positions, inv_freq, o);
  }
  if (wants_gradient(inv_freq) || wants_gradient(positions)) {
    check_rotary("rotary_qk", {{"q", q}, {"k", k}}, positions, inv_freq, o);
    const Tensor& wider = q.scalar_type() == at::kDouble ? q : k;
    const auto [cos, sin] = reference::rotary_tables(positions, inv_freq, table_options(wider, o));
    return apply_rotary_qk(q, k, cos, sin, o.interleaved(), o.inverse());
  }
  if (wants_gradient(q) || wants_gradient(k)) {
    const auto turned = Rotate::apply(q, OptionalTensor(k), positions, inv_freq, o);
    return {turned[0], turned[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return rotary_qk(q, k, positions, inv_freq, o);
}

std::tuple<Tensor, Tensor> rotary_tables_autograd(const OptionalTensor& positions, const Tensor& inv_freq,
                                                  const RotaryTablesFuncOptions& o) {
  if (transformed({value_or(positions, inv_freq), inv_freq, value_or(o.decay(), inv_freq)}) ||
      wants_gradient(inv_freq) || wants_gradient(positions) || wants_gradient(o.decay())) {
    return reference::rotary_tables(positions, inv_freq, o);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return rotary_tables(positions, inv_freq, o);
}

Tensor apply_rotary_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  if (transformed({x, cos, sin})) {
    return reference::apply_rotary(x, cos, sin, interleaved, inverse);
  }
  if (wants_gradient(x) || wants_gradient(cos) || wants_gradient(sin)) {
    return ApplyRotary::apply(x, cos, sin, interleaved, inverse);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return apply_rotary(x, cos, sin, interleaved, inverse);
}

std::tuple<Tensor, Tensor> apply_rotary_qk_autograd(const Tensor& q, const Tensor& k, const Tensor& cos,
                                                    const Tensor& sin, bool interleaved, bool inverse) {
  if (transformed({q, k, cos, sin})) {
    return reference::apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
  }
  if (wants_gradient(cos) || wants_gradient(sin)) {
    check_apply("apply_rotary_qk", {{"q", q}, {"k", k}}, cos, sin);
    return {apply_rotary(q, cos, sin, interleaved, inverse), apply_rotary(k, cos, sin, interleaved, inverse)};
  }
  if (wants_gradient(q) || wants_gradient(k)) {
    const auto turned = ApplyRotaryQK::apply(q, k, cos, sin, interleaved, inverse);
    return {turned[0], turned[1]};
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
}

/// The in-place forms have no backward; they say so instead of dropping gradients.
void refuse_gradient(const char* op, const char* functional, const char* name, const OptionalTensor& input) {
  TORCH_CHECK(!wants_gradient(input), op, ": expected inputs that need no gradient, but ", name, " requires one; use ",
              functional, ", or torch.no_grad() for inference");
}

void rotary_qk_inplace_autograd(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                const Tensor& inv_freq, const RotaryFuncOptions& o) {
  refuse_gradient("rotary_qk_", "rotary_qk", "q", q);
  refuse_gradient("rotary_qk_", "rotary_qk", "k", k);
  refuse_gradient("rotary_qk_", "rotary_qk", "positions", positions);
  refuse_gradient("rotary_qk_", "rotary_qk", "inv_freq", inv_freq);
  if (transformed({q, k, value_or(positions, q), inv_freq})) {
    return reference::rotary_qk_(q, k, positions, inv_freq, o);
  }
  at::AutoDispatchBelowAutograd below;
  rotary_qk_(q, k, positions, inv_freq, o);
}

void apply_rotary_qk_inplace_autograd(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                      bool interleaved, bool inverse) {
  refuse_gradient("apply_rotary_qk_", "apply_rotary_qk", "q", q);
  refuse_gradient("apply_rotary_qk_", "apply_rotary_qk", "k", k);
  refuse_gradient("apply_rotary_qk_", "apply_rotary_qk", "cos", cos);
  refuse_gradient("apply_rotary_qk_", "apply_rotary_qk", "sin", sin);
  if (transformed({q, k, cos, sin})) {
    return reference::apply_rotary_qk_(q, k, cos, sin, interleaved, inverse);
  }
  at::AutoDispatchBelowAutograd below;
  apply_rotary_qk_(q, k, cos, sin, interleaved, inverse);
}

POSENC_LIBRARY_IMPL(Autograd, m) {
  m.impl("rotary", &flat_rotary<rotary_autograd>);
  m.impl("rotary_qk", &flat_rotary_qk<rotary_qk_autograd>);
  m.impl("rotary_qk_", &flat_rotary_qk<rotary_qk_inplace_autograd>);
  m.impl("rotary_tables", &flat_rotary_tables<rotary_tables_autograd>);
  m.impl("apply_rotary", &apply_rotary_autograd);
  m.impl("apply_rotary_qk", &apply_rotary_qk_autograd);
  m.impl("apply_rotary_qk_", &apply_rotary_qk_inplace_autograd);
}

/// torch's own fallback at this key leaves the version counter of an op that returns nothing as it is.
void rotary_qk_inplace_version(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                               const Tensor& inv_freq, const RotaryFuncOptions& o) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    rotary_qk_(q, k, positions, inv_freq, o);
  }
  torch::autograd::impl::bump_version(q);
  torch::autograd::impl::bump_version(k);
}

void apply_rotary_qk_inplace_version(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                     bool interleaved, bool inverse) {
  {
    at::AutoDispatchBelowADInplaceOrView below;
    apply_rotary_qk_(q, k, cos, sin, interleaved, inverse);
  }
  torch::autograd::impl::bump_version(q);
  torch::autograd::impl::bump_version(k);
}

POSENC_LIBRARY_IMPL(ADInplaceOrView, m) {
  m.impl("rotary_qk_", &flat_rotary_qk<rotary_qk_inplace_version>);
  m.impl("apply_rotary_qk_", &apply_rotary_qk_inplace_version);
}

}  // namespace
}  // namespace posenc::rotary_ops
