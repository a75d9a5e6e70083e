#include <posenc/scaling.h>

#include "fields.h"

#include <charconv>
#include <string_view>

namespace posenc::scaling {
namespace {

/// Writes field values; numbers in the shortest form that reads back as the same value.
struct ValueWriter {
  bool python_literals;

  std::string operator()(double value) const {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
    return std::string(buffer, end);
  }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(bool value) const {
    if (python_literals) return value ? "True" : "False";
    return value ? "true" : "false";
  }
  std::string operator()(const std::optional<double>& value) const {
    if (value) return (*this)(*value);
    return python_literals ? "None" : "nullopt";
  }
  std::string operator()(Ramp value) const {
    const std::string text = value_names(value)[static_cast<size_t>(value)];
    return python_literals ? "'" + text + "'" : text;
  }
  std::string operator()(const std::vector<double>& values) const {
    constexpr size_t kShown = 8;  // a real model has 32 to 64 of them, which would drown the rest
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text += ", ";
      if (i + 1 == kShown && values.size() > kShown) {
        text += ".. " + std::to_string(values.size()) + " values";
        break;
      }
      text += (*this)(values[i]);
    }
    return text + "]";
  }
};

}  // namespace

std::string to_string(const Scaling& scaling, bool python_literals) {
  const ValueWriter write{python_literals};
  return std::visit(
      [&](auto value) -> std::string {
        using S = decltype(value);
        if constexpr (std::is_same_v<S, std::monostate>) {
          return "None";
        } else {
          std::vector<std::string> defaults;
          auto bare = with_default_options(value);
          visit_fields(bare, [&](std::string_view, const auto& field) { defaults.push_back(write(field)); });
          std::string text;
          size_t i = 0;
          visit_fields(value, [&](std::string_view name, const auto& field) {
            const auto written = write(field);
            if (i < num_required<S> || written != defaults[i]) {
              text += (text.empty() ? "" : ", ") + std::string(name) + "=" + written;
            }
            ++i;
          });
          return std::string(name_of(scaling)) + "(" + text + ")";
        }
      },
      scaling);
}

std::ostream& operator<<(std::ostream& stream, const Scaling& scaling) { return stream << to_string(scaling); }

}  // namespace posenc::scaling
