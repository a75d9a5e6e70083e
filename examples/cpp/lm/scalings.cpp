#include "scalings.h"

#include <algorithm>
#include <variant>

namespace lm {

const std::vector<NamedScaling>& scalings() {
  using namespace posenc::scaling;
  const auto factor = [](int64_t trained, int64_t length) {
    return static_cast<double>(length) / static_cast<double>(trained);
  };
  static const std::vector<NamedScaling> all = {
      {"none", [](int64_t, int64_t) { return std::monostate(); }},
      {"linear", [=](int64_t trained, int64_t length) { return Linear(factor(trained, length)); }},
      {"ntk", [=](int64_t trained, int64_t length) { return NTK(factor(trained, length)); }},
      {"dynamic-ntk", [](int64_t trained, int64_t) { return DynamicNTK(2.0, trained); }},
      {"ntk-by-parts", [=](int64_t trained, int64_t length) { return NTKByParts(factor(trained, length), trained); }},
      {"yarn", [=](int64_t trained, int64_t length) { return Yarn(factor(trained, length), trained); }},
      {"llama3", [=](int64_t trained, int64_t length) { return Llama3(factor(trained, length), trained); }},
  };
  return all;
}

std::vector<std::string> scaling_names() {
  std::vector<std::string> names;
  for (const auto& scaling : scalings()) {
    names.push_back(scaling.name);
  }
  return names;
}

const NamedScaling& find_scaling(const std::string& name) {
  return *std::find_if(scalings().begin(), scalings().end(),
                       [&](const NamedScaling& scaling) { return scaling.name == name; });
}

}  // namespace lm
