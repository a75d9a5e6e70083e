/// posenc._C.nn: the C++ modules of posenc, each wrapped as a torch.nn.Module.

#include "options.h"

#include <posenc/nn.h>

#include <functional>
#include <sstream>

namespace posenc::python {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
/// The tensor first: one of a single element also converts to an int.
using Offset = std::variant<Tensor, int64_t>;
using OneOrTwo = std::variant<Tensor, std::tuple<Tensor, Tensor>>;

/// The C++ module in a wrapper, as its class or an interface of it.
template <typename T>
T& unwrap(const py::object& self) {
  return dynamic_cast<T&>(*self.attr("cpp_module").cast<std::shared_ptr<torch::nn::Module>>());
}

/// Defines a method that calls a function of Self, which is in the wrapper, without the interpreter's lock.
template <typename Self, typename R, typename... A, typename... Args>
void define_call(const py::object& type, const char* name, std::function<R(Self&, A...)> f, const Args&... args) {
  define_method(
      type, name,
      [f = std::move(f)](const py::object& self, A... a) -> R {
        auto& module = unwrap<Self>(self);
        const py::gil_scoped_release release;
        return f(module, std::forward<A>(a)...);
      },
      args...);
}

template <typename CallOptions>
CallOptions placed_call(const OptionalTensor& positions, const Offset& offset) {
  auto call = CallOptions().positions(positions);
  if (const auto* offsets = std::get_if<Tensor>(&offset)) {
    return call.offsets(*offsets);
  }
  return call.offset(std::get<int64_t>(offset));
}

template <typename Impl>
OneOrTwo rotate(Impl& module, const Tensor& q, const OptionalTensor& k, const OptionalTensor& positions,
                const Offset& offset, std::optional<int64_t> seq_len) {
  const auto call = placed_call<nn::RotaryForwardOptions>(positions, offset).seq_len(seq_len);
  if (k) {
    return module.forward_qk(q, *k, call);
  }
  return module.forward(q, call);
}

Tensor embed(nn::AbsoluteEncoding& encoding, const Tensor& x, const OptionalTensor& positions, const Offset& offset) {
  return encoding.embed(x, placed_call<nn::AbsoluteForwardOptions>(positions, offset));
}

Tensor forward(nn::AttentionImpl& module, const Tensor& x, const OptionalTensor& positions,
               const OptionalTensor& key_mask, const OptionalTensor& segment_ids, const OptionalTensor& attn_mask,
               const OptionalTensor& block_ids, const OptionalTensor& bias, const OptionalTensor& context,
               nn::KVCache* cache) {
  return module.forward(x, nn::AttentionForwardOptions()
                               .positions(positions)
                               .key_mask(key_mask)
                               .segment_ids(segment_ids)
                               .attn_mask(attn_mask)
                               .block_ids(block_ids)
                               .bias(bias)
                               .context(context)
                               .cache(cache));
}

nn::TokenState to_token_state(const py::dict& given) {
  nn::AttendOptions state;
  for (const auto& [name, value] : given) {
    state.set_state(name.cast<std::string>(), value.cast<OptionalTensor>());
  }
  return state.token_state();
}

/// A call of attend(), or of logits(), which takes neither a value nor what follows the options that it shares.
struct ScoreCallArguments {
  explicit ScoreCallArguments(bool attends) : attends(attends) {}
  bool attends;
  Tensor query, key, value;
  nn::AttendOptions call;
  bool return_lse = false;

