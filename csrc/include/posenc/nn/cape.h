#pragma once

#include <posenc/nn/sinusoidal.h>

namespace posenc::nn {

/// Options of CAPE.
struct CAPEOptions {
  /*implicit*/ CAPEOptions(int64_t dim) : dim_(dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("dim", self.dim(), at_least(1));
    visit("max_global_shift", self.max_global_shift(), at_least(0));
    visit("max_local_shift", self.max_local_shift(), at_least(0));
    visit("max_global_scaling", self.max_global_scaling(), at_least(1));
    visit("base", self.base(), positive());
    visit("centre", self.centre());
  }

  /// Width of an embedding; may be odd.
  TORCH_ARG(int64_t, dim);
  /// Tokens by which a whole sequence moves at most, either way.
  TORCH_ARG(double, max_global_shift) = 5.0;
  /// Tokens by which a single token moves at most; up to 0.5 keeps their order.
  TORCH_ARG(double, max_local_shift) = 0.5;
  /// Factor by which a sequence stretches or shrinks at most, at least 1.
  TORCH_ARG(double, max_global_scaling) = 1.03;
  TORCH_ARG(double, base) = 10000.0;
  /// Subtracts the mean position of a call's tokens first, so that sequences lie around 0. A call then sees a whole
  /// sequence: offsets cancel out and are refused.
  TORCH_ARG(bool, centre) = false;
};

/// CAPE (arXiv 2106.03143): sinusoidal encoding whose positions move at random in training,
///
///     p' = lambda (p + D + eps_p),  D ~ U(-max_global_shift, ..),  eps_p ~ U(-max_local_shift, ..),
///     ln lambda ~ U(-ln max_global_scaling, ..)
///
/// with one D and lambda per sequence and one eps per token, fresh on every call, from torch's generator. After eval()
/// it equals Sinusoidal.
class POSENC_API CAPEImpl : public torch::nn::Cloneable<CAPEImpl>, public AbsoluteEncoding {
 public:
  explicit CAPEImpl(int64_t dim) : CAPEImpl(CAPEOptions(dim)) {}
  explicit CAPEImpl(CAPEOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, dim) or (T, dim) -> x plus the encoding, same shape and dtype.
  at::Tensor forward(const at::Tensor& x, const AbsoluteForwardOptions& call = {});
  at::Tensor embed(const at::Tensor& x, const AbsoluteForwardOptions& call) override { return forward(x, call); }
  std::optional<int64_t> dim() const override { return options.dim(); }

  /// Radians per token (ceil(dim/2)); float64.
  const at::Tensor& inv_freq() const { return inv_freq_; }

  CAPEOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(AbsoluteForwardOptions())})

 private:
  at::Tensor inv_freq_;
};

TORCH_MODULE(CAPE);

}  // namespace posenc::nn
