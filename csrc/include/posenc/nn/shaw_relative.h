#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// Options of ShawRelative.
struct ShawRelativeOptions {
  ShawRelativeOptions(int64_t head_dim, int64_t max_distance) : head_dim_(head_dim), max_distance_(max_distance) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("max_distance", self.max_distance(), at_least(0));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("values", self.values());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// R, in tokens; distances beyond it share the last entries. The paper uses 16.
  TORCH_ARG(int64_t, max_distance);
  /// H: tables per head. Absent: tables that all heads share, as in the paper.
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;
  /// false: no rel_v, relative positions act on the scores alone.
  TORCH_ARG(bool, values) = true;
};

/// Relative position representations (Shaw et al., arXiv 1803.02155, eq. 3 and 4): learned vectors for each clipped
/// distance r = R + clip(k_position - q_position, -R, R), added to keys and to values:
///
///     score(i, j) = q_i . (k_j + rel_k[r]) / sqrt(D),    out_i = sum_j weight(i, j) (v_j + rel_v[r])
///
/// Queries are (B, H, Tq, D), keys (B, G, Tk, D) and values (B, G, Tk, Dv), with Dv = D where there is rel_v.
///
///     ShawRelative encoding(64, 16);
///     auto out = encoding->attend(q, k, v, AttendOptions().is_causal(true));
class POSENC_API ShawRelativeImpl : public torch::nn::Cloneable<ShawRelativeImpl>, public ScoreEncoding {
 public:
  ShawRelativeImpl(int64_t head_dim, int64_t max_distance)
      : ShawRelativeImpl(ShawRelativeOptions(head_dim, max_distance)) {}
  explicit ShawRelativeImpl(ShawRelativeOptions options);

  void reset() override;
  /// Draws the tables anew, uniform within initial_bound().
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void add_terms(OpCall& op, const AttendOptions& call) override;
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  ShawRelativeOptions options;
  /// The parameter (2R+1, D) or (H, 2R+1, D).
  at::Tensor rel_k;
  /// The same for values; undefined where options.values() is false.
  at::Tensor rel_v;
};

TORCH_MODULE(ShawRelative);

/// Raises unless widths, distance and heads are positive (max_distance may be 0).
POSENC_API void check(const ShawRelativeOptions& options);

/// sqrt(6 / (2R + 1 + D)), Glorot's bound for a (2R+1, D) table: the paper names no initialisation, the authors' code
/// in tensor2tensor takes this default of its library.
POSENC_API double initial_bound(const ShawRelativeOptions& options);

}  // namespace posenc::nn
