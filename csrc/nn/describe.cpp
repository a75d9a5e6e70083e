#include "nn/describe.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace posenc::nn {

void check_option(const char* module, const char* name, int64_t value, OptionRule rule) {
  TORCH_CHECK_VALUE(rule.kind != OptionRule::kAtLeast || value >= rule.bound, module, ": expected ", name,
                    " to be at least ", rule.bound, ", but got ", value);
}

void check_option(const char* module, const char* name, double value, OptionRule rule) {
  switch (rule.kind) {
    case OptionRule::kAny:
      return;
    case OptionRule::kAtLeast:
      TORCH_CHECK_VALUE(std::isfinite(value) && value >= static_cast<double>(rule.bound), module, ": expected ", name,
                        " to be at least ", rule.bound, " and finite, but got ", value);
      return;
    case OptionRule::kFinite:
      TORCH_CHECK_VALUE(std::isfinite(value), module, ": expected a finite ", name, ", but got ", value);
      return;
    case OptionRule::kPositive:
      TORCH_CHECK_VALUE(value > 0 && std::isfinite(value), module, ": expected ", name,
                        " to be positive and finite, but got ", value);
      return;
    case OptionRule::kProbability:
      TORCH_CHECK_VALUE(value >= 0 && value < 1, module, ": expected ", name, " from 0 to below 1, but got ", value);
      return;
  }
}

void check_option(const char* module, const char* name, const std::vector<double>& values, OptionRule rule) {
  for (const double value : values) {
    TORCH_CHECK_VALUE(rule.kind != OptionRule::kFinite || std::isfinite(value), module, ": expected finite ", name,
                      ", but got ", value);
  }
}

}  // namespace posenc::nn