  template <typename Visit>
  void describe(Visit&& visit) {
    visit("query", query);
    visit("key", key);
    if (attends) {
      visit("value", value);
    }
    nn::AttendOptions::describe(call, [&](const char* name, auto& option) {
      if (attends || (name != std::string("dropout_p") && name != std::string("sinks"))) {
        visit(name, option);
      }
    });
    if (attends) {
      visit("return_lse", return_lse);
    }
  }
};

void define_score_call(const py::object& type, const char* name, bool attends) {
  const size_t tensors = attends ? 3 : 2;
  ParameterWriter parameters(tensors, tensors);
  ScoreCallArguments(attends).describe(parameters);
  const auto act = [attends, tensors](const py::object& self, const py::args& args,
                                      const py::kwargs& kwargs) -> OneOrTwo {
    auto& encoding = unwrap<nn::ScoreEncoding>(self);
    const auto module = py::type::of(self).attr("__name__").cast<std::string>();
    ScoreCallArguments given(attends);
    ArgumentReader reader(module.c_str(), args, kwargs, tensors, tensors);
    given.describe(reader);
    const auto takes = [&](bool taken, const std::string& argument) {
      TORCH_CHECK_TYPE(taken, module, ": got an unexpected argument ", argument);
    };
    takes(!encoding.always_causal() || !given.call.is_causal(), "is_causal");
    takes(encoding.takes_positions() || !given.call.q_positions(), "q_positions");
    takes(encoding.takes_positions() || !given.call.k_positions(), "k_positions");
    const auto names = encoding.token_state_names();
    for (const auto& [argument, value] : reader.rest()) {
      takes(std::find(names.begin(), names.end(), argument.cast<std::string>()) != names.end(), py::str(argument));
    }
    given.call.token_state(to_token_state(reader.rest()));
    const py::gil_scoped_release release;
    if (!attends) {
      return encoding.logits(given.query, given.key, given.call);
    }
    if (given.return_lse) {
      return encoding.attend_with_lse(given.query, given.key, given.value, given.call);
    }
    return encoding.attend(given.query, given.key, given.value, given.call);
  };
  type.attr(name) =
      function(py::is_method(type), name, signature(name, "self, " + parameters.text("token_state")), act);
}

std::string to_text(const torch::nn::Module& module) {
  std::ostringstream stream;
  module.pretty_print(stream);
  return stream.str();
}

/// A module of posenc in Python: a subclass of torch.nn.cpp.ModuleWrapper with a constructor that takes its options,
/// and the methods of its family. torch::python::bind_module would compile torch.nn.Module's own methods anew for each.
template <typename Impl>
class Bound {
 public:
  using Options = decltype(Impl::options);

  /// The first `positional` options may be given without their names.
  Bound(py::module_& m, const char* name, size_t positional = Blank<Options>::required) : m_(m), name_(name) {
    const py::object wrapper = py::module_::import("torch.nn.cpp").attr("ModuleWrapper");
    py::dict attributes;
    attributes["__module__"] = m.attr("__name__");
    type_ = py::type::of(wrapper)(name, py::make_tuple(wrapper), attributes);
    m.attr(name) = type_;
    py::class_<Impl, torch::nn::Module, std::shared_ptr<Impl>> bare(m.attr("_modules"), name);
    bare.attr("__repr__") = py::cpp_function(&to_text, py::is_method(bare));
    type_.attr("__init__") =
        function(py::is_method(type_), "init", signature("init", "self, " + parameters_of<Options>(positional)),
                 [name, wrapper, positional](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
                   auto module = std::make_shared<Impl>(read_options<Options>(name, args, kwargs, positional));
                   wrapper.attr("__init__")(self, std::move(module));
                 });
    define_family();
  }

  /// A method without arguments that gets something of the C++ module.
  template <typename Get>
  Bound& get(const char* name, Get get) {
    define_method(type_, name, [get](const py::object& self) { return std::invoke(get, unwrap<Impl>(self)); });
    return *this;
  }
  template <typename R, typename... A, typename... Args>
  Bound& call(const char* name, R (*f)(Impl&, A...), const Args&... args) {
    define_call(type_, name, std::function<R(Impl&, A...)>(f), args...);
    return *this;
  }
  template <typename R, typename C, typename... A, typename... Args>
  Bound& call(const char* name, R (C::*f)(A...), const Args&... args) {
    define_call(type_, name, std::function<R(Impl&, A...)>(std::mem_fn(f)), args...);
    return *this;
  }

  /// A function `name` of the options, for the Python class, which needs it without drawing parameters in C++.
  template <typename F>
  Bound& of_options(const char* name, F f) {
    m_.attr(name) = function(py::scope(m_), name, signature(name, parameters_of<Options>(kAllByPosition)),
                             [module = name_, f](const py::args& args, const py::kwargs& kwargs) {
                               const auto options = read_options<Options>(module, args, kwargs, kAllByPosition);
                               check(options);
                               return f(options);
                             });
    return *this;
  }
  Bound& check_options(const char* name) {
    return of_options(name, [](const Options&) {});
  }

