#pragma once

#include <posenc/nn/piecewise.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// Options of SelfExtend.
struct SelfExtendOptions {
  /*implicit*/ SelfExtendOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("group", self.group(), at_least(1));
    visit("window", self.window(), at_least(1));
    visit("base", self.base());
    visit("interleaved", self.interleaved());
  }

  /// D, the width of a head; even.
  TORCH_ARG(int64_t, head_dim);
  /// G: beyond the window this many tokens share a position.
  TORCH_ARG(int64_t, group) = 8;
  /// W, in tokens: distances below it are RoPE's.
  TORCH_ARG(int64_t, window) = 1024;
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + D/2).
  TORCH_ARG(bool, interleaved) = false;
};

/// Self-Extend (arXiv 2401.01325, eq. 4): RoPE whose distance is n = i - j below a window W, and beyond it
/// floor(i/G) + W - W/G - floor(j/G), in groups of G tokens, so that a model reads texts longer than it was trained on,
/// without training. W/G need not be whole.
///
/// Queries (B, H, Tq, D) and keys (B, G, Tk, D) come unrotated.
///
///     SelfExtend encoding(SelfExtendOptions(128).group(4).window(2048).base(500000.0));
///     auto out = encoding->attend(q, k, v);
class POSENC_API SelfExtendImpl : public torch::nn::Cloneable<SelfExtendImpl>, public PiecewiseEncoding {
 public:
  explicit SelfExtendImpl(int64_t head_dim) : SelfExtendImpl(SelfExtendOptions(head_dim)) {}
  explicit SelfExtendImpl(SelfExtendOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  PiecewiseSides sides(const at::Tensor& query, const at::Tensor& key,
                       const std::optional<at::Tensor>& q_positions = std::nullopt,
                       const std::optional<at::Tensor>& k_positions = std::nullopt) const override;
  int64_t threshold() const override { return options.window(); }
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }

  /// Radians per token (D/2), float64 on the CPU.
  const at::Tensor& inv_freq() const { return inv_freq_; }

  SelfExtendOptions options;

 private:
  at::Tensor inv_freq_;
};

TORCH_MODULE(SelfExtend);

}  // namespace posenc::nn
