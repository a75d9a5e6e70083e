#include <posenc/scaling.h>

#include "common/checks.h"
#include "common/plain_tensors.h"
#include "formulas.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace posenc::scaling {
namespace {

/// YaRN's g(s, m) = 0.1 m ln s + 1.
double yarn_magnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

void check_arguments(int64_t dim, double base, const Scaling& scaling) {
  validate(scaling);
  TORCH_CHECK_VALUE(dim >= 0 && dim % 2 == 0, "frequencies: expected dim to be even and at least 0, but got ", dim);
  check_entries("frequencies", "dim", dim);
  TORCH_CHECK_VALUE(base > 0 && std::isfinite(base), "frequencies: expected base to be positive and finite, but got ",
                    base);
  if (std::holds_alternative<NTK>(scaling) || std::holds_alternative<DynamicNTK>(scaling)) {
    TORCH_CHECK_VALUE(dim != 2, "frequencies: expected dim to be above 2 for ", scaling,
                      ", whose exponent is dim / (dim - 2), but got 2");
  }
  if (const auto* yarn = std::get_if<Yarn>(&scaling)) {
    TORCH_CHECK_VALUE(yarn->ramp() == Ramp::kTurns || base > 1.0, "frequencies: expected base to be above 1 for ",
                      scaling, ", whose ramp divides by its logarithm, but got ", base);
  }
  if (const auto* long_rope = std::get_if<LongRoPE>(&scaling)) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(long_rope->short_factor().size()) == dim / 2,
                      "frequencies: expected LongRoPE's short_factor and long_factor to have dim / 2 = ", dim / 2,
                      " numbers for dim ", dim, ", but got ", long_rope->short_factor().size());
  }
}

Frequencies frequencies(int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len, bool exact) {
  check_arguments(dim, base, scaling);
  TORCH_CHECK_VALUE(seq_len.value_or(0) >= 0, "frequencies: expected seq_len to be at least 0, but got ", *seq_len);
  const double magnitude = attention_scaling(scaling);
  if (exact) {
    return {plain_tensor(dim > 0 ? exact_frequencies(dim, base, scaling, seq_len) : std::vector<double>()), magnitude};
  }
  const PlainTensorsGuard guard;
  return {dim > 0 ? float32_frequencies(dim, base, scaling, seq_len) : plain_tensor({}).to(at::kFloat), magnitude};
}

double attention_scaling(const Scaling& scaling) {
  if (const auto* yarn = std::get_if<Yarn>(&scaling)) {
    if (yarn->attention_factor()) return *yarn->attention_factor();
    const double mscale = yarn->mscale().value_or(0.0);
    const double mscale_all_dim = yarn->mscale_all_dim().value_or(0.0);
    if (mscale == 0.0 || mscale_all_dim == 0.0) return yarn_magnitude(yarn->factor(), 1.0);
    return yarn_magnitude(yarn->factor(), mscale) / yarn_magnitude(yarn->factor(), mscale_all_dim);
  }
  if (const auto* long_rope = std::get_if<LongRoPE>(&scaling)) {
    if (long_rope->attention_factor()) return *long_rope->attention_factor();
    const double factor = long_rope->factor().value_or(1.0);
    if (factor <= 1.0) return 1.0;
    return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(long_rope->original_max_positions())));
  }
  return 1.0;
}

double Yarn::softmax_scale() const {
  const double magnitude = yarn_magnitude(factor_, mscale_all_dim_.value_or(0.0));
  return magnitude * magnitude;
}

bool depends_on_length(const Scaling& scaling) {
  return std::holds_alternative<DynamicNTK>(scaling) || std::holds_alternative<LongRoPE>(scaling);
}

}  // namespace posenc::scaling
