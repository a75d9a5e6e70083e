#pragma once

#include <posenc/nn/additive.h>

#include <torch/nn/modules/container/sequential.h>

namespace posenc::nn {

/// Options of FIRE.
struct FIREOptions {
  /*implicit*/ FIREOptions(int64_t num_heads) : num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("hidden_dim", self.hidden_dim(), at_least(1));
    visit("c", self.c(), positive());
    visit("threshold", self.threshold(), positive());
    visit("eps", self.eps(), positive());
  }

  TORCH_ARG(int64_t, num_heads);
  /// Width of the MLP.
  TORCH_ARG(int64_t, hidden_dim) = 32;
  /// Initial value of the parameter c.
  TORCH_ARG(double, c) = 0.1;
  /// Initial value of the parameter threshold, in tokens.
  TORCH_ARG(double, threshold) = 512.0;
  TORCH_ARG(double, eps) = 1e-6;
};

/// FIRE (arXiv 2310.04418): adds, for query position i, distance n = |i - j| and psi(x) = ln(|c x| + 1),
///
///     mlp( psi(n) / (psi(max(|threshold|, i)) + eps) )
///
/// with an MLP 1 -> hidden_dim -> num_heads with ReLU, and c, threshold and the MLP learned.
///
/// The MLP is a piecewise linear function of a number, which attend() adds to scores as they are made, so that no call
/// holds Tq x Tk numbers; logits() and bias() hold them. Positions are integers.
///
/// Errors: c10::ValueError unless num_heads and hidden_dim are at least 1 and c, threshold and eps positive.
class POSENC_API FIREImpl : public torch::nn::Cloneable<FIREImpl>, public AdditiveEncoding {
 public:
  explicit FIREImpl(int64_t num_heads) : FIREImpl(FIREOptions(num_heads)) {}
  explicit FIREImpl(FIREOptions options);

  void reset() override;
  /// Sets c and threshold to their initial values and draws the MLP anew, as torch::nn::Linear does.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  void add_terms(OpCall& op, const AttendOptions& call) override;

  FIREOptions options;
  /// The parameters c (1), in 1 / tokens, and threshold (1), in tokens.
  at::Tensor c;
  at::Tensor threshold;
  /// Linear(1, hidden_dim), ReLU, Linear(hidden_dim, num_heads).
  torch::nn::Sequential mlp;

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }
  at::Tensor parameter() const override { return c; }
};

TORCH_MODULE(FIRE);

/// Raises unless num_heads and hidden_dim are at least 1 and c, threshold and eps positive.
POSENC_API void check(const FIREOptions& options);

}  // namespace posenc::nn