 private:
  void define_family() {
    const auto none = py::none();
    if constexpr (std::is_base_of_v<nn::RotaryEncoding, Impl>) {
      call("forward", &rotate<Impl>, py::arg("q"), py::arg("k") = none, py::arg("positions") = none, py::kw_only(),
           py::arg("offset") = 0, py::arg("seq_len") = none);
      call("shift", &Impl::shift, py::arg("key"), py::arg("by"));
    }
    if constexpr (requires(Impl impl) { impl.frequencies(std::nullopt).attention_scaling; }) {
      define_method(
          type_, "frequencies",
          [](const py::object& self, std::optional<int64_t> seq_len) {
            const auto f = unwrap<Impl>(self).frequencies(seq_len);
            return std::pair(f.inv_freq, f.attention_scaling);
          },
          py::arg("seq_len") = none);
    }
    if constexpr (std::is_base_of_v<nn::AbsoluteEncoding, Impl>) {
      define_call(type_, "forward", std::function(&embed), py::arg("x"), py::arg("positions") = none, py::kw_only(),
                  py::arg("offset") = 0);
    }
    if constexpr (std::is_base_of_v<nn::ScoreEncoding, Impl>) {
      define_score_call(type_, "attend", true);
      define_score_call(type_, "logits", false);
    }
    if constexpr (std::is_base_of_v<nn::AdditiveEncoding, Impl>) {
      call("bias", &Impl::bias, py::arg("q_len"), py::arg("k_len") = none);
    }
  }

