#pragma once

#include <posenc/export.h>
#include <posenc/nn/encoding.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>

namespace posenc::nn {

/// Options of a call to an absolute encoding.
struct AbsoluteForwardOptions {
  /// (T) or (B, T), integer or, where the encoding has values between positions, floating; absent:
  /// offset + 0, 1, .., T-1. For encodings over several axes (A, T) or (A, B, T), never absent.
  TORCH_ARG(std::optional<at::Tensor>, positions) = std::nullopt;
  TORCH_ARG(int64_t, offset) = 0;
  /// First position of each batch row (B), integer, instead of `offset`.
  TORCH_ARG(std::optional<at::Tensor>, offsets) = std::nullopt;
};

/// The columns of sines and cosines.
enum class SinusoidalLayout {
  /// sin, cos, sin, cos, .., as in the paper.
  kInterleaved,
  /// All sines, then all cosines.
  kConcatenated,
  /// All sines, then all cosines, with frequencies base^(-k / (dim/2 - 1)) and an odd dim's last column left alone, as
  /// in the tensor2tensor library.
  kTensor2Tensor,
  /// All cosines, then all sines, with frequencies base^(-k / floor(dim/2)) and an odd dim's last column left alone, as
  /// in the time steps of diffusion models.
  kCosinesFirst,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 4> value_names(SinusoidalLayout) {
  return {"interleaved", "concatenated", "tensor2tensor", "cosines_first"};
}

/// Options of Sinusoidal.
struct SinusoidalOptions {
  /*implicit*/ SinusoidalOptions(int64_t dim) : dim_(dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("dim", self.dim(), at_least(1));
    visit("base", self.base(), positive());
    visit("layout", self.layout());
    visit("num_axes", self.num_axes(), at_least(1));
  }

  /// Width of an embedding; may be odd. With several axes a multiple of 2 * num_axes.
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(double, base) = 10000.0;
  TORCH_ARG(SinusoidalLayout, layout) = SinusoidalLayout::kInterleaved;
  /// A, e.g. 2 for the rows and columns of an image. With more than one, positions are (A, T) or (A, B, T) and must be
  /// given.
  TORCH_ARG(int64_t, num_axes) = 1;
};

/// Sinusoidal encoding (Attention Is All You Need, arXiv 1706.03762, section 3.5), added to embeddings:
///
///     PE[p, 2k] = sin(p base^(-2k/dim)),  PE[p, 2k+1] = cos(p base^(-2k/dim))
///
/// With an odd dim there is no last cosine. Angles are formed in float64, whatever the dtype of x. Over several axes
/// each has an encoding of its own that is dim/A wide, one after the other (MAE, arXiv 2111.06377; DiT, arXiv
/// 2212.09748).
///
///     Sinusoidal encoding(512);
///     auto y = encoding(x);
class POSENC_API SinusoidalImpl : public torch::nn::Cloneable<SinusoidalImpl>, public AbsoluteEncoding {
 public:
  explicit SinusoidalImpl(int64_t dim) : SinusoidalImpl(SinusoidalOptions(dim)) {}
  explicit SinusoidalImpl(SinusoidalOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, dim) or (T, dim) -> x plus the encoding, same shape and dtype.
  at::Tensor forward(const at::Tensor& x, const AbsoluteForwardOptions& call = {});
  at::Tensor embed(const at::Tensor& x, const AbsoluteForwardOptions& call) override { return forward(x, call); }
  std::optional<int64_t> dim() const override { return options.dim(); }
  std::optional<int64_t> position_axes() const override {
    return options.num_axes() == 1 ? std::nullopt : std::make_optional(options.num_axes());
  }

  /// Radians per token of the pairs of an axis, which has w = dim/A columns: (ceil(w/2)), or (floor(w/2)) in the
  /// layouts tensor2tensor and cosines_first; float64.
  const at::Tensor& inv_freq() const { return inv_freq_; }

  SinusoidalOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(AbsoluteForwardOptions())})

 private:
  at::Tensor inv_freq_;
};

TORCH_MODULE(Sinusoidal);

}  // namespace posenc::nn
