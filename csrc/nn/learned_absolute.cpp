#include <posenc/nn/learned_absolute.h>

#include "common/checks.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"

#include <torch/nn/init.h>

namespace posenc::nn {

void check(const LearnedAbsoluteOptions& options) {
  check_options("LearnedAbsolute", options);
  check_numbers("LearnedAbsolute", "max_positions * dim", {options.max_positions(), options.dim()});
}

LearnedAbsoluteImpl::LearnedAbsoluteImpl(LearnedAbsoluteOptions options) : options(std::move(options)) { reset(); }

void LearnedAbsoluteImpl::reset() {
  check(options);
  weight = register_parameter("weight", unset_parameter({options.max_positions(), options.dim()}));
  reset_parameters();
}

void LearnedAbsoluteImpl::reset_parameters() { torch::nn::init::normal_(weight, 0.0, kInitialStd); }

void LearnedAbsoluteImpl::pretty_print(std::ostream& stream) const {
  print_options(stream, "LearnedAbsolute", options);
}

at::Tensor LearnedAbsoluteImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_learned(x, place_of(call), weight);
}

}  // namespace posenc::nn
