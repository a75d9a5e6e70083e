#pragma once

#include <posenc/nn/additive.h>

#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <ostream>
#include <vector>

namespace posenc::nn {

/// Where the entries of GridRelativeBias come from.
enum class GridBiasKind {
  /// A learned table (Swin, arXiv 2103.14030; BEiT, arXiv 2106.08254).
  kTable,
  /// An MLP of the logarithms of distances (Swin v2, arXiv 2111.09883).
  kContinuous,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 2> value_names(GridBiasKind) { return {"table", "cpb"}; }

/// Options of GridRelativeBias.
struct GridRelativeBiasOptions {
  GridRelativeBiasOptions(int64_t num_heads, std::vector<int64_t> window)
      : num_heads_(num_heads), window_(std::move(window)) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("window", self.window());
    visit("kind", self.kind());
    visit("class_token", self.class_token());
  }

  TORCH_ARG(int64_t, num_heads);
  /// (h, w): rows and columns of the window that a layer attends in.
  TORCH_ARG(std::vector<int64_t>, window);
  TORCH_ARG(GridBiasKind, kind) = GridBiasKind::kTable;
  /// The first token is a class token, with entries of its own (BEiT). Of kind kTable alone.
  TORCH_ARG(bool, class_token) = false;
};

/// A bias by the distance on two axes, which attention scores add for each head (Swin, arXiv 2103.14030, eq. 4): with
/// dy = y_i - y_j and dx = x_i - x_j, query less key, each clipped to the window,
///
///     table[(dy + h - 1)(2w - 1) + dx + w - 1, head]
///
/// kContinuous (Swin v2, arXiv 2111.09883, eq. 3 and 4) makes these entries as 16 sigmoid(mlp(u(dy), u(dx))), where
/// u(d) = sign(d) log2(1 + 8 |d| / (window - 1)) / 3. Its scores are cosines times a learned scale: normalise queries
/// and keys, multiply queries by the scale of their head and give AttendOptions::scale(1.0).
///
/// q_positions and k_positions are coordinates (y, x), (2, T) or (2, B, T) integer. Without them there must be h w keys
/// (one more with a class token): the tokens of the window, row by row, queries the last of them. All else goes by
/// index. With a class token positions are refused: its place is that of the first token.
///
///     GridRelativeBias encoding(4, {7, 7});
///     auto out = encoding->attend(q, k, v);
///
/// Errors: c10::ValueError unless num_heads, h and w are at least 1, for a class token of another kind than kTable, and
/// for shapes.
class POSENC_API GridRelativeBiasImpl : public torch::nn::Cloneable<GridRelativeBiasImpl>, public AdditiveEncoding {
 public:
  GridRelativeBiasImpl(int64_t num_heads, std::vector<int64_t> window)
      : GridRelativeBiasImpl(GridRelativeBiasOptions(num_heads, std::move(window))) {}
  explicit GridRelativeBiasImpl(GridRelativeBiasOptions options);

  void reset() override;
  /// Draws the table anew, from a normal distribution with deviation kInitialStd, or the MLP, as torch::nn::Linear
  /// does.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// Swin's.
  static constexpr double kInitialStd = 0.02;
  /// Width of the MLP, as in Swin v2.
  static constexpr int64_t kHidden = 512;

  GridRelativeBiasOptions options;
  /// The parameter ((2h-1)(2w-1), num_heads) as Swin and BEiT lay it out; with a class token three rows follow, for the
  /// pairs of query and key class token to other, other to class token, class token to itself. Undefined for
  /// kContinuous.
  at::Tensor table;
  /// Linear(2, 512), ReLU, Linear(512, num_heads) without bias. Empty for kTable.
  torch::nn::Sequential mlp{nullptr};

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }
  at::Tensor parameter() const override;
};

TORCH_MODULE(GridRelativeBias);

/// Raises unless the options fit together.
POSENC_API void check(const GridRelativeBiasOptions& options);

}  // namespace posenc::nn
