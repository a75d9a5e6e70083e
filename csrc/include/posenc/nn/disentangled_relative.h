#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// Options of DisentangledRelative.
struct DisentangledRelativeOptions {
  DisentangledRelativeOptions(int64_t head_dim, int64_t num_heads, int64_t max_distance)
      : head_dim_(head_dim), num_heads_(num_heads), max_distance_(max_distance) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("max_distance", self.max_distance(), at_least(1));
    visit("buckets", self.buckets(), at_least(4));
    visit("c2p", self.c2p());
    visit("p2c", self.p2c());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// H, the query heads.
  TORCH_ARG(int64_t, num_heads);
  /// In tokens, at most 65536; distances beyond it share the last rows. DeBERTa's max_relative_positions, or
  /// max_position_embeddings where that is below 1.
  TORCH_ARG(int64_t, max_distance);
  /// DeBERTa v2 and v3's position_buckets, 256: even. Half of them for each direction: a row for each distance up to
  /// buckets / 2, then rows whose width grows with the logarithm of the distance. Absent: a row for each distance (v1).
  TORCH_ARG(std::optional<int64_t>, buckets) = std::nullopt;
  /// Content to position: whether there is rel_k.
  TORCH_ARG(bool, c2p) = true;
  /// Position to content: whether there is rel_q.
  TORCH_ARG(bool, p2c) = true;
};

/// Disentangled attention (DeBERTa, He et al., arXiv 2006.03654, eq. 4): learned vectors for each distance, or bucket
/// of distances, that are multiplied with queries and with keys:
///
///     score(i, j) = (q_i . k_j + q_i . rel_k[r] + k_j . rel_q[r]) * scale,    r = span + clip(i - j, -span, span - 1)
///
/// with span = max_distance, or with buckets the number of them and bucket(i - j) in the place of i - j. scale is
/// 1 / sqrt(D * (1 + c2p + p2c)) unless a call says otherwise. Queries are (B, H, Tq, D), keys (B, G, Tk, D), values
/// (B, G, Tk, Dv).
///
/// DeBERTa makes its tables for each layer: the projections, as keys and as queries, of one table for all layers.
///
///     DisentangledRelative encoding(DisentangledRelativeOptions(64, 12, 512).buckets(256));
///     auto out = encoding->attend(q, k, v);
class POSENC_API DisentangledRelativeImpl : public torch::nn::Cloneable<DisentangledRelativeImpl>,
                                            public ScoreEncoding {
 public:
  DisentangledRelativeImpl(int64_t head_dim, int64_t num_heads, int64_t max_distance)
      : DisentangledRelativeImpl(DisentangledRelativeOptions(head_dim, num_heads, max_distance)) {}
  explicit DisentangledRelativeImpl(DisentangledRelativeOptions options);

  /// Standard deviation of new tables, DeBERTa's.
  static constexpr double kInitialStd = 0.02;

  void reset() override;
  /// Draws the tables anew, normal with kInitialStd.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void add_terms(OpCall& op, const AttendOptions& call) override;
  std::optional<double> own_scale() const override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  DisentangledRelativeOptions options;
  /// The parameters (H, 2 * span, D); undefined without c2p, and without p2c.
  at::Tensor rel_k, rel_q;
};

TORCH_MODULE(DisentangledRelative);

/// Raises unless widths and heads are positive, one of c2p and p2c is there, and the buckets exist.
POSENC_API void check(const DisentangledRelativeOptions& options);

/// Rows of each direction: buckets, or max_distance without them.
POSENC_API int64_t span_of(const DisentangledRelativeOptions& options);

}  // namespace posenc::nn
