#include "common/checks.h"
#include "common/plain_tensors.h"
#include "encodings/absolute/checks.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"

#include <cmath>

namespace posenc::nn {

at::Tensor sinusoid_frequencies(int64_t dim, double base, SinusoidalLayout layout) {
  const bool tensor2tensor = layout == SinusoidalLayout::kTensor2Tensor;
  const bool whole_pairs = tensor2tensor || layout == SinusoidalLayout::kCosinesFirst;
  const int64_t pairs = whole_pairs ? dim / 2 : (dim + 1) / 2;
  const double steps = tensor2tensor ? static_cast<double>(std::max<int64_t>(pairs - 1, 1))
                       : whole_pairs ? static_cast<double>(pairs)
                                     : static_cast<double>(dim) / 2.0;
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
  check_entries("Sinusoidal", "num_axes", options.num_axes());
  absolute_ops::check_axes("Sinusoidal", options.dim(), options.num_axes());
  const auto layout = options.layout();
  const bool whole_pairs = layout == SinusoidalLayout::kTensor2Tensor || layout == SinusoidalLayout::kCosinesFirst;
  TORCH_CHECK_VALUE(!whole_pairs || options.dim() >= 2, "Sinusoidal: expected dim to be at least 2 in the layout ",
                    value_names(layout)[static_cast<size_t>(layout)], ", but got ", options.dim());
  inv_freq_ = sinusoid_frequencies(options.dim() / options.num_axes(), options.base(), layout);
}

void SinusoidalImpl::pretty_print(std::ostream& stream) const { print_options(stream, "Sinusoidal", options); }

at::Tensor SinusoidalImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  const absolute_ops::Columns columns{.interleaved = options.layout() == SinusoidalLayout::kInterleaved,
                                      .cosines_first = options.layout() == SinusoidalLayout::kCosinesFirst,
                                      .num_axes = options.num_axes()};
  return absolute_ops::add_sinusoidal(x, place_of(call), inv_freq_.to(x.device()), options.dim(), columns);
}

}  // namespace posenc::nn
