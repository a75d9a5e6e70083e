#include <posenc/nn/cape.h>

#include "common/checks.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"

namespace posenc::nn {
namespace {

absolute_ops::Augmentation augmentation(const CAPEOptions& o) {
  return {o.max_global_shift(), o.max_local_shift(), o.max_global_scaling()};
}

}  // namespace

CAPEImpl::CAPEImpl(CAPEOptions options) : options(std::move(options)) { reset(); }

void CAPEImpl::reset() {
  check_options("CAPE", options);
  check_entries("CAPE", "dim", options.dim());
  inv_freq_ = sinusoid_frequencies(options.dim(), options.base(), SinusoidalLayout::kInterleaved);
}

void CAPEImpl::pretty_print(std::ostream& stream) const { print_options(stream, "CAPE", options); }

at::Tensor CAPEImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_cape(x, place_of(call), inv_freq_.to(x.device()), options.dim(), options.centre(),
                                is_training() ? std::make_optional(augmentation(options)) : std::nullopt);
}

}  // namespace posenc::nn
