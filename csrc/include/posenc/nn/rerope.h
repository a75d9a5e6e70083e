#pragma once

#include <posenc/nn/piecewise.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// Options of ReRoPE.
struct ReRoPEOptions {
  /*implicit*/ ReRoPEOptions(int64_t head_dim, int64_t window = 512) : head_dim_(head_dim), window_(window) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("window", self.window(), at_least(1));
    visit("leak", self.leak(), at_least(1));
    visit("base", self.base());
    visit("interleaved", self.interleaved());
    visit("log_scale_length", self.log_scale_length(), at_least(2));
  }

  /// D, the width of a head; even.
  TORCH_ARG(int64_t, head_dim);
  /// w, in tokens: distances below it are RoPE's.
  TORCH_ARG(int64_t, window);
  /// At least 1: beyond the window distance grows by 1/leak a token (Leaky ReRoPE). Absent: not at all.
  TORCH_ARG(std::optional<double>, leak) = std::nullopt;
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + D/2).
  TORCH_ARG(bool, interleaved) = false;
  /// L0, in tokens: queries are multiplied by max(1, ln(position + 1) / ln L0). Absent: not scaled.
  TORCH_ARG(std::optional<int64_t>, log_scale_length) = std::nullopt;
};

/// ReRoPE (Su, kexue.fm 9708): RoPE whose distance n stops growing at a window w, so that a model reads texts longer
/// than it was trained on, without training. Plain: min(n, w). Leaky (leak k): n below w, else w + (n - w)/k.
///
/// Queries (B, H, Tq, D) and keys (B, G, Tk, D) come unrotated. Near scores rotate both at their positions; far ones
/// rotate the query alone, at the constant position w (plain), or the query at position + w (k - 1) and the key at its
/// position, both with frequencies divided by k (leaky).
///
///     ReRoPE encoding(ReRoPEOptions(128, 1024).base(500000.0));
///     auto out = encoding->attend(q, k, v);
class POSENC_API ReRoPEImpl : public torch::nn::Cloneable<ReRoPEImpl>, public PiecewiseEncoding {
 public:
  explicit ReRoPEImpl(int64_t head_dim, int64_t window = 512) : ReRoPEImpl(ReRoPEOptions(head_dim, window)) {}
  explicit ReRoPEImpl(ReRoPEOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  PiecewiseSides sides(const at::Tensor& query, const at::Tensor& key,
                       const std::optional<at::Tensor>& q_positions = std::nullopt,
                       const std::optional<at::Tensor>& k_positions = std::nullopt) const override;
  int64_t threshold() const override { return options.window(); }
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }

  /// Radians per token (D/2), float64 on the CPU.
  const at::Tensor& inv_freq() const { return inv_freq_; }
  /// inv_freq / leak; undefined without a leak.
  const at::Tensor& far_inv_freq() const { return far_inv_freq_; }

  ReRoPEOptions options;

 private:
  at::Tensor inv_freq_, far_inv_freq_;
};

TORCH_MODULE(ReRoPE);

}  // namespace posenc::nn
