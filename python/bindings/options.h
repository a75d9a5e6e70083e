#pragma once

/// From a description of options (posenc/nn/options.h, scaling/fields.h) to a Python signature and its arguments.

#include "bindings.h"

#include <posenc/nn/options.h>
#include <posenc/scaling.h>

#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <vector>

namespace torch::nn {
class Module;
}

namespace posenc::python {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

/// As a number of parameters that go by position: all of them.
inline constexpr size_t kAllByPosition = std::numeric_limits<size_t>::max();

/// The options that a constructor takes, the first `required` ones, at any value, and the others at their defaults.
template <typename Options>
struct Blank {
  static constexpr size_t required = std::is_constructible_v<Options, int64_t>                         ? 1
                                     : std::is_constructible_v<Options, int64_t, int64_t>              ? 2
                                     : std::is_constructible_v<Options, int64_t, std::vector<int64_t>> ? 2
                                     : std::is_constructible_v<Options, int64_t, int64_t, int64_t>     ? 3
                                                                                                       : 4;
  static Options make() {
    if constexpr (std::is_constructible_v<Options, int64_t>) {
      return Options(int64_t{});
    } else if constexpr (std::is_constructible_v<Options, int64_t, int64_t>) {
      return Options(0, 0);
    } else if constexpr (std::is_constructible_v<Options, int64_t, std::vector<int64_t>>) {
      return Options(0, {});
    } else if constexpr (std::is_constructible_v<Options, int64_t, int64_t, int64_t>) {
      return Options(0, 0, 0);
    } else {
      return Options(0, 0, 0, 0);
    }
  }
};

/// The Python value of an option.
template <typename T>
py::object to_python(const T& value) {
  if constexpr (std::is_enum_v<T> && !std::is_same_v<T, at::ScalarType>) {
    return py::str(value_names(value)[static_cast<size_t>(value)]);
  } else if constexpr (std::is_same_v<T, Modules>) {
    return py::tuple();
  } else {
    return py::cast(value);
  }
}

/// Writes the parameters of a constructor: required options, others that go by position, then the rest by name.
class ParameterWriter {
 public:
  ParameterWriter(size_t required, size_t positional) : required_(required), positional_(positional) {}

  template <typename T>
  void operator()(const char* name, const T& option, nn::OptionRule = {}) {
    add(name, index_ < required_ ? py::object() : to_python(option));
  }
  /// The parameters so far, and a ** parameter `rest` where given.
  std::string text(const char* rest = nullptr) const { return rest ? text_ + ", **" + rest : text_; }

 private:
  void add(const char* name, const py::object& value);

  size_t required_, positional_, index_ = 0;
  std::string text_;
};

/// Reads options from the arguments of a call of `callee`. Raises TypeError for arguments that are missing, unknown or
/// of another type.
class __attribute__((visibility("hidden"))) ArgumentReader {
 public:
  ArgumentReader(const char* callee, const py::args& args, const py::kwargs& kwargs, size_t required,
                 size_t positional);

  template <typename T>
  void operator()(const char* name, T& option, nn::OptionRule = {}) {
    const py::object value = take(name);
    if (!value) {
      return;
    }
    if constexpr (std::is_enum_v<T> && !std::is_same_v<T, at::ScalarType>) {
      const auto names = value_names(option);
      option = static_cast<T>(index_of(name, value, {names.begin(), names.end()}));
    } else {
      convert(name, value, option);
    }
  }
  /// Raises where an argument was none of the options.
  void finish() const;
  /// The arguments by name that were none of the options.
  py::dict rest() const;

 private:
  /// The argument, or nothing where it was not given.
  py::object take(const char* name);
  size_t index_of(const char* name, const py::object& value, const std::vector<std::string>& names) const;
  void convert(const char* name, const py::object& value, Modules& option) const;
  template <typename T>
  void convert(const char* name, const py::object& value, T& option) const {
    // A bool is an int to Python, and a mistake in the place of a number.
    if (!std::is_same_v<T, bool> && !std::is_same_v<T, std::optional<bool>> && PyBool_Check(value.ptr())) {
      raise(name, value, expected<T>());
    }
    try {
      option = value.cast<T>();
    } catch (const py::cast_error&) {
      raise(name, value, expected<T>());
    }
  }
  /// What a value of type T must be, for messages.
  template <typename T>
  static std::string expected() {
    if constexpr (std::is_same_v<T, std::string>) {
      return "a string";
    } else if constexpr (requires { typename T::value_type; }) {
      using Value = typename T::value_type;
      return std::is_same_v<T, std::optional<Value>> ? expected<Value>() + " or None" : "a list of numbers";
    } else if constexpr (std::is_same_v<T, bool>) {
      return "a bool";
    } else if constexpr (std::is_arithmetic_v<T>) {
      return std::is_integral_v<T> ? "an int" : "a float";
    } else if constexpr (std::is_same_v<T, scaling::Scaling>) {
      return "a value of posenc.scaling or None";
    } else {
      return std::is_same_v<T, at::Tensor> ? "a tensor" : std::is_same_v<T, at::Device> ? "a device" : "a dtype";
    }
  }
  [[noreturn]] void raise(const char* name, const py::object& value, const std::string& expected) const;

  const char* callee_;
  py::args args_;
  py::kwargs kwargs_;
  size_t required_, positional_, index_ = 0;
  std::set<std::string> taken_;
};

/// The options of a module from the arguments of a call.
template <typename Options>
Options read_options(const char* module, const py::args& args, const py::kwargs& kwargs, size_t positional) {
  auto options = Blank<Options>::make();
  ArgumentReader reader(module, args, kwargs, Blank<Options>::required, positional);
  Options::describe(options, reader);
  reader.finish();
  return options;
}

/// The parameters of a module's constructor.
template <typename Options>
std::string parameters_of(size_t positional) {
  const auto options = Blank<Options>::make();
  ParameterWriter writer(Blank<Options>::required, positional);
  Options::describe(options, writer);
  return writer.text();
}

}  // namespace posenc::python
