#pragma once

#include <posenc/nn/rotary.h>

namespace posenc::nn {

/// Options of AxialRotary.
struct AxialRotaryOptions {
  /*implicit*/ AxialRotaryOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim());
    visit("num_axes", self.num_axes(), at_least(1));
    visit("base", self.base());
    visit("interleaved", self.interleaved());
    visit("learnable", self.learnable());
    visit("num_heads", self.num_heads(), at_least(1));
  }

  /// D, a multiple of 2 * num_axes.
  TORCH_ARG(int64_t, head_dim);
  /// A, e.g. 2 for the rows and columns of an image.
  TORCH_ARG(int64_t, num_axes) = 2;
  TORCH_ARG(double, base) = 100.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + D/2).
  TORCH_ARG(bool, interleaved) = true;
  /// The frequencies are a parameter `inv_freq`: the angle of each pair mixes all axes.
  TORCH_ARG(bool, learnable) = false;
  /// With learnable: H, for frequencies of each head's own.
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;
};

/// Rotary embedding over several position axes (RoPE-ViT, arXiv 2403.13298): the pairs are shared out evenly, axis by
/// axis, and within its D/A columns each axis is a RoPE of its own, theta_t = base^(-2t / (D/A)). Coordinates are in
/// whatever unit suits: patches with base 100, or floating ones. A token that has no coordinates (a class token) takes
/// position 0 on every axis and passes through unchanged.
///
/// learnable: "mixed" frequencies (eq. 14 there), inv_freq (A, D/2), or (A, H, D/2) with num_heads; the angle of a pair
/// is the sum over axes of position times frequency. They start as the axial ones.
class POSENC_API AxialRotaryImpl : public torch::nn::Cloneable<AxialRotaryImpl>, public RotaryEncoding {
 public:
  explicit AxialRotaryImpl(int64_t head_dim) : AxialRotaryImpl(AxialRotaryOptions(head_dim)) {}
  explicit AxialRotaryImpl(AxialRotaryOptions options);

  void reset() override;
  /// Sets learnable frequencies back to the axial ones.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, H, T, D) by call.positions() (A, T) or (A, B, T) -> rotated.
  at::Tensor forward(const at::Tensor& x, const RotaryForwardOptions& call = {});
  /// q (B, H, T, D) and k (B, G, T, D) -> both rotated in one pass.
  std::tuple<at::Tensor, at::Tensor> forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                const RotaryForwardOptions& call = {});
  std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                            const RotaryForwardOptions& call) override {
    return forward_qk(q, k, call);
  }
  std::optional<int64_t> position_axes() const override { return options.num_axes(); }
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  AxialRotaryOptions options;
  /// The parameter, defined where options.learnable().
  at::Tensor inv_freq;
  /// What inv_freq starts as: (D/2), or with learnable (A, D/2) or (A, H, D/2); float64.
  at::Tensor initial_inv_freq() const;
  /// The axis whose position rotates each of the D/2 pairs.
  std::vector<int64_t> axes() const;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(RotaryForwardOptions())})

 private:
  at::Tensor frequencies_for(const at::Tensor& x) const;
  RotaryFuncOptions op_options(const RotaryForwardOptions& call) const;

  at::Tensor initial_;
};

TORCH_MODULE(AxialRotary);

}  // namespace posenc::nn
