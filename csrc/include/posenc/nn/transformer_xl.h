#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// The columns of the sinusoids that TransformerXL projects.
enum class TransformerXLLayout {
  /// All sines, then all cosines: Transformer-XL, XLNet.
  kConcatenated,
  /// sin, cos, sin, cos, ..: Conformers (Parakeet, Wav2Vec2-Conformer).
  kInterleaved,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 2> value_names(TransformerXLLayout) { return {"concatenated", "interleaved"}; }

/// Options of TransformerXL.
struct TransformerXLOptions {
  TransformerXLOptions(int64_t head_dim, int64_t num_heads) : head_dim_(head_dim), num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("pos_dim", self.pos_dim(), at_least(1));
    visit("layout", self.layout());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// H, the query heads.
  TORCH_ARG(int64_t, num_heads);
  /// P, the width of the sinusoids; even. Absent: H * D.
  TORCH_ARG(std::optional<int64_t>, pos_dim) = std::nullopt;
  TORCH_ARG(TransformerXLLayout, layout) = TransformerXLLayout::kConcatenated;
};

/// The relative attention of Transformer-XL (arXiv 1901.02860, section 3.3) and of Conformers (arXiv 2005.08100). With
/// r[n] = pos_proj sinusoids(n), D numbers for each head, and n = q_position - k_position:
///
///     score(i, j) = ((q_i + content_bias) . k_j + (q_i + position_bias) . r[i - j]) / sqrt(D)
///
/// Queries are (B, H, Tq, D), keys (B, G, Tk, D) and values (B, G, Tk, Dv). Rows of r are made in each call, for the
/// distances that a query can see in it; positions that are given are read for that. Causal only where a call says so.
///
///     TransformerXL encoding(64, 8);
///     auto out = encoding->attend(q, k, v);
class POSENC_API TransformerXLImpl : public torch::nn::Cloneable<TransformerXLImpl>, public ScoreEncoding {
 public:
  /// Standard deviation of the initial normal distribution of all parameters, as in the authors' code.
  static constexpr double kInitialStd = 0.02;

  TransformerXLImpl(int64_t head_dim, int64_t num_heads)
      : TransformerXLImpl(TransformerXLOptions(head_dim, num_heads)) {}
  explicit TransformerXLImpl(TransformerXLOptions options);

  void reset() override;
  /// Draws the parameters anew.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void add_terms(OpCall& op, const AttendOptions& call) override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  /// Radians per token of the sinusoids (P/2): float64, on the CPU.
  const at::Tensor& inv_freq() const { return inv_freq_; }

  TransformerXLOptions options;
  /// The parameter u (H, D).
  at::Tensor content_bias;
  /// The parameter v (H, D).
  at::Tensor position_bias;
  /// The parameter (H * D, P).
  at::Tensor pos_proj;

 private:
  at::Tensor inv_freq_;
};

TORCH_MODULE(TransformerXL);

/// Raises unless widths and heads are positive and the width of the sinusoids is even.
POSENC_API void check(const TransformerXLOptions& options);

/// 10000^(-2k/P) for k = 0 .. P/2 - 1: float64, on the CPU.
POSENC_API at::Tensor inv_freq(const TransformerXLOptions& options);

}  // namespace posenc::nn
