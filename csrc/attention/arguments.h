#pragma once

/// The arguments of the attention ops as types, and what follows from a list of them: schema text, the functions that
/// the dispatcher calls, and the way between these and a Call. The rows stand in posenc/attention_arguments.h.

#include "attention/call.h"

#include <string>
#include <type_traits>

namespace posenc::attention_ops {

/// One type for each argument: its name, its type, and its place in a Call.
namespace argument {

#define POSENC_INPUT(slot, word)                                              \
  struct word {                                                               \
    static constexpr const char* kName = #word;                               \
    static OptionalTensor& of(Call& c) { return c.inputs[slot]; }             \
    static const OptionalTensor& of(const Call& c) { return c.inputs[slot]; } \
  };
#define POSENC_TENSOR(word)                                           \
  struct word {                                                       \
    static constexpr const char* kName = #word;                       \
    static OptionalTensor& of(Call& c) { return c.word; }             \
    static const OptionalTensor& of(const Call& c) { return c.word; } \
  };
#define POSENC_OPTION(type, word, value)                    \
  struct word {                                             \
    static constexpr const char* kName = #word;             \
    static type& of(Call& c) { return c.word; }             \
    static const type& of(const Call& c) { return c.word; } \
  };
POSENC_ATTENTION_INPUTS(POSENC_INPUT)
POSENC_ATTENTION_ALL_TENSORS(POSENC_TENSOR)
POSENC_ATTENTION_ALL_OPTIONS(POSENC_OPTION)
#undef POSENC_INPUT
#undef POSENC_TENSOR

POSENC_OPTION(std::optional<int64_t>, max_distance_left, std::nullopt)
POSENC_OPTION(std::optional<int64_t>, max_distance_right, std::nullopt)
POSENC_OPTION(std::string, beyond, "clip")
#undef POSENC_OPTION

/// An argument that a call must have.
template <typename Argument>
struct Required : Argument {};

// Names that piecewise_attention has for its first operands.
struct q_near : query {
  static constexpr const char* kName = "q_near";
};
struct k_near : key {
  static constexpr const char* kName = "k_near";
};

/// piecewise_attention is causal unless told otherwise.
struct causal_by_default : is_causal {
  static constexpr bool kDefault = true;
};

template <typename Argument>
constexpr bool kIsRequired = false;
template <typename Argument>
constexpr bool kIsRequired<Required<Argument>> = true;

template <typename Argument>
using ValueOf = std::remove_cvref_t<decltype(Argument::of(std::declval<Call&>()))>;

/// The type that the dispatcher has for an argument.
template <typename Argument>
using ParameterOf =
    std::conditional_t<kIsRequired<Argument> && std::is_same_v<ValueOf<Argument>, OptionalTensor>, const Tensor&,
                       std::conditional_t<std::is_same_v<ValueOf<Argument>, OptionalTensor>, const OptionalTensor&,
                                          std::conditional_t<std::is_same_v<ValueOf<Argument>, std::string>,
                                                             std::string_view, ValueOf<Argument>>>>;

template <typename Argument>
ParameterOf<Argument> get(const Call& c) {
  if constexpr (std::is_same_v<ParameterOf<Argument>, const Tensor&>) {
    return *Argument::of(c);
  } else {
    return Argument::of(c);
  }
}

/// As a schema declares it, with the default that a Call has.
template <typename Argument>
std::string declaration() {
  using Value = ValueOf<Argument>;
  const Call defaults{};
  const std::string name = Argument::kName;
  if constexpr (std::is_same_v<Value, OptionalTensor>) {
    return kIsRequired<Argument> ? "Tensor " + name : "Tensor? " + name + "=None";
  } else if constexpr (std::is_same_v<Value, bool>) {
    bool value = Argument::of(defaults);
    if constexpr (requires { Argument::kDefault; }) {
      value = Argument::kDefault;
    }
    return "bool " + name + (value ? "=True" : "=False");
  } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
    return "float? " + name + "=None";
  } else if constexpr (std::is_same_v<Value, std::optional<int64_t>>) {
    return "int? " + name + "=None";
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return "str " + name + "=\"" + Argument::of(defaults) + "\"";
  } else if constexpr (kIsRequired<Argument>) {
    return "int " + name;
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    return "int " + name + "=" + std::to_string(Argument::of(defaults));
  } else {
    static_assert(std::is_same_v<Value, double>);
    return "float " + name + "=" + std::to_string(Argument::of(defaults));
  }
}

}  // namespace argument

/// A list of arguments, the first `positional` of which need no keyword.
template <int64_t positional, typename... Arguments>
struct Signature {
  /// Result(before..., arguments...)
  template <typename Result, typename... Before>
  using Function = Result(Before..., argument::ParameterOf<Arguments>...);

  static std::string schema() {
    std::string text;
    int64_t place = 0;
    const auto add = [&](const std::string& declaration) {
      text += place == 0 ? "" : ", ";
      text += place++ == positional ? "*, " : "";
      text += declaration;
    };
    (add(argument::declaration<Arguments>()), ...);
    return text;
  }

  static Call pack(argument::ParameterOf<Arguments>... values) {
    Call c;
    ((Arguments::of(c) = values), ...);
    return c;
  }

  /// f(before..., arguments...) with the arguments of a call.
  template <typename F, typename... Before>
  static decltype(auto) apply(const Call& c, const F& f, const Before&... before) {
    return f(before..., argument::get<Arguments>(c)...);
  }

  /// A function of a Call as one that the dispatcher calls.
  template <auto function>
  static auto entry(argument::ParameterOf<Arguments>... values) {
    return function(pack(values...));
  }
};

}  // namespace posenc::attention_ops
