#pragma once

#include <posenc/nn/additive.h>

namespace posenc::nn {

/// Options of Sandwich.
struct SandwichOptions {
  /*implicit*/ SandwichOptions(int64_t num_heads) : num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("dim", self.dim());
  }

  TORCH_ARG(int64_t, num_heads);
  /// Width of the sinusoids; even. Independent of the heads' width.
  TORCH_ARG(int64_t, dim) = 128;
};

/// Sandwich (arXiv 2212.10356): the inner products of sinusoidal embeddings, as a bias. Adds for the distance n = |i -
/// j| and head h = 1 .. H
///
///     (sum over k = 1 .. dim/2 of cos(n / 10000^(2k/dim)) - dim/2) / (8h/H)
///
/// Nothing to learn. Angles and sums are float64. Given positions are read, as in Kerple.
///
/// Errors: c10::ValueError unless num_heads is at least 1 and dim even and at least 2.
class POSENC_API SandwichImpl : public torch::nn::Cloneable<SandwichImpl>, public AdditiveEncoding {
 public:
  explicit SandwichImpl(int64_t num_heads) : SandwichImpl(SandwichOptions(num_heads)) {}
  explicit SandwichImpl(SandwichOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// 10000^(-2k/dim) for k = 1 .. dim/2, in radians per token: float64, on the CPU.
  const at::Tensor& inv_freq() const { return inv_freq_; }

  SandwichOptions options;

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }

 private:
  at::Tensor inv_freq_;
};

TORCH_MODULE(Sandwich);

}  // namespace posenc::nn
