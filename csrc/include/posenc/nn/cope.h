#pragma once

#include <posenc/nn/encoding.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// What query . x makes the gates of CoPE.
enum class CoPEGate {
  /// The keys: gates are the sigmoid of the attention logits, as in the paper.
  kLogits,
  /// Keys of their own, given to each call as AttendOptions::gate_key.
  kKey,
  /// The values, which are then as wide as the keys.
  kValue,
};

/// Their names in Python and in text.
constexpr std::array<const char*, 3> value_names(CoPEGate) { return {"logits", "key", "value"}; }

/// Options of CoPE.
struct CoPEOptions {
  CoPEOptions(int64_t head_dim, int64_t max_positions) : head_dim_(head_dim), max_positions_(max_positions) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("head_dim", self.head_dim(), at_least(1));
    visit("max_positions", self.max_positions(), at_least(1));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("scale_position_logits", self.scale_position_logits());
    visit("gate", self.gate());
    visit("gate_bias", self.gate_bias(), finite());
  }

  /// D, the width of a head.
  TORCH_ARG(int64_t, head_dim);
  /// P: positions are 0 .. P-1 and those beyond count as P-1.
  TORCH_ARG(int64_t, max_positions);
  /// H: a table per head. Absent: one that all heads share.
  TORCH_ARG(std::optional<int64_t>, num_heads) = std::nullopt;
  /// Multiplies position logits by the scale of the content logits, as Meta's repository does; false: the paper's
  /// listing.
  TORCH_ARG(bool, scale_position_logits) = false;
  TORCH_ARG(CoPEGate, gate) = CoPEGate::kLogits;
  /// Initial value of a parameter gate_bias (H) that is added to the gates' logits; needs num_heads. ln(a / (1 - a))
  /// with a = span / T makes T tokens span about `span` positions at the start. Absent: no such parameter.
  TORCH_ARG(std::optional<double>, gate_bias) = std::nullopt;
};

/// Contextual position encoding (CoPE, arXiv 2405.18719, eq. 3 to 5), always causal: positions count the tokens that a
/// query finds relevant. With s = 1 / sqrt(D):
///
///     gate(i, l) = sigmoid(s q_i . k_l),    p(i, j) = min(sum over l = j .. i of gate(i, l), P - 1)
///     score(i, j) = s q_i . k_j + q_i . pos_emb interpolated at p(i, j)
///
/// Where a position is a whole number below P - 1, as with gates of 1/2, its gradient is the slope of the interval
/// above, q_i . (pos_emb[p + 1] - pos_emb[p]).
///
/// Keys hidden by causality, key_mask, window or segment are neither attended nor counted. Nothing positional can be
/// cached: every new query counts anew. AttendOptions::is_causal(false) and positions raise.
///
///     CoPE encoding(64, 128);
///     auto out = encoding->attend(q, k, v);
class POSENC_API CoPEImpl : public torch::nn::Cloneable<CoPEImpl>, public ScoreEncoding {
 public:
  CoPEImpl(int64_t head_dim, int64_t max_positions) : CoPEImpl(CoPEOptions(head_dim, max_positions)) {}
  explicit CoPEImpl(CoPEOptions options);

  void reset() override;
  /// Zeroes pos_emb and sets gate_bias to its initial value.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// The paper's module form: query (B, H, Tq, D) and attention logits (B, H, Tq, Tk), scaled and masked (hidden keys
  /// -infinity or very negative), -> position logits (B, H, Tq, Tk) to be added, in the dtype of attn_logits. Gates are
  /// sigmoid(attn_logits + gate_bias): with gates from other keys or from values pass their logits. Logits that are not
  /// masked count keys that a query must not see.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& attn_logits);

  void add_terms(OpCall& op, const AttendOptions& call) override;
  /// With gates from values call.gate_key holds the values.

  bool always_causal() const override { return true; }
  bool takes_positions() const override { return false; }
  std::vector<std::string> token_state_names() const override { return {"gate_key"}; }
  bool needs_gate_key() const override { return options.gate() == CoPEGate::kKey; }
  std::optional<int64_t> head_dim() const override { return options.head_dim(); }
  std::optional<int64_t> num_heads() const override { return options.num_heads(); }

  CoPEOptions options;
  /// The parameter (1 or H, D, P).
  at::Tensor pos_emb;
  /// The parameter (H), defined where options.gate_bias() is.
  at::Tensor gate_bias;
};

TORCH_MODULE(CoPE);

/// Raises unless sizes are positive, gate_bias is finite, and num_heads is given with it.
POSENC_API void check(const CoPEOptions& options);

}  // namespace posenc::nn
