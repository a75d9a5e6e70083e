#pragma once

/// One function for each submodule, called by module.cpp, and how functions are defined with a signature that
/// inspect.signature() reads, so that the stubs can be checked.

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

void bind_scaling(pybind11::module_& m);
void bind_hf_rope(pybind11::module_& m);
void bind_positions(pybind11::module_& m);
void bind_nn(pybind11::module_& m);

namespace posenc::python {

namespace py = pybind11;

/// A function's name, and that of its ** parameter where it has one.
struct Name {
  Name(const char* name, const char* rest = nullptr) : name(name), rest(rest) {}
  const char* name;
  const char* rest;
};

inline std::string parameter(const py::kw_only&) { return "*"; }
inline std::string parameter(const py::arg& argument) { return argument.name; }
inline std::string parameter(const py::arg_v& argument) {
  return std::string(argument.name) + "=" + py::repr(argument.value).cast<std::string>();
}

/// "name(parameters)" in the form that Python reads as __text_signature__.
inline std::string signature(const char* name, const std::string& parameters) {
  return std::string(name) + "(" + parameters + ")\n--\n\n";
}

/// A function whose docstring is `signature` alone; `scope` is py::is_method(class) or py::scope(module).
template <typename Scope, typename F, typename... Extra>
py::cpp_function function(const Scope& scope, const char* name, const std::string& signature, F&& f,
                          const Extra&... extra) {
  py::options options;
  options.disable_function_signatures();
  return py::cpp_function(std::forward<F>(f), py::name(name), scope, extra..., signature.c_str());
}

/// Defines a method of a class.
template <typename F, typename... Args>
void define_method(const py::handle& type, Name name, F&& f, const Args&... args) {
  std::string parameters = "self";
  ((parameters += ", " + parameter(args)), ...);
  if (name.rest != nullptr) {
    parameters += std::string(", **") + name.rest;
  }
  type.attr(name.name) =
      function(py::is_method(type), name.name, signature(name.name, parameters), std::forward<F>(f), args...);
}

/// Defines a function of a module.
template <typename F, typename... Args>
void define(py::module_& m, const char* name, F&& f, const Args&... args) {
  std::string parameters;
  ((parameters += (parameters.empty() ? "" : ", ") + parameter(args)), ...);
  m.attr(name) = function(py::scope(m), name, signature(name, parameters), std::forward<F>(f), args...);
}

}  // namespace posenc::python
