#pragma once

#include <posenc/nn/rotary.h>

namespace posenc::nn {

/// Options of XPos.
struct XPosOptions {
  /*implicit*/ XPosOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("base", self.base());
    visit("scale_base", self.scale_base(), positive());
    visit("centre", self.centre(), finite());
    visit("interleaved", self.interleaved());
  }

  /// D, even.
  TORCH_ARG(int64_t, head_dim);
  TORCH_ARG(double, base) = 10000.0;
  /// Tokens over which a pair decays by its zeta.
  TORCH_ARG(double, scale_base) = 512.0;
  /// Position, in tokens, at which queries and keys are neither grown nor shrunk. One fixed number, so that cached keys
  /// stay consistent; any number gives the same scores, one near the positions in use keeps the numbers small.
  TORCH_ARG(double, centre) = 0.0;
  /// Pairs are (2k, 2k+1), as in the authors' code, instead of (k, k + D/2).
  TORCH_ARG(bool, interleaved) = true;
};

/// xPos (arXiv 2212.10554): RoPE whose queries grow by zeta_k^((p - centre) / scale_base) and whose keys shrink by the
/// same, with zeta_k = (2k/D + 0.4) / 1.4, so that scores decay with the distance. Meant for causal attention.
///
/// float32 keys of pair 0 overflow some 36000 tokens from the centre, float16 ones some 4500.
class POSENC_API XPosImpl : public torch::nn::Cloneable<XPosImpl>, public RotaryEncoding {
 public:
  explicit XPosImpl(int64_t head_dim) : XPosImpl(XPosOptions(head_dim)) {}
  explicit XPosImpl(XPosOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// Queries x (B, H, T, D) -> rotated and grown.
  at::Tensor forward(const at::Tensor& x, const RotaryForwardOptions& call = {});
  /// q (B, H, T, D) and k (B, G, T, D) -> q rotated and grown, k rotated and shrunk.
  std::tuple<at::Tensor, at::Tensor> forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                const RotaryForwardOptions& call = {});
  std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                            const RotaryForwardOptions& call) override {
    return forward_qk(q, k, call);
  }
  /// Rotates keys on by the angles of `by` tokens, and shrinks them by as many.
  at::Tensor shift(const at::Tensor& key, int64_t by) override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }

  /// (D/2) radians per token, and (D/2) ln(zeta) / scale_base per token; float64.
  std::tuple<at::Tensor, at::Tensor> constants() const { return {inv_freq_, decay_}; }

  XPosOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(RotaryForwardOptions())})

 private:
  /// x rotated and multiplied by zeta^(sign * (p - centre) / scale_base).
  at::Tensor rotate_by(const at::Tensor& x, double sign, double centre, const RotaryForwardOptions& call) const;

  at::Tensor inv_freq_, decay_;
};

TORCH_MODULE(XPos);

}  // namespace posenc::nn
