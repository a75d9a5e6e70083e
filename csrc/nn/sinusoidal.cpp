#include "common/checks.h"
#include "common/plain_tensors.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"

#include <cmath>

namespace posenc::nn {

at::Tensor sinusoid_frequencies(int64_t dim, double base, SinusoidalLayout layout) {
  const bool tensor2tensor = layout == SinusoidalLayout::kTensor2Tensor;
  const int64_t pairs = tensor2tensor ? dim / 2 : (dim + 1) / 2;
  const double steps = tensor2tensor ? static_cast<double>(std::max<int64_t>(pairs - 1, 1)) : dim / 2.0;
  std::vector<double> theta;
  for (int64_t k = 0; k < pairs; ++k) {
    theta.push_back(std::pow(base, -static_cast<double>(k) / steps));
  }
  return plain_tensor(theta);
}

SinusoidalImpl::SinusoidalImpl(SinusoidalOptions options) : options(std::move(options)) { reset(); }

void SinusoidalImpl::reset() {
  check_options("Sinusoidal", options);
  check_entries("Sinusoidal", "dim", options.dim());
  TORCH_CHECK_VALUE(options.layout() != SinusoidalLayout::kTensor2Tensor || options.dim() >= 2,
                    "Sinusoidal: expected dim to be at least 2 in the layout of tensor2tensor, but got ",
                    options.dim());
  inv_freq_ = sinusoid_frequencies(options.dim(), options.base(), options.layout());
}

void SinusoidalImpl::pretty_print(std::ostream& stream) const { print_options(stream, "Sinusoidal", options); }

at::Tensor SinusoidalImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_sinusoidal(x, place_of(call), inv_freq_.to(x.device()), options.dim(),
                                      options.layout() == SinusoidalLayout::kInterleaved);
}

}  // namespace posenc::nn
