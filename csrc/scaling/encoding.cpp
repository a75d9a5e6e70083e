#include <posenc/scaling.h>

#include "fields.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

namespace posenc::scaling {
namespace {

/// The variant's index, then the fields; an absent optional is NaN, a list is its length and its numbers.
struct Encoder {
  std::vector<double>& out;

  void operator()(const char*, double value) { out.push_back(value); }
  void operator()(const char*, int64_t value) { out.push_back(static_cast<double>(value)); }
  void operator()(const char*, bool value) { out.push_back(value ? 1.0 : 0.0); }
  void operator()(const char*, Ramp value) { out.push_back(static_cast<double>(value)); }
  void operator()(const char*, const std::optional<double>& value) {
    out.push_back(value.value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  void operator()(const char*, const std::vector<double>& values) {
    out.push_back(static_cast<double>(values.size()));
    out.insert(out.end(), values.begin(), values.end());
  }
};

struct Decoder {
  c10::ArrayRef<double> numbers;
  size_t next = 1;

  double take() {
    TORCH_CHECK_VALUE(next < numbers.size(), "scaling: the encoded scaling ends after ", numbers.size(), " numbers");
    return numbers[next++];
  }
  int64_t take_integer(double low, double high) {
    const double value = take();
    TORCH_CHECK_VALUE(value >= low && value <= high && value == std::floor(value),
                      "scaling: expected a whole number from ", low, " to ", high, " in the encoded scaling, but got ",
                      value);
    return static_cast<int64_t>(value);
  }

  void operator()(const char*, double& field) { field = take(); }
  void operator()(const char*, int64_t& field) {
    constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it float64 skips integers
    field = take_integer(-kExact, kExact);
  }
  void operator()(const char*, bool& field) { field = take_integer(0, 1) == 1; }
  void operator()(const char*, Ramp& field) { field = static_cast<Ramp>(take_integer(0, 1)); }
  void operator()(const char*, std::optional<double>& field) {
    const double value = take();
    field = std::isnan(value) ? std::nullopt : std::make_optional(value);
  }
  void operator()(const char*, std::vector<double>& field) {
    field.resize(static_cast<size_t>(take_integer(0, static_cast<double>(numbers.size()))));
    for (double& value : field) value = take();
  }
};

/// A value of the type at `index` of the variant, its fields to be overwritten.
template <size_t I = 0>
Scaling blank(size_t index) {
  if constexpr (I < std::variant_size_v<Scaling>) {
    if (index != I) return blank<I + 1>(index);
    using S = std::variant_alternative_t<I, Scaling>;
    if constexpr (std::is_constructible_v<S, double, int64_t>) {
      return S(1.0, int64_t{1});
    } else if constexpr (std::is_same_v<S, LongRoPE>) {
      return S({}, {}, 1);
    } else if constexpr (std::is_same_v<S, std::monostate>) {
      return S();
    } else {
      return S(1);
    }
  } else {
    TORCH_CHECK_VALUE(false, "scaling: the encoded scaling names type ", index, ", but there are ", I, " types");
  }
}

}  // namespace

std::vector<double> encode(const Scaling& scaling) {
  std::vector<double> numbers{static_cast<double>(scaling.index())};
  std::visit([&](auto value) { visit_fields(value, Encoder{numbers}); }, scaling);
  return numbers;
}

Scaling decode(c10::ArrayRef<double> numbers) {
  if (numbers.empty()) return {};
  TORCH_CHECK_VALUE(numbers[0] >= 0 && numbers[0] == std::floor(numbers[0]) && numbers[0] < 1000,
                    "scaling: expected the encoded scaling to start with the number of a type, but got ", numbers[0]);
  Scaling scaling = blank(static_cast<size_t>(numbers[0]));
  Decoder decoder{numbers};
  std::visit([&](auto& value) { visit_fields(value, decoder); }, scaling);
  TORCH_CHECK_VALUE(decoder.next == numbers.size(), "scaling: the encoded scaling has ", numbers.size() - decoder.next,
                    " numbers too many");
  validate(scaling);
  return scaling;
}

}  // namespace posenc::scaling
