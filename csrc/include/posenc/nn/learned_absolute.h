#pragma once

#include <posenc/nn/sinusoidal.h>

#include <array>
#include <string>

namespace posenc::nn {

/// Options of LearnedAbsolute.
struct LearnedAbsoluteOptions {
  LearnedAbsoluteOptions(int64_t max_positions, int64_t dim) : max_positions_(max_positions), dim_(dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("max_positions", self.max_positions(), at_least(1));
    visit("dim", self.dim(), at_least(1));
  }

  /// Rows of the table: positions are 0 .. max_positions - 1.
  TORCH_ARG(int64_t, max_positions);
  /// Width of an embedding.
  TORCH_ARG(int64_t, dim);
};

/// Options of LearnedAbsolute's resize().
struct LearnedAbsoluteResizeOptions {
  /// Rows and columns.
  using Grid = std::array<int64_t, 2>;

  /// Rows at the start of the table that are kept as they are, of tokens without a place (class tokens, registers).
  TORCH_ARG(int64_t, prefix) = 0;
  /// The old grid; absent: a square.
  TORCH_ARG(std::optional<Grid>, grid) = std::nullopt;
  /// "linear" for a number of positions; "bicubic" or "bilinear" for a grid. Absent: linear, and bicubic.
  TORCH_ARG(std::optional<std::string>, mode) = std::nullopt;
  /// The first and the last positions, rather than the outer edges of their cells, keep their places.
  TORCH_ARG(bool, align_corners) = false;
  /// Smaller grids average what they skip.
  TORCH_ARG(bool, antialias) = false;
};

class LearnedAbsolute;

/// A learned embedding for each position (BERT, arXiv 1810.04805; GPT-2), added to embeddings.
///
/// A position outside the table is a c10::ValueError that names the limit, raised before the table is read; rows that
/// no token uses get zero gradient. Given positions are read for that check, which on a GPU waits for them; an integer
/// offset needs no reading.
class POSENC_API LearnedAbsoluteImpl : public torch::nn::Cloneable<LearnedAbsoluteImpl>, public AbsoluteEncoding {
 public:
  /// Standard deviation of the initial normal distribution, as in BERT and GPT-2.
  static constexpr double kInitialStd = 0.02;

  LearnedAbsoluteImpl(int64_t max_positions, int64_t dim)
      : LearnedAbsoluteImpl(LearnedAbsoluteOptions(max_positions, dim)) {}
  explicit LearnedAbsoluteImpl(LearnedAbsoluteOptions options);

  void reset() override;
  /// Draws weight anew.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, dim) or (T, dim) -> x plus the rows of its positions, same shape and dtype. Positions are integers.
  at::Tensor forward(const at::Tensor& x, const AbsoluteForwardOptions& call = {});
  at::Tensor embed(const at::Tensor& x, const AbsoluteForwardOptions& call) override { return forward(x, call); }
  std::optional<int64_t> dim() const override { return options.dim(); }

  /// A new module with the table interpolated to `new_positions` rows, those of the prefix among them; this one stays
  /// as it is. The new table has the dtype, the device and requires_grad of this one, and no gradient to it.
  ///
  /// Errors: c10::ValueError for sizes and modes that have no meaning.
  LearnedAbsolute resize(int64_t new_positions, const LearnedAbsoluteResizeOptions& how = {}) const;
  /// The same from the old grid of rows and columns to a new one, row by row after the prefix (ViT, arXiv 2010.11929,
  /// section 3.2): prefix + rows * columns positions.
  LearnedAbsolute resize(LearnedAbsoluteResizeOptions::Grid new_grid,
                         const LearnedAbsoluteResizeOptions& how = {}) const;

  LearnedAbsoluteOptions options;
  /// The parameter (max_positions, dim).
  at::Tensor weight;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(AbsoluteForwardOptions())})
};

TORCH_MODULE(LearnedAbsolute);

/// Raises unless max_positions and dim are positive.
POSENC_API void check(const LearnedAbsoluteOptions& options);

}  // namespace posenc::nn
