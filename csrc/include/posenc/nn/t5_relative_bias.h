#pragma once

#include <posenc/nn/additive.h>

namespace posenc::nn {

/// Options of T5RelativeBias.
struct T5RelativeBiasOptions {
  /*implicit*/ T5RelativeBiasOptions(int64_t num_heads) : num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("num_heads", self.num_heads(), at_least(1));
    visit("num_buckets", self.num_buckets());
    visit("max_distance", self.max_distance());
    visit("bidirectional", self.bidirectional());
    visit("scale", self.scale(), finite());
  }

  TORCH_ARG(int64_t, num_heads);
  /// Rows of the table.
  TORCH_ARG(int64_t, num_buckets) = 32;
  /// Distance, in tokens, from which on one bucket holds all.
  TORCH_ARG(int64_t, max_distance) = 128;
  /// Keys before and after the query have buckets of their own (T5's encoder); false: all keys after it share the
  /// bucket of distance 0 (T5's decoder).
  TORCH_ARG(bool, bidirectional) = false;
  /// What query . key is multiplied by where the call gives no scale: T5 does not scale. Absent: 1 / sqrt(D).
  TORCH_ARG(std::optional<double>, scale) = 1.0;
};

/// The learned biases of T5 (arXiv 1910.10683, section 2.1): adds weight[bucket(j - i), h], with buckets that widen
/// with the distance, posenc::t5_bucket(). T5 has one such table for all layers: give them the same module.
///
/// Errors: c10::ValueError unless num_heads is at least 1, num_buckets at least 2 (bidirectional: even, at least 4) and
/// max_distance larger than the num_buckets/2 (bidirectional: num_buckets/4) distances that have a bucket each.
class POSENC_API T5RelativeBiasImpl : public torch::nn::Cloneable<T5RelativeBiasImpl>, public AdditiveEncoding {
 public:
  explicit T5RelativeBiasImpl(int64_t num_heads) : T5RelativeBiasImpl(T5RelativeBiasOptions(num_heads)) {}
  explicit T5RelativeBiasImpl(T5RelativeBiasOptions options);

  void reset() override;
  /// Draws weight anew, from a normal distribution with initial_std(options).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  T5RelativeBiasOptions options;
  /// The parameter (num_buckets, num_heads), as in T5.
  at::Tensor weight;

 protected:
  ScoreTerms terms(const ScoreCall& call) override;
  int64_t heads() const override { return options.num_heads(); }
  at::Tensor parameter() const override { return weight; }
  std::optional<double> own_scale() const override { return options.scale(); }
};

TORCH_MODULE(T5RelativeBias);

/// Raises unless the options fit together.
POSENC_API void check(const T5RelativeBiasOptions& options);

/// 1 / sqrt(64 num_heads): T5 draws with 1 / sqrt(d_model), and has heads of width 64 up to its large size.
POSENC_API double initial_std(const T5RelativeBiasOptions& options);

}  // namespace posenc::nn
