#include <posenc/nn/alibi.h>

#include "common/checks.h"
#include "common/plain_tensors.h"
#include "nn/additive_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"

#include <ATen/core/grad_mode.h>

namespace posenc::nn {

ALiBiImpl::ALiBiImpl(ALiBiOptions options) : options(std::move(options)) { reset(); }

void ALiBiImpl::reset() {
  check_options("ALiBi", options);
  check_entries("ALiBi", "num_heads", options.num_heads());
  const auto numbers = options.slopes().value_or(bias_ops::alibi_slope_list(options.num_heads()));
  TORCH_CHECK_VALUE(static_cast<int64_t>(numbers.size()) == options.num_heads(),
                    "ALiBi: expected one slope for each of the ", options.num_heads(), " heads, but got ",
                    numbers.size());
  initial_slopes_ = plain_tensor(numbers);
  if (options.learnable()) {
    slopes = register_parameter("slopes", parameter_from(initial_slopes_));
  } else {
    slopes = initial_slopes_;
  }
}

void ALiBiImpl::reset_parameters() {
  if (options.learnable()) {
    at::NoGradGuard no_grad;
    slopes.copy_(initial_slopes_);
  }
}

void ALiBiImpl::pretty_print(std::ostream& stream) const { print_options(stream, "ALiBi", options); }

ScoreTerms ALiBiImpl::terms(const ScoreCall& call) {
  const at::Tensor& used = options.learnable() ? slopes : slopes.to(call.query.device());
  return {.slopes = bias_ops::alibi_terms(used, span_of(call))};
}

}  // namespace posenc::nn
