#include <posenc/nn/sandwich.h>

#include "common/checks.h"
#include "common/plain_tensors.h"
#include "nn/additive_call.h"
#include "nn/describe.h"

#include <cmath>

namespace posenc::nn {

SandwichImpl::SandwichImpl(SandwichOptions options) : options(std::move(options)) { reset(); }

void SandwichImpl::reset() {
  check_options("Sandwich", options);
  check_entries("Sandwich", "num_heads", options.num_heads());
  const int64_t dim = options.dim();
  TORCH_CHECK_VALUE(dim >= 2 && dim % 2 == 0, "Sandwich: expected dim to be even and at least 2, but got ", dim);
  check_entries("Sandwich", "dim", dim);
  std::vector<double> theta;
  for (int64_t k = 1; k <= dim / 2; ++k) {
    theta.push_back(std::pow(10000.0, -2.0 * static_cast<double>(k) / static_cast<double>(dim)));
  }
  inv_freq_ = plain_tensor(theta);
}

void SandwichImpl::pretty_print(std::ostream& stream) const { print_options(stream, "Sandwich", options); }

ScoreTerms SandwichImpl::terms(const ScoreCall& call) {
  return {.distance_bias = bias_ops::sandwich_table(inv_freq_, options.num_heads(), span_of(call))};
}

}  // namespace posenc::nn
