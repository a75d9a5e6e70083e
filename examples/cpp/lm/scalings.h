#pragma once

#include <posenc/scaling.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lm {

/// A context extension that a rotary model is evaluated with.
struct NamedScaling {
  std::string name;
  /// For a model trained at `trained` bytes and read at `length` bytes.
  std::function<posenc::scaling::Scaling(int64_t trained, int64_t length)> make;
};

/// All but dynamic-ntk are told the length; that one is a single setting which follows the length of each input.
const std::vector<NamedScaling>& scalings();
std::vector<std::string> scaling_names();
/// `name` is one of scaling_names().
const NamedScaling& find_scaling(const std::string& name);

}  // namespace lm
