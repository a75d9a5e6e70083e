#include "options.h"

#include <torch/nn/module.h>

#include <algorithm>

namespace posenc::python {

void ParameterWriter::add(const char* name, const py::object& value) {
  if (index_ == positional_) {
    text_ += index_ > 0 ? ", *" : "*";
  }
  text_ += index_ > 0 || index_ == positional_ ? ", " : "";
  text_ += name;
  if (value) {
    const auto shown = py::repr(value).cast<std::string>();
    // Python reads signatures as literals: others are left open.
    const bool literal = shown.find("torch.") == std::string::npos && shown.find("device(") == std::string::npos;
    text_ += "=" + (literal ? shown : "...");
  }
  ++index_;
}

ArgumentReader::ArgumentReader(const char* callee, const py::args& args, const py::kwargs& kwargs, size_t required,
                               size_t positional)
    : callee_(callee), args_(args), kwargs_(kwargs), required_(required), positional_(positional) {
  TORCH_CHECK_TYPE(args.size() <= positional, callee, ": expected at most ", positional,
                   " arguments by position, but got ", args.size(), ": give the others by name");
}

py::object ArgumentReader::take(const char* name) {
  const size_t index = index_++;
  const bool named = kwargs_.contains(name);
  if (index < args_.size()) {
    TORCH_CHECK_TYPE(!named, callee_, ": got ", name, " both by position and by name");
    return args_[index];
  }
  TORCH_CHECK_TYPE(named || index >= required_, callee_, ": missing the argument ", name);
  if (!named) {
    return {};
  }
  taken_.insert(name);
  return kwargs_[name];
}

void ArgumentReader::finish() const {
  for (const auto& [name, value] : rest()) {
    TORCH_CHECK_TYPE(false, callee_, ": got an unexpected argument ", name.cast<std::string>());
  }
}

py::dict ArgumentReader::rest() const {
  py::dict rest;
  for (const auto& [name, value] : kwargs_) {
    if (taken_.count(name.cast<std::string>()) == 0) {
      rest[name] = value;
    }
  }
  return rest;
}

void ArgumentReader::raise(const char* name, const py::object& value, const std::string& expected) const {
  TORCH_CHECK_TYPE(false, callee_, ": expected ", name, " to be ", expected, ", but got ",
                   py::repr(value).cast<std::string>());
}

size_t ArgumentReader::index_of(const char* name, const py::object& value,
                                const std::vector<std::string>& names) const {
  std::string expected;
  for (size_t i = 0; i < names.size(); ++i) {
    expected += (i == 0 ? "'" : i + 1 == names.size() ? " or '" : ", '") + names[i] + "'";
  }
  if (!py::isinstance<py::str>(value)) {
    raise(name, value, expected);
  }
  const auto given = value.cast<std::string>();
  const auto found = std::find(names.begin(), names.end(), given);
  TORCH_CHECK_VALUE(found != names.end(), callee_, ": expected ", name, " to be ", expected, ", but got '", given, "'");
  return found - names.begin();
}

void ArgumentReader::convert(const char* name, const py::object& value, Modules& option) const {
  if (!py::isinstance<py::iterable>(value)) {
    raise(name, value, "a list of modules");
  }
  try {
    option.clear();
    for (const py::handle module : value) {
      option.push_back(py::getattr(module, "cpp_module", module).cast<Modules::value_type>());
    }
  } catch (const py::cast_error&) {
    raise(name, value, "a list of C++ modules of posenc");
  }
}

}  // namespace posenc::python
