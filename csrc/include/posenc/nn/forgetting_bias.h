#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// The decays of ForgettingBias, with z = weight_h . x_t.
enum class ForgettingKind {
  /// log sigmoid(z + bias_h): forgetting attention (FoX, arXiv 2503.02130).
  kFoX,
  /// -softplus(z): CABLE (arXiv 2503.08067).
  kCABLE,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 2> value_names(ForgettingKind) { return {"fox", "cable"}; }

/// Options of ForgettingBias.
struct ForgettingBiasOptions {
  ForgettingBiasOptions(int64_t embed_dim, int64_t num_heads) : embed_dim_(embed_dim), num_heads_(num_heads) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("embed_dim", self.embed_dim(), at_least(1));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("kind", self.kind());
  }

  /// Width of the layer's input.
  TORCH_ARG(int64_t, embed_dim);
  /// H, the query heads.
  TORCH_ARG(int64_t, num_heads);
  TORCH_ARG(ForgettingKind, kind) = ForgettingKind::kFoX;
};

/// Forgetting attention (FoX, arXiv 2503.02130) and CABLE (arXiv 2503.08067), always causal: each token t has a decay
/// a_h(t) <= 0, made of the layer's input x_t, which every score from a later query to an earlier key adds,
///
///     score(i, j) = q_i . k_j / sqrt(D) + sum over t = j + 1 .. i of a_h(t)
///
/// Sums go by index. Tokens that key_mask hides and those of other segments add nothing.
/// AttendOptions::is_causal(false) and positions raise. A cache holds a_h(t) of each token.
///
///     ForgettingBias encoding(512, 8);
///     auto out = encoding->attend(q, k, v, AttendOptions().log_decay(encoding->forward(x)));
///
/// Errors: c10::ValueError unless embed_dim and num_heads are at least 1, and for shapes.
class POSENC_API ForgettingBiasImpl : public torch::nn::Cloneable<ForgettingBiasImpl>, public ScoreEncoding {
 public:
  ForgettingBiasImpl(int64_t embed_dim, int64_t num_heads)
      : ForgettingBiasImpl(ForgettingBiasOptions(embed_dim, num_heads)) {}
  explicit ForgettingBiasImpl(ForgettingBiasOptions options);

  void reset() override;
  /// Draws weight anew, as torch::nn::Linear does, and zeroes bias.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, embed_dim) -> a (B, H, T), float32 (float64 for float64), also of half-width parameters and under
  /// autocast: sums run over thousands of tokens.
  at::Tensor forward(const at::Tensor& x);
  /// "log_decay": forward(x).
  TokenState token_state(const at::Tensor& x) override { return {{"log_decay", forward(x)}}; }

  /// call.log_decay is what forward() made of all keys' tokens.
  void add_terms(OpCall& op, const AttendOptions& call) override;

  bool always_causal() const override { return true; }
  bool takes_positions() const override { return false; }
  std::vector<std::string> token_state_names() const override { return {"log_decay"}; }
  std::optional<int64_t> embed_dim() const override { return options.embed_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  ForgettingBiasOptions options;
  /// The parameter (num_heads, embed_dim).
  at::Tensor weight;
  /// The parameter (num_heads) of kFoX, else undefined. At 0 a token keeps about half; ln(t) makes a memory of about t
  /// tokens.
  at::Tensor bias;
};

TORCH_MODULE(ForgettingBias);

/// Raises unless embed_dim and num_heads are at least 1.
POSENC_API void check(const ForgettingBiasOptions& options);

}  // namespace posenc::nn
