#pragma once

#include <posenc/nn/rotary.h>

namespace posenc::nn {

/// Options of MultimodalRotary.
struct MultimodalRotaryOptions {
  MultimodalRotaryOptions(int64_t head_dim, std::vector<int64_t> sections)
      : head_dim_(head_dim), sections_(std::move(sections)) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("sections", self.sections());
    visit("rotary_dim", self.rotary_dim());
    visit("base", self.base());
    visit("interleaved", self.interleaved());
    visit("interleaved_sections", self.interleaved_sections());
    visit("scaling", self.scaling());
    visit("exact", self.exact());
    visit("seq_len", self.seq_len(), at_least(1));
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// Pairs that each axis (time, height, width) rotates; they add up to R/2.
  TORCH_ARG(std::vector<int64_t>, sections);
  /// R, even and at most head_dim; absent: head_dim. Columns R..D-1 pass through.
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + R/2).
  TORCH_ARG(bool, interleaved) = false;
  /// Pairs alternate between the axes (Qwen3-VL) instead of lying section by section (Qwen2-VL).
  TORCH_ARG(bool, interleaved_sections) = false;
  TORCH_ARG(scaling::Scaling, scaling) = scaling::Scaling();
  /// false: float32 frequencies and angles, bit for bit those of transformers.
  TORCH_ARG(bool, exact) = true;
  /// As in RotaryOptions.
  TORCH_ARG(std::optional<int64_t>, seq_len) = std::nullopt;
};

/// Multimodal RoPE (Qwen2-VL, arXiv 2409.12191): one spectrum of frequencies, each pair rotated by the position on its
/// own axis. Where all axes agree, as for text, it equals Rotary bit for bit. Positions (A, T) or (A, B, T), e.g. of
/// posenc::multimodal_positions; absent: offset + arange(T) on every axis.
///
/// interleaved_sections: pair c belongs to axis a > 0 where c % A == a and c < A * sections[a], else to axis 0.
class POSENC_API MultimodalRotaryImpl : public torch::nn::Cloneable<MultimodalRotaryImpl>, public RotaryEncoding {
 public:
  MultimodalRotaryImpl(int64_t head_dim, std::vector<int64_t> sections)
      : MultimodalRotaryImpl(MultimodalRotaryOptions(head_dim, std::move(sections))) {}
  explicit MultimodalRotaryImpl(MultimodalRotaryOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// x (B, H, T, D) -> rotated.
  at::Tensor forward(const at::Tensor& x, const RotaryForwardOptions& call = {});
  /// q (B, H, T, D) and k (B, G, T, D) -> both rotated in one pass.
  std::tuple<at::Tensor, at::Tensor> forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                const RotaryForwardOptions& call = {});
  std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                            const RotaryForwardOptions& call) override {
    return forward_qk(q, k, call);
  }
  bool depends_on_call_length() const override {
    return scaling::depends_on_length(options.scaling()) && !options.seq_len();
  }
  std::optional<int64_t> position_axes() const override { return static_cast<int64_t>(options.sections().size()); }
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }

  /// The frequencies (R/2) and magnitude in use for a sequence of `seq_len` tokens.
  scaling::Frequencies frequencies(std::optional<int64_t> seq_len = std::nullopt) const;
  /// The axis whose position rotates each of the R/2 pairs.
  std::vector<int64_t> axes() const;

  MultimodalRotaryOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(RotaryForwardOptions())})

 private:
  at::Tensor frequencies_for(const at::Tensor& x, const RotaryForwardOptions& call) const;
  RotaryFuncOptions op_options(const RotaryForwardOptions& call) const;

  scaling::Frequencies frequencies_;
};

TORCH_MODULE(MultimodalRotary);

}  // namespace posenc::nn
