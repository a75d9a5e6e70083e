/// Derivatives of the attention ops, and their behaviour under autocast. The backward is an op of its own; its own
/// derivatives, and torch.func's, come from the reference form.

#include "attention/checks.h"
#include "attention/reference/reference.h"
#include "attention/registration.h"
#include "common/autograd_support.h"
#include "common/registration.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>

namespace posenc::attention_ops {
namespace {

using reference::Mode;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::SwapSavedVariables;

/// torch counts the references to a node in the node itself, in older versions beside it.
template <typename SomeNode, typename... Args>
auto make_node(const Args&... args) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, SomeNode>) {
    return c10::make_intrusive<SomeNode>(args...);
  } else {
    return std::shared_ptr<SomeNode>(new SomeNode(args...), [](SomeNode* node) { deleteNode(node); });
  }
}

bool transformed(const Call& c) {
  return under_transforms() ||
         std::any_of(c.inputs.begin(), c.inputs.end(), [](const OptionalTensor& t) { return has_tangent(t); });
}

bool any_wants_gradient(const Call& c) {
  return std::any_of(c.inputs.begin(), c.inputs.end(), [](const OptionalTensor& t) { return wants_gradient(t); });
}

/// Calls body(tensor) for all tensors of a call, those that may have a gradient first.
template <typename SomeCall, typename Body>
void for_each_tensor(SomeCall& c, const Body& body) {
  for (auto& input : c.inputs) {
    body(input);
  }
  for (auto* other : {&c.key_mask, &c.segment_ids, &c.q_positions, &c.k_positions}) {
    body(*other);
  }
}

/// Calls body(option) for all that a call has beside tensors.
template <typename SomeCall, typename Body>
void for_each_option(SomeCall& c, const Body& body) {
  body(c.is_causal);
  body(c.scale);
  body(c.window);
  body(c.dropout_p);
  body(c.scale_position_logits);
  body(c.threshold);
}

/// What a node keeps of a call for its gradients.
struct Kept {
  /// The call without its tensors.
  Call options{.op = ""};
  /// Bit i: whether the tensor that for_each_tensor() comes to as number i is there.
  int64_t present = 0;
  /// Those tensors in that order, then out, lse, seed and state.
  variable_list tensors;
};

/// The gradients of the inputs that are there, in order; undefined where they are not wanted.
template <typename Op>
variable_list differentiate(const variable_list& grads, Kept kept, const std::vector<bool>& wanted) {
  variable_list result(wanted.size());
  if (!grads[0].defined() && !grads[1].defined()) {
    return result;
  }
  Call& c = kept.options;
  auto tensor = kept.tensors.begin();
  int64_t place = 0;
  for_each_tensor(c, [&](OptionalTensor& t) {
    if ((kept.present >> place++ & 1) != 0) {
      t = std::move(*tensor++);
    }
  });
  Saved s;
  s.out = std::move(*tensor++);
  s.lse = std::move(*tensor++);
  s.seed = std::move(*tensor++);
  s.state.assign(tensor, kept.tensors.end());
  s.grad_out = grads[0].defined() ? grads[0] : at::zeros_like(s.out);
  s.grad_lse = if_defined(grads[1]);
  std::vector<size_t> to;
  for (int64_t slot = 0, input = 0; slot < kSlots; ++slot) {
    if (c.inputs[slot] && wanted[input++]) {
      s.wanted.push_back(slot);
      to.push_back(input - 1);
    }
  }
  auto gradients = call_backward<Op>(s, c);
  for (size_t i = 0; i < to.size(); ++i) {
    result[to[i]] = std::move(gradients[i]);
  }
  return result;
}

/// A call in torch's graph. torch::autograd::Function is less to write, but takes longer for a short sequence than its
/// attention does.
template <typename Op>
class AttentionNode final : public Node {
 public:
  explicit AttentionNode(const Call& c) : Node(edges_of(c)) {}

  std::string name() const override { return Op::node_name; }

  /// rounds: whether the op returns out in another dtype.
  void keep(const Call& c, const Forward& found, bool rounds) {
    const auto& [out, lse, seed, state] = found;
    kept_.options = c;
    saved_.reserve(kSlots + state.size());
    int64_t place = 0;
    for_each_tensor(kept_.options, [&](OptionalTensor& t) {
      if (t) {
        kept_.present |= int64_t{1} << place;
        saved_.emplace_back(*t, /*is_output=*/false);
        t.reset();
      }
      ++place;
    });
    saved_.emplace_back(out, /*is_output=*/!rounds);
    saved_.emplace_back(lse, /*is_output=*/true);
    saved_.emplace_back(seed, /*is_output=*/false);
    for (const Tensor& t : state) {
      saved_.emplace_back(t, /*is_output=*/false);
    }
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved_.clear();
  }

