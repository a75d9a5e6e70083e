#pragma once

#include <posenc/export.h>
#include <posenc/nn/encoding.h>
#include <posenc/ops.h>
#include <posenc/scaling.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <tuple>

namespace posenc::nn {

/// Options of Rotary.
///
///     Rotary rope(RotaryOptions(128).base(500000.0).scaling(posenc::scaling::Yarn(4.0, 8192)));
struct RotaryOptions {
  /*implicit*/ RotaryOptions(int64_t head_dim) : head_dim_(head_dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("rotary_dim", self.rotary_dim());
    visit("base", self.base());
    visit("interleaved", self.interleaved());
    visit("scaling", self.scaling());
    visit("exact", self.exact());
    visit("seq_len", self.seq_len(), at_least(1));
    visit("learnable", self.learnable());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// R, even and at most head_dim; absent: head_dim. Columns R..D-1 pass through.
  TORCH_ARG(std::optional<int64_t>, rotary_dim) = std::nullopt;
  TORCH_ARG(double, base) = 10000.0;
  /// Pairs are (2k, 2k+1) instead of (k, k + R/2).
  TORCH_ARG(bool, interleaved) = false;
  TORCH_ARG(scaling::Scaling, scaling) = scaling::Scaling();
  /// false: float32 frequencies and angles, bit for bit those of transformers.
  TORCH_ARG(bool, exact) = true;
  /// Length in tokens that a length-dependent scaling (DynamicNTK, LongRoPE) uses in every call. Absent: each call's
  /// own, offset + T, or the largest position + 1. Cached keys stay consistent only under one fixed length.
  TORCH_ARG(std::optional<int64_t>, seq_len) = std::nullopt;
  /// The frequencies are a parameter `inv_freq` (R/2).
  TORCH_ARG(bool, learnable) = false;
};

/// Options of a call to Rotary.
struct RotaryForwardOptions {
  /// (T) or (B, T), integer or floating; absent: offset + 0, 1, .., T-1.
  TORCH_ARG(std::optional<at::Tensor>, positions) = std::nullopt;
  TORCH_ARG(int64_t, offset) = 0;
  /// First position of each batch row (B), instead of `offset`.
  TORCH_ARG(std::optional<at::Tensor>, offsets) = std::nullopt;
  /// Overrides the constructor's seq_len.
  TORCH_ARG(std::optional<int64_t>, seq_len) = std::nullopt;
};

/// Rotary position embedding (RoFormer, arXiv 2104.09864) with every context extension of posenc::scaling.
///
/// Frequencies are derived from the options in float64 and are no buffers, so no cast or move rounds them.
class POSENC_API RotaryImpl : public torch::nn::Cloneable<RotaryImpl>, public RotaryEncoding {
 public:
  explicit RotaryImpl(int64_t head_dim) : RotaryImpl(RotaryOptions(head_dim)) {}
  explicit RotaryImpl(RotaryOptions options);

  void reset() override;
  /// Sets a learnable inv_freq back to the frequencies that the options give.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, H, T, D) -> x rotated, same shape and dtype. Usable in torch::nn::Sequential.
  at::Tensor forward(const at::Tensor& x, const RotaryForwardOptions& call = {});
  /// q (B, H, T, D) and k (B, G, T, D) -> both rotated in one pass (Python: forward(q, k)).
  std::tuple<at::Tensor, at::Tensor> forward_qk(const at::Tensor& q, const at::Tensor& k,
                                                const RotaryForwardOptions& call = {});
  std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                            const RotaryForwardOptions& call) override {
    return forward_qk(q, k, call);
  }
  /// Rotates keys on by the angles of `by` tokens; with exact(false) these are not rounded to float32. c10::ValueError
  /// where depends_on_call_length().
  at::Tensor shift(const at::Tensor& key, int64_t by) override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  bool depends_on_call_length() const override {
    return scaling::depends_on_length(options.scaling()) && !options.seq_len();
  }

  /// The frequencies (R/2) and magnitude in use for a sequence of `seq_len` tokens.
  scaling::Frequencies frequencies(std::optional<int64_t> seq_len = std::nullopt) const;

  RotaryOptions options;
  /// The parameter (R/2), defined where options.learnable().
  at::Tensor inv_freq;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(RotaryForwardOptions())})

 private:
  /// The frequencies to rotate x by, on x's device.
  at::Tensor frequencies_for(const at::Tensor& x, const RotaryForwardOptions& call) const;
  RotaryFuncOptions op_options(const RotaryForwardOptions& call) const;

  scaling::Frequencies frequencies_;
};

TORCH_MODULE(Rotary);

}  // namespace posenc::nn
