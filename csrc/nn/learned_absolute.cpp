#include <posenc/nn/learned_absolute.h>

#include "common/checks.h"
#include "nn/absolute_call.h"

#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <torch/nn/init.h>

namespace posenc::nn {

void check(const LearnedAbsoluteOptions& options) {
  TORCH_CHECK_VALUE(options.max_positions() >= 1, "LearnedAbsolute: expected max_positions to be at least 1, but got ",
                    options.max_positions());
  TORCH_CHECK_VALUE(options.dim() >= 1, "LearnedAbsolute: expected dim to be at least 1, but got ", options.dim());
  check_numbers("LearnedAbsolute", "max_positions * dim", {options.max_positions(), options.dim()});
}

LearnedAbsoluteImpl::LearnedAbsoluteImpl(LearnedAbsoluteOptions options) : options(std::move(options)) { reset(); }

void LearnedAbsoluteImpl::reset() {
  check(options);
  weight = register_parameter("weight", at::empty({options.max_positions(), options.dim()},
                                                  at::TensorOptions(c10::get_default_dtype_as_scalartype())));
  reset_parameters();
}

void LearnedAbsoluteImpl::reset_parameters() { torch::nn::init::normal_(weight, 0.0, kInitialStd); }

void LearnedAbsoluteImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::LearnedAbsolute(max_positions=" << options.max_positions() << ", dim=" << options.dim() << ")";
}

at::Tensor LearnedAbsoluteImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_learned(x, place_of(call), weight);
}

}  // namespace posenc::nn
