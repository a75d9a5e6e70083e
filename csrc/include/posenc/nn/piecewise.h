#pragma once

#include <posenc/nn/encoding.h>

namespace posenc::nn {

/// The queries and keys of posenc::piecewise_attention: q (B, H, Tq, D), k (B, G, Tk, D).
struct PiecewiseSides {
  at::Tensor q_near, k_near, q_far, k_far;
};

/// Base of the encodings with one rotation for distances below a threshold and another from there on. They take
/// unrotated queries and keys (so a cache holds unrotated keys), and need integer positions. Causal unless
/// AttendOptions say otherwise; keys after a query count as near at any distance.
class POSENC_API PiecewiseEncoding : public ScoreEncoding {
 public:
  void add_terms(OpCall& op, const AttendOptions& call) final;
  bool rotates() const final { return true; }

  /// query and key rotated for a call with these positions, (T) or (B, T); absent: 0 .. Tk-1 for keys and the last Tq
  /// of them for queries.
  virtual PiecewiseSides sides(const at::Tensor& query, const at::Tensor& key,
                               const std::optional<at::Tensor>& q_positions = std::nullopt,
                               const std::optional<at::Tensor>& k_positions = std::nullopt) const = 0;
  /// The distance, in tokens, from which the far score counts.
  virtual int64_t threshold() const = 0;
};

}  // namespace posenc::nn
