#pragma once

/// How modules describe their options. From a description follow what pretty_print shows, the rules that hold for one
/// option alone, and the constructor in Python with its defaults.
///
///     struct ToeplitzBiasOptions {
///       ToeplitzBiasOptions(int64_t num_heads) : num_heads_(num_heads) {}
///
///       template <typename Self, typename Visit>
///       static void describe(Self& self, Visit&& visit) {
///         visit("num_heads", self.num_heads(), at_least(1));
///         visit("kind", self.kind());
///       }
///
///       TORCH_ARG(int64_t, num_heads);
///       TORCH_ARG(ToeplitzKind, kind) = ToeplitzKind::kPlain;
///     };
///
/// The options that the constructor takes come first. An enum has a function value_names(Enum), found by its argument,
/// that returns the names of its values in order.

#include <array>
#include <cstdint>

namespace posenc::nn {

/// What must hold for an option that is given; for a list, for each of its numbers.
struct OptionRule {
  enum Kind { kAny, kAtLeast, kFinite, kPositive, kProbability };
  Kind kind = kAny;
  int64_t bound = 0;
};

/// At least `bound`; a floating option also finite.
constexpr OptionRule at_least(int64_t bound) { return {OptionRule::kAtLeast, bound}; }
constexpr OptionRule finite() { return {OptionRule::kFinite}; }
/// Positive and finite.
constexpr OptionRule positive() { return {OptionRule::kPositive}; }
/// From 0 to below 1.
constexpr OptionRule probability() { return {OptionRule::kProbability}; }

}  // namespace posenc::nn
