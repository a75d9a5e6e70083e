#pragma once

#include <posenc/nn/additive.h>

#include <vector>

namespace posenc::nn {

/// Options of ALiBi.
struct ALiBiOptions {
  /*implicit*/ ALiBiOptions(int64_t num_heads) : num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("slopes", self.slopes(), finite());
    visit("learnable", self.learnable());
  }

  TORCH_ARG(int64_t, num_heads);
  /// One for each head; absent: those of posenc::alibi_slopes().
  TORCH_ARG(std::optional<std::vector<double>>, slopes) = std::nullopt;
  /// Makes the slopes a parameter.
  TORCH_ARG(bool, learnable) = false;
};

/// Attention with linear biases (ALiBi, arXiv 2108.12409, section 3): adds -slope_h |i - j| to the score of query
/// position i and key position j.
///
///     ALiBi encoding(8);
///     auto out = encoding->attend(q, k, v, AttendOptions().is_causal(true));
///
/// Errors: c10::ValueError unless num_heads is at least 1 and slopes are finite and as many.
class POSENC_API ALiBiImpl : public torch::nn::Cloneable<ALiBiImpl>, public AdditiveEncoding {
 public:
  explicit ALiBiImpl(int64_t num_heads) : ALiBiImpl(ALiBiOptions(num_heads)) {}
  explicit ALiBiImpl(ALiBiOptions options);

  void reset() override;
  /// Sets learnable slopes to their initial values.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// The slopes (H) of the options: float64, on the CPU.
  const at::Tensor& initial_slopes() const { return initial_slopes_; }

  ALiBiOptions options;
  /// (H): the parameter where learnable. Else a constant in float64, which no cast of the module rounds and nothing
  /// saves.
  at::Tensor slopes;

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }
  at::Tensor parameter() const override { return options.learnable() ? slopes : at::Tensor(); }

 private:
  at::Tensor initial_slopes_;
};

TORCH_MODULE(ALiBi);

}  // namespace posenc::nn
