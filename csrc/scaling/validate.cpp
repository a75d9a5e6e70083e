#include <posenc/scaling.h>

#include <c10/util/Exception.h>

#include <cmath>

namespace posenc::scaling {
namespace {

void check_positive(const char* type, const char* name, double value) {
  TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), type, ": expected ", name,
                    " to be positive and finite, but got ", value);
}

void check_positive(const char* type, const char* name, const std::optional<double>& value) {
  if (value) check_positive(type, name, *value);
}

void check_not_negative(const char* type, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && std::isfinite(value), type, ": expected ", name,
                    " to be finite and at least 0, but got ", value);
}

void check_length(const char* type, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, type, ": expected ", name, " to be at least 1 token, but got ", value);
}

void check_fraction(const char* type, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value <= 1, type, ": expected fraction to be between 0 and 1, but got ", value);
}

void check_ordered(const char* type, const char* low_name, double low, const char* high_name, double high) {
  TORCH_CHECK_VALUE(low <= high, type, ": expected ", low_name, " to be at most ", high_name, ", but got ", low_name,
                    " ", low, " and ", high_name, " ", high);
}

struct Validator {
  void operator()(const std::monostate&) const {}

  void operator()(const Linear& s) const { check_positive("Linear", "factor", s.factor()); }

  void operator()(const NTK& s) const { check_positive("NTK", "factor", s.factor()); }

  void operator()(const DynamicNTK& s) const {
    check_positive("DynamicNTK", "factor", s.factor());
    check_length("DynamicNTK", "original_max_positions", s.original_max_positions());
  }

  void operator()(const NTKByParts& s) const {
    check_positive("NTKByParts", "factor", s.factor());
    check_length("NTKByParts", "original_max_positions", s.original_max_positions());
    check_positive("NTKByParts", "beta_fast", s.beta_fast());
    check_positive("NTKByParts", "beta_slow", s.beta_slow());
    check_ordered("NTKByParts", "beta_slow", s.beta_slow(), "beta_fast", s.beta_fast());
  }

  void operator()(const Yarn& s) const {
    check_positive("Yarn", "factor", s.factor());
    check_length("Yarn", "original_max_positions", s.original_max_positions());
    check_positive("Yarn", "beta_fast", s.beta_fast());
    check_positive("Yarn", "beta_slow", s.beta_slow());
    check_ordered("Yarn", "beta_slow", s.beta_slow(), "beta_fast", s.beta_fast());
    check_positive("Yarn", "attention_factor", s.attention_factor());
    if (s.mscale()) check_not_negative("Yarn", "mscale", *s.mscale());
    if (s.mscale_all_dim()) check_not_negative("Yarn", "mscale_all_dim", *s.mscale_all_dim());
  }

  void operator()(const LongRoPE& s) const {
    TORCH_CHECK_VALUE(s.short_factor().size() == s.long_factor().size(),
                      "LongRoPE: expected short_factor and long_factor to have one number per pair each, but got ",
                      s.short_factor().size(), " and ", s.long_factor().size());
    for (const double value : s.short_factor()) check_positive("LongRoPE", "every short_factor", value);
    for (const double value : s.long_factor()) check_positive("LongRoPE", "every long_factor", value);
    check_length("LongRoPE", "original_max_positions", s.original_max_positions());
    check_positive("LongRoPE", "factor", s.factor());
    check_positive("LongRoPE", "attention_factor", s.attention_factor());
    TORCH_CHECK_VALUE(s.attention_factor() || s.factor().value_or(1.0) <= 1.0 || s.original_max_positions() > 1,
                      "LongRoPE: expected original_max_positions above 1, by whose logarithm the magnitude divides, or "
                      "attention_factor, but got original_max_positions 1 and factor ",
                      s.factor().value_or(1.0));
  }

  void operator()(const Llama3& s) const {
    check_positive("Llama3", "factor", s.factor());
    check_length("Llama3", "original_max_positions", s.original_max_positions());
    check_positive("Llama3", "low_freq_factor", s.low_freq_factor());
    check_positive("Llama3", "high_freq_factor", s.high_freq_factor());
    check_ordered("Llama3", "low_freq_factor", s.low_freq_factor(), "high_freq_factor", s.high_freq_factor());
  }

  void operator()(const Proportional& s) const {
    check_fraction("Proportional", s.fraction());
    check_positive("Proportional", "factor", s.factor());
  }

  void operator()(const PRoPE& s) const { check_fraction("PRoPE", s.fraction()); }

  void operator()(const TruncatedBasis& s) const { check_length("TruncatedBasis", "length", s.length()); }

  void operator()(const PowerBasis& s) const { check_not_negative("PowerBasis", "power", s.power()); }
};

}  // namespace

void validate(const Scaling& scaling) { std::visit(Validator(), scaling); }

}  // namespace posenc::scaling
