/// A positional encoding of your own: a bias that is learned for each head and each distance. Attention and KVCache
/// take it as they do the encodings of posenc.
///
/// Attention with this encoding alone learns to return the token kShift places earlier. Exits with 1 if it does not.

#include <posenc/posenc.h>

#include <torch/torch.h>

#include <iostream>

/// Options of ToeplitzBias.
struct ToeplitzBiasOptions {
  ToeplitzBiasOptions(int64_t num_heads, int64_t max_distance) : num_heads_(num_heads), max_distance_(max_distance) {}
  /// H.
  TORCH_ARG(int64_t, num_heads);
  /// R, in tokens; distances beyond it share the last entries.
  TORCH_ARG(int64_t, max_distance);
};

/// Adds weight[h, R + clip(k_position - q_position, -R, R)] to the scores of head h.
class ToeplitzBiasImpl : public torch::nn::Cloneable<ToeplitzBiasImpl>, public posenc::nn::AdditiveEncoding {
 public:
  explicit ToeplitzBiasImpl(const ToeplitzBiasOptions& options) : options(options) { reset(); }

  void reset() override {
    weight = register_parameter("weight", torch::zeros({options.num_heads(), 2 * options.max_distance() + 1}));
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "ToeplitzBias(" << options.num_heads() << ", " << options.max_distance() << ")";
  }

  ToeplitzBiasOptions options;
  /// The parameter (H, 2R+1).
  torch::Tensor weight;

 protected:
  posenc::nn::ScoreTerms terms(const posenc::nn::ScoreCall&) override { return {.distance_bias = weight}; }
  int64_t heads() const override { return options.num_heads(); }
  torch::Tensor parameter() const override { return weight; }
};
TORCH_MODULE(ToeplitzBias);

int main() {
  constexpr int64_t kBatch = 8, kLength = 32, kWidth = 16, kHeads = 2, kShift = 3, kSteps = 300;
  torch::manual_seed(0);
  ToeplitzBias encoding(ToeplitzBiasOptions(kHeads, 8));
  posenc::nn::Attention attention(posenc::nn::AttentionOptions(kWidth, kHeads).with(encoding));
  std::cout << attention << "\n";

  torch::optim::Adam optimizer(attention->parameters(), torch::optim::AdamOptions(0.02));
  double first = 0, last = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto x = torch::randn({kBatch, kLength, kWidth});
    const auto y = attention->forward(x);
    const auto loss = torch::mse_loss(y.slice(1, kShift), x.slice(1, 0, kLength - kShift));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    first = step == 0 ? last : first;
  }
  // Column R - n of a row is the distance n of a key before the query.
  const auto distance = encoding->options.max_distance() - encoding->weight.argmax(1);
  std::cout << "loss " << first << " -> " << last << "; each head attends to the token at distance\n"
            << distance << "\n";
  return last < 0.1 * first && distance.eq(kShift).any().item<bool>() ? 0 : 1;
}
