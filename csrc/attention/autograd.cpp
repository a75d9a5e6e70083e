/// Derivatives of the attention ops, and their behaviour under autocast. The backward is an op of its own; its own
/// derivatives, and torch.func's, come from the reference form.

#include "attention/checks.h"
#include "attention/reference.h"
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

/// torch counts the references to a node in the node itself, in older versions in a shared_ptr.
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

/// "CopeAttentionBackward" for cope_attention, and so on.
std::string node_name(const char* op) {
  std::string name;
  bool begins = true;
  for (const char x : std::string_view(op)) {
    if (x != '_') {
      name += begins ? static_cast<char>(x - 'a' + 'A') : x;
    }
    begins = x == '_';
  }
  return name + "Backward";
}

int64_t present_inputs(const Call& c) {
  return std::count_if(c.inputs.begin(), c.inputs.end(), [](const OptionalTensor& t) { return t.has_value(); });
}

/// What a node keeps of a call for its gradients.
struct Kept {
  /// The call without its tensors.
  Call options;
  /// Bit i: whether the tensor that for_each_tensor() comes to as number i is there.
  int64_t present = 0;
  /// Those tensors in that order, then those of Residuals.
  variable_list tensors;
};

/// The gradients of the inputs that are there, in order; undefined where they are not wanted.
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
  BackwardArgs b;
  for (Tensor* x : {&b.saved.out, &b.saved.lse, &b.saved.seed, &b.saved.largest, &b.saved.total, &b.saved.counts}) {
    *x = std::move(*tensor++);
  }
  b.grad_out = grads[0].defined() ? grads[0] : at::zeros_like(b.saved.out);
  b.grad_lse = if_defined(grads[1]);
  for (int64_t input = 0, edge = 0; input < kInputs; ++input) {
    b.wanted[input] = c.inputs[input] && wanted[edge++];
  }
  Gradients gradients = call_backward(b, c);
  for (int64_t input = 0, edge = 0; input < kInputs; ++input) {
    if (c.inputs[input]) {
      result[edge++] = std::move(gradients[input]);
    }
  }
  return result;
}

/// A call in torch's graph. Written by hand: at 16 tokens torch::autograd::Function costs more than the attention
/// itself.
class AttentionNode final : public Node {
 public:
  explicit AttentionNode(const Call& c) : Node(edges_of(c)), op_(op_name(c)) {}

  std::string name() const override { return node_name(op_); }

  /// rounds: whether the op returns out in another dtype.
  void keep(const Call& c, const Residuals& found, bool rounds) {
    kept_.options = c;
    saved_.reserve(present_inputs(c) + std::tuple_size_v<Residuals::Tuple>);
    int64_t place = 0;
    for_each_tensor(kept_.options, [&](OptionalTensor& t) {
      if (t) {
        kept_.present |= int64_t{1} << place;
        saved_.emplace_back(*t, /*is_output=*/false);
        t.reset();
      }
      ++place;
    });
    saved_.emplace_back(found.out, /*is_output=*/!rounds);
    saved_.emplace_back(found.lse, /*is_output=*/true);
    for (const Tensor* t : {&found.seed, &found.largest, &found.total, &found.counts}) {
      saved_.emplace_back(*t, /*is_output=*/false);
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
    edges.reserve(present_inputs(c));
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
    return differentiate(grads, std::move(kept), packed.unpack<std::vector<bool>>());
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Kept kept = kept_;
    kept.tensors = unpack();
    return differentiate(grads, std::move(kept), wanted());
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

  const char* op_;
  /// tensors is empty: they are in saved_.
  Kept kept_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

OutAndLse record(const Call& c) {
  const auto node = make_node<AttentionNode>(c);
  at::AutoDispatchBelowADInplaceOrView below;
  const Residuals found = call_forward(c);
  const auto dtype = c.query().scalar_type();
  const bool rounds = found.out.scalar_type() != dtype;
  OutAndLse result{rounds ? found.out.to(dtype) : found.out, found.lse};
  torch::autograd::set_history(std::get<0>(result), node);
  torch::autograd::set_history(std::get<1>(result), node);
  node->keep(c, found, rounds);
  return result;
}

OutAndLse attention_autograd(const Call& c) {
  if (transformed(c)) {
    check(c);
    return reference::attention(c, Mode::kComposite);
  }
  if (any_wants_gradient(c)) {
    return record(c);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_public(c);
}

Residuals forward_autograd(const Call& c) {
  at::AutoDispatchBelowADInplaceOrView below;
  return call_forward(c);
}

Gradients backward_autograd(const BackwardArgs& b, const Call& c) {
  const bool differentiated = wants_gradient(b.grad_out) || wants_gradient(b.grad_lse) || any_wants_gradient(c);
  if (differentiated || transformed(c)) {
    check(c);
    return reference::backward(b, c, Mode::kComposite);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return call_backward(b, c);
}

POSENC_LIBRARY_IMPL(Autograd, m) { register_ops<attention_autograd, forward_autograd, backward_autograd>(m); }

/// Casts queries, keys and values as torch's scaled_dot_product_attention does; tables and biases stay as they are.
template <c10::DispatchKey key, c10::DeviceType device>
OutAndLse attention_autocast(const Call& c) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device);
  Call cast = c;
  for (const Input input : {kQuery, kKey, kValue, kFarQuery, kFarKey, kGateKey, kRelQuery}) {
    cast.inputs[input] = at::autocast::cached_cast(dtype, c.inputs[input], device);
  }
  return call_public(cast);
}

POSENC_LIBRARY_IMPL(AutocastCPU, m) {
  m.impl("attention", kEntry<AttentionSignature, attention_autocast<c10::DispatchKey::AutocastCPU, c10::kCPU>>);
}
POSENC_LIBRARY_IMPL(Autocast, m) {
  m.impl("attention", kEntry<AttentionSignature, attention_autocast<c10::DispatchKey::AutocastCUDA, c10::kCUDA>>);
}

}  // namespace
}  // namespace posenc::attention_ops
