#include "common/checks.h"
#include "common/plain_tensors.h"
#include "nn/absolute_call.h"

#include <cmath>

namespace posenc::nn {
namespace {

const char* name_of(SinusoidalLayout layout) {
  switch (layout) {
    case SinusoidalLayout::kConcatenated:
      return "concatenated";
    case SinusoidalLayout::kTensor2Tensor:
      return "tensor2tensor";
    default:
      return "interleaved";
  }
}

}  // namespace

at::Tensor sinusoid_frequencies(const char* module, int64_t dim, double base, SinusoidalLayout layout) {
  const bool tensor2tensor = layout == SinusoidalLayout::kTensor2Tensor;
  TORCH_CHECK_VALUE(dim >= (tensor2tensor ? 2 : 1), module, ": expected dim to be at least ", tensor2tensor ? 2 : 1,
                    tensor2tensor ? " in the layout of tensor2tensor" : "", ", but got ", dim);
  check_entries(module, "dim", dim);
  TORCH_CHECK_VALUE(base > 0 && std::isfinite(base), module, ": expected base to be positive and finite, but got ",
                    base);
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
  inv_freq_ = sinusoid_frequencies("Sinusoidal", options.dim(), options.base(), options.layout());
}

void SinusoidalImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::Sinusoidal(dim=" << options.dim() << ", base=" << options.base()
         << ", layout=" << name_of(options.layout()) << ")";
}

at::Tensor SinusoidalImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_sinusoidal(x, place_of(call), inv_freq_.to(x.device()), options.dim(),
                                      options.layout() == SinusoidalLayout::kInterleaved);
}

}  // namespace posenc::nn
