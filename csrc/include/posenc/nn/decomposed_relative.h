#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>
#include <vector>

namespace posenc::nn {

/// Options of DecomposedRelative.
struct DecomposedRelativeOptions {
  DecomposedRelativeOptions(int64_t head_dim, std::vector<int64_t> size)
      : head_dim_(head_dim), size_(std::move(size)) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("size", self.size());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// (h, w): rows and columns of the grid of tokens, or of the window that a layer attends in.
  TORCH_ARG(std::vector<int64_t>, size);
};

/// Relative positions on two axes, a table for each (SAM, arXiv 2304.02643; ViTDet, arXiv 2203.16527; after MViTv2,
/// arXiv 2112.01526, eq. 4):
///
///     score(i, j) = q_i . k_j / sqrt(D) + q_i . (rel_y[h - 1 + y_i - y_j] + rel_x[w - 1 + x_i - x_j])
///
/// where the query is not scaled in the second part; distances are clipped to the tables. Queries are (B, H, Tq, D),
/// keys (B, G, Tk, D) and values (B, G, Tk, Dv).
///
/// q_positions and k_positions are coordinates (y, x), (2, T) or (2, B, T) integer. Without them there must be h w
/// keys: the tokens of the grid, row by row, queries the last of them. All else goes by index.
///
///     DecomposedRelative encoding(64, {14, 14});
///     auto out = encoding->attend(q, k, v);
///
/// Errors: c10::ValueError unless head_dim, h and w are at least 1, and for shapes.
class POSENC_API DecomposedRelativeImpl : public torch::nn::Cloneable<DecomposedRelativeImpl>, public ScoreEncoding {
 public:
  DecomposedRelativeImpl(int64_t head_dim, std::vector<int64_t> size)
      : DecomposedRelativeImpl(DecomposedRelativeOptions(head_dim, std::move(size))) {}
  explicit DecomposedRelativeImpl(DecomposedRelativeOptions options);

  void reset() override;
  /// Zeroes the tables, as SAM and ViTDet do.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void add_terms(OpCall& op, const AttendOptions& call) override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }

  DecomposedRelativeOptions options;
  /// The parameters (2h-1, D) and (2w-1, D), by query - key, as SAM's rel_pos_h and rel_pos_w.
  at::Tensor rel_y;
  at::Tensor rel_x;
};

TORCH_MODULE(DecomposedRelative);

/// Raises unless the options fit together.
POSENC_API void check(const DecomposedRelativeOptions& options);

}  // namespace posenc::nn