  // What torch's compiled autograd asks of a node: what its graph depends on, and the gradients as a function of it.

  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(saved_, /*is_output=*/true);
    args.collect(kept_.present);
    for_each_option(kept_.options, [&](const auto& option) { args.collect(option); });
  }

  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& swap) override {
    namespace compiled = torch::dynamo::autograd;
    swap.before(saved_);
    compiled::PackedArgs packed;
    packed.pack(unpack());
    packed.pack(kept_.present);
    for_each_option(kept_.options, [&](const auto& option) { packed.pack(option); });
    packed.pack(wanted());
    std::vector<at::TypePtr> types;
    for (const auto& value : packed.vec()) {
      types.push_back(value.isTensor() ? at::TensorType::get() : value.type());
    }
    using Metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>;
    const auto& compiler = compiled::getPyCompilerInterface();
    const auto function = compiler->bind_function(swap.get_py_compiler(), name(), differentiate_packed, types,
                                                  /*is_custom_function=*/true);
    auto result = compiler->call_function(swap.get_py_compiler(), "apply_functional", function, grads, packed.vec(),
                                          Metadata::pack(compiled::get_input_metadata(next_edges())));
    swap.after(saved_);
    return result;
  }

 private:
  static edge_list edges_of(const Call& c) {
    edge_list edges;
    for (const auto& input : c.inputs) {
      if (input) {
        edges.push_back(torch::autograd::impl::gradient_edge(*input));
      }
    }
    return edges;
  }

  static variable_list differentiate_packed(const variable_list& grads, const std::vector<c10::IValue>& values) {
    torch::dynamo::autograd::PackedArgs packed(values);
    Kept kept;
    kept.tensors = packed.unpack<variable_list>();
    kept.present = packed.unpack<int64_t>();
    for_each_option(kept.options,
                    [&](auto& option) { option = packed.unpack<std::remove_reference_t<decltype(option)>>(); });
    return differentiate<Op>(grads, std::move(kept), packed.unpack<std::vector<bool>>());
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Kept kept = kept_;
    kept.tensors = unpack();
    return differentiate<Op>(grads, std::move(kept), wanted());
  }

  variable_list unpack() {
    TORCH_CHECK(!saved_.empty(), torch::autograd::ERR_BACKWARD_TWICE);
    variable_list tensors;
    tensors.reserve(saved_.size());
    for (const auto& t : saved_) {
      tensors.push_back(t.unpack(getptr()));
    }
    return tensors;
  }

  /// By edge.
  std::vector<bool> wanted() const {
    std::vector<bool> result(num_outputs());
    for (uint32_t edge = 0; edge < num_outputs(); ++edge) {
      result[edge] = task_should_compute_output(edge);
    }
    return result;
  }

  /// tensors is empty: they are in saved_.
  Kept kept_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

template <typename Op>
OutAndLse record(const Call& c) {
  const auto node = make_node<AttentionNode<Op>>(c);
  at::AutoDispatchBelowADInplaceOrView below;
  const Forward found = call_forward<Op>(c);
  const auto& out = std::get<0>(found);
  const auto dtype = c.query().scalar_type();
  const bool rounds = out.scalar_type() != dtype;
  OutAndLse result{rounds ? out.to(dtype) : out, std::get<1>(found)};
  torch::autograd::set_history(std::get<0>(result), node);
  torch::autograd::set_history(std::get<1>(result), node);
  node->keep(c, found, rounds);
  return result;
}

template <typename Op>
OutAndLse attention_autograd(const Call& c) {
  if (transformed(c)) {
    check(c);
    auto [out, lse, seed, state] = reference::forward(c, Mode::kComposite);
    return {out.to(c.query().scalar_type()), std::move(lse)};
  }
  if (any_wants_gradient(c)) {
    return record<Op>(c);
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

POSENC_LIBRARY_IMPL(Autograd, m) {
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

POSENC_LIBRARY_IMPL(AutocastCPU, m) { register_autocast<c10::DispatchKey::AutocastCPU, c10::kCPU>(m); }
POSENC_LIBRARY_IMPL(Autocast, m) { register_autocast<c10::DispatchKey::AutocastCUDA, c10::kCUDA>(m); }

}  // namespace
}  // namespace posenc::attention_ops