  py::module_& m_;
  const char* name_;
  py::object type_;
};

OptionalTensor far_inv_freq(const nn::ReRoPEImpl& self) {
  return self.far_inv_freq().defined() ? OptionalTensor(self.far_inv_freq()) : std::nullopt;
}

void bind_modules(py::module_& m) {
  Bound<nn::RotaryImpl>(m, "Rotary");
  Bound<nn::XPosImpl>(m, "XPos").get("constants", &nn::XPosImpl::constants);
  Bound<nn::AxialRotaryImpl>(m, "AxialRotary")
      .get("initial_inv_freq", &nn::AxialRotaryImpl::initial_inv_freq)
      .get("axes", &nn::AxialRotaryImpl::axes);
  Bound<nn::MultimodalRotaryImpl>(m, "MultimodalRotary").get("axes", &nn::MultimodalRotaryImpl::axes);

  Bound<nn::SinusoidalImpl>(m, "Sinusoidal").get("inv_freq", &nn::SinusoidalImpl::inv_freq);
  Bound<nn::CAPEImpl>(m, "CAPE").get("inv_freq", &nn::CAPEImpl::inv_freq);
  Bound<nn::LearnedAbsoluteImpl>(m, "LearnedAbsolute").check_options("check_learned_absolute");
  m.attr("LEARNED_ABSOLUTE_INITIAL_STD") = nn::LearnedAbsoluteImpl::kInitialStd;

  Bound<nn::ALiBiImpl>(m, "ALiBi").get("initial_slopes", &nn::ALiBiImpl::initial_slopes);
  Bound<nn::T5RelativeBiasImpl>(m, "T5RelativeBias")
      .of_options("t5_relative_bias_initial_std", [](const auto& options) { return initial_std(options); });
  Bound<nn::KerpleImpl>(m, "Kerple").check_options("check_kerple");
  Bound<nn::SandwichImpl>(m, "Sandwich").get("inv_freq", &nn::SandwichImpl::inv_freq);
  Bound<nn::FIREImpl>(m, "FIRE").check_options("check_fire");
  Bound<nn::GridRelativeBiasImpl>(m, "GridRelativeBias").check_options("check_grid_relative_bias");
  m.attr("GRID_RELATIVE_BIAS_INITIAL_STD") = nn::GridRelativeBiasImpl::kInitialStd;
  m.attr("GRID_RELATIVE_BIAS_HIDDEN") = nn::GridRelativeBiasImpl::kHidden;

  Bound<nn::ShawRelativeImpl>(m, "ShawRelative").of_options("shaw_relative_initial_bound", [](const auto& options) {
    return initial_bound(options);
  });
  Bound<nn::DecomposedRelativeImpl>(m, "DecomposedRelative").check_options("check_decomposed_relative");
  Bound<nn::DisentangledRelativeImpl>(m, "DisentangledRelative")
      .of_options("disentangled_relative_span", [](const auto& options) { return span_of(options); });
  m.attr("DISENTANGLED_RELATIVE_INITIAL_STD") = nn::DisentangledRelativeImpl::kInitialStd;
  Bound<nn::TransformerXLImpl>(m, "TransformerXL").of_options("transformer_xl_inv_freq", [](const auto& options) {
    return inv_freq(options);
  });
  m.attr("TRANSFORMER_XL_INITIAL_STD") = nn::TransformerXLImpl::kInitialStd;
  Bound<nn::ReRoPEImpl>(m, "ReRoPE", /*positional=*/2)
      .get("inv_freq", &nn::ReRoPEImpl::inv_freq)
      .get("far_inv_freq", &far_inv_freq);
  Bound<nn::SelfExtendImpl>(m, "SelfExtend").get("inv_freq", &nn::SelfExtendImpl::inv_freq);
  Bound<nn::CoPEImpl>(m, "CoPE")
      .call("forward", &nn::CoPEImpl::forward, py::arg("query"), py::arg("attn_logits"))
      .check_options("check_cope");
  Bound<nn::ForgettingBiasImpl>(m, "ForgettingBias")
      .call("forward", &nn::ForgettingBiasImpl::forward, py::arg("x"))
      .check_options("check_forgetting_bias");

  Bound<nn::AttentionImpl>(m, "Attention")
      .call("forward", &forward, py::arg("x"), py::kw_only(), py::arg("positions") = py::none(),
            py::arg("key_mask") = py::none(), py::arg("segment_ids") = py::none(), py::arg("attn_mask") = py::none(),
            py::arg("block_ids") = py::none(), py::arg("bias") = py::none(), py::arg("context") = py::none(),
            py::arg("cache") = py::none())
      .check_options("check_attention");
}

void bind_kv_cache(py::module_& m) {
  using Options = nn::KVCacheOptions;
  constexpr size_t required = Blank<Options>::required;
  py::class_<nn::KVCache> type(m, "KVCache");
  {
    py::options options;
    options.disable_function_signatures();
    type.def(py::init([](const py::args& args, const py::kwargs& kwargs) {
               return nn::KVCache(read_options<Options>("KVCache", args, kwargs, required));
             }),
             signature("__init__", "self, " + parameters_of<Options>(required)).c_str());
  }
  define_method(
      type, {"append", "token_state"},
      [](nn::KVCache& self, const Tensor& k, const Tensor& v, const OptionalTensor& positions,
         const py::kwargs& token_state) {
        return self.append(k, v,
                           nn::KVCacheAppendOptions().positions(positions).token_state(to_token_state(token_state)));
      },
      py::arg("k"), py::arg("v"), py::kw_only(), py::arg("positions") = py::none());
  define_method(type, "next_positions", &nn::KVCache::next_positions, py::arg("tokens"));
  define_method(type, "reset", &nn::KVCache::reset);
  define_method(type, "crop", &nn::KVCache::crop, py::arg("length"));
  define_method(
      type, "evict",
      [](nn::KVCache& self, int64_t start, int64_t count, const py::object& rotary) {
        self.evict(start, count, rotary.is_none() ? nullptr : &unwrap<nn::RotaryEncoding>(rotary));
      },
      py::arg("start"), py::arg("count"), py::arg("rotary") = py::none());
  define_method(type, "reorder", &nn::KVCache::reorder, py::arg("index"));
  define_method(type, "copy", &nn::KVCache::copy);
  type.def_property_readonly("length", &nn::KVCache::length)
      .def_property_readonly("dropped", &nn::KVCache::dropped)
      .def_property_readonly("keys", &nn::KVCache::keys)
      .def_property_readonly("values", &nn::KVCache::values)
      .def_property_readonly("token_state", &nn::KVCache::token_state)
      .def_property_readonly("gate_keys", &nn::KVCache::gate_keys)
      .def_property_readonly("log_decay", &nn::KVCache::log_decay)
      .def_property_readonly("positions", &nn::KVCache::positions);
}

}  // namespace
}  // namespace posenc::python

void bind_nn(pybind11::module_& m) {
  m.def_submodule("_modules", "The C++ modules themselves, each in the wrapper of its name.");
  posenc::python::bind_kv_cache(m);
  posenc::python::bind_modules(m);
}
