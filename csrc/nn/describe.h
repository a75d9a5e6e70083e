#pragma once

/// What follows from the description of a module's options (posenc/nn/options.h).

#include <posenc/nn/options.h>
#include <posenc/scaling.h>

#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <ostream>
#include <type_traits>
#include <vector>

namespace posenc::nn {

/// Writes options as "name=value, ..". An option that is absent is left out.
class OptionPrinter {
 public:
  explicit OptionPrinter(std::ostream& stream) : stream_(stream) {}

  template <typename T>
  void operator()(const char* name, const T& value, OptionRule = {}) {
    if constexpr (std::is_same_v<T, bool>) {
      begin(name) << (value ? "true" : "false");
    } else if constexpr (std::is_enum_v<T>) {
      begin(name) << value_names(value)[static_cast<size_t>(value)];
    } else {
      begin(name) << value;
    }
  }
  template <typename T>
  void operator()(const char* name, const std::optional<T>& value, OptionRule rule = {}) {
    if (value) {
      (*this)(name, *value, rule);
    }
  }
  template <typename T>
  void operator()(const char* name, const std::vector<T>& values, OptionRule = {}) {
    begin(name) << c10::ArrayRef<T>(values);
  }
  void operator()(const char* name, const scaling::Scaling& scaling, OptionRule = {}) {
    if (scaling != scaling::Scaling()) {
      begin(name) << scaling;
    }
  }
  /// Modules are printed as children.
  void operator()(const char*, const std::vector<std::shared_ptr<torch::nn::Module>>&, OptionRule = {}) {}

 private:
  std::ostream& begin(const char* name) {
    stream_ << (first_ ? "" : ", ") << name << "=";
    first_ = false;
    return stream_;
  }

  std::ostream& stream_;
  bool first_ = true;
};

/// What pretty_print() of a module writes.
template <typename Options>
void print_options(std::ostream& stream, const char* module, const Options& options) {
  stream << "posenc::nn::" << module << "(";
  Options::describe(options, OptionPrinter(stream));
  stream << ")";
}

/// Raises unless the option `name` obeys `rule`.
void check_option(const char* module, const char* name, int64_t value, OptionRule rule);
void check_option(const char* module, const char* name, double value, OptionRule rule);
void check_option(const char* module, const char* name, const std::vector<double>& values, OptionRule rule);

/// Raises unless each option obeys its rule.
template <typename Options>
void check_options(const char* module, const Options& options) {
  const auto check = [module](const char* name, const auto& value, OptionRule rule = {}) {
    if constexpr (requires { check_option(module, name, value.value(), rule); }) {
      if (value) {
        check_option(module, name, *value, rule);
      }
    } else if constexpr (requires { check_option(module, name, value, rule); }) {
      check_option(module, name, value, rule);
    }
  };
  Options::describe(options, check);
}

}  // namespace posenc::nn
