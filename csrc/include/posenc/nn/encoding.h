#pragma once

/// The families of encodings, as Attention sees them: a module is added to embeddings, rotates queries and keys, or
/// acts on attention scores.

#include <posenc/export.h>
#include <posenc/nn/options.h>
#include <posenc/ops_attention.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace posenc::attention_ops {
struct FireTerms;
}

namespace posenc::nn {

struct AbsoluteForwardOptions;
struct RotaryForwardOptions;

/// An encoding added to token embeddings.
class POSENC_API AbsoluteEncoding {
 public:
  virtual ~AbsoluteEncoding() = default;
  /// x (B, T, dim) -> x plus the encoding.
  virtual at::Tensor embed(const at::Tensor& x, const AbsoluteForwardOptions& call) = 0;
  /// The width of x that it was made for; absent: any.
  virtual std::optional<int64_t> dim() const { return std::nullopt; }
  /// A, where positions are (A, T) or (A, B, T), several axes; absent where they are (T) or (B, T).
  virtual std::optional<int64_t> position_axes() const { return std::nullopt; }
};

/// An encoding that rotates queries and keys.
class POSENC_API RotaryEncoding {
 public:
  virtual ~RotaryEncoding() = default;
  /// q (B, H, T, D) and k (B, G, T, D) -> both rotated.
  virtual std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                                    const RotaryForwardOptions& call) = 0;
  /// Keys (B, G, T, D) that were rotated, as they would be `by` tokens later (earlier where negative); a magnitude is
  /// in them already, and is not applied again. KVCache::evict() calls this. c10::NotImplementedError by default.
  virtual at::Tensor shift(const at::Tensor& key, int64_t by);
  /// True where the frequencies depend on the length of each call, so that cached keys would not match later queries.
  virtual bool depends_on_call_length() const { return false; }
  /// A, where positions are (A, T) or (A, B, T), several axes; absent where they are (T) or (B, T).
  virtual std::optional<int64_t> position_axes() const { return std::nullopt; }
  /// D, the width of a head that it was made for; absent: any.
  virtual std::optional<int64_t> head_dim() const { return std::nullopt; }
  /// H, the query heads that it was made for; absent: any number.
  virtual std::optional<int64_t> num_heads() const { return std::nullopt; }
};

/// What score encodings need of each token besides its key and value: tensors (B, heads, T) or (B, G, T, D), whose axis
/// 2 counts the tokens, under the name of the option that attend() takes them by ("gate_key", "log_decay").
using TokenState = std::map<std::string, at::Tensor>;

/// Options of a call to a score encoding: the keyword arguments of its op (posenc/ops_attention.h).
struct AttendOptions {
  /// Calls visit(name, option) for each but token_state.
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("is_causal", self.is_causal());
    visit("scale", self.scale());
    visit("key_mask", self.key_mask());
    visit("attn_mask", self.attn_mask());
    visit("window", self.window());
    visit("window_left", self.window_left());
    visit("window_right", self.window_right());
    visit("segment_ids", self.segment_ids());
    visit("q_segment_ids", self.q_segment_ids());
    visit("block_ids", self.block_ids());
    visit("q_positions", self.q_positions());
    visit("k_positions", self.k_positions());
    visit("bias", self.bias());
    visit("softcap", self.softcap());
    visit("softcap_on", self.softcap_on());
    visit("sinks", self.sinks());
    visit("dropout_p", self.dropout_p());
  }

  /// Absent: the op's default.
  TORCH_ARG(std::optional<bool>, is_causal) = std::nullopt;
  /// Absent: the module's own scale, else 1 / sqrt(D).
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  // The others as in posenc/attention_arguments.h.
  TORCH_ARG(std::optional<at::Tensor>, key_mask) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, attn_mask) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, window_left) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, window_right) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, segment_ids) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, q_segment_ids) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, block_ids) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, q_positions) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, k_positions) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  TORCH_ARG(std::optional<double>, softcap) = std::nullopt;
  TORCH_ARG(std::string, softcap_on) = "content";
  TORCH_ARG(std::optional<at::Tensor>, sinks) = std::nullopt;
  TORCH_ARG(double, dropout_p) = 0.0;
  /// State of all Tk tokens, by name.
  TORCH_ARG(TokenState, token_state);

 public:
  /// token_state()["gate_key"]: keys of CoPE's gates, (B, G, Tk, D).
  AttendOptions& gate_key(const std::optional<at::Tensor>& value) { return set_state("gate_key", value); }
  std::optional<at::Tensor> gate_key() const { return state("gate_key"); }
  /// token_state()["log_decay"]: decays of ForgettingBias, (B, H, Tk).
  AttendOptions& log_decay(const std::optional<at::Tensor>& value) { return set_state("log_decay", value); }
  std::optional<at::Tensor> log_decay() const { return state("log_decay"); }

  /// The state `name`, absent where the call has none.
  std::optional<at::Tensor> state(const std::string& name) const {
    const auto found = token_state_.find(name);
    return found == token_state_.end() ? std::nullopt : std::make_optional(found->second);
  }
  /// Sets the state `name`, or removes it.
  AttendOptions& set_state(const std::string& name, const std::optional<at::Tensor>& value) {
    token_state_.erase(name);
    if (value) {
      token_state_.emplace(name, *value);
    }
    return *this;
  }
};

/// A call of posenc::attention() while encodings add their terms to it.
struct OpCall {
  /// (B, H, Tq, D), (B, G, Tk, D) and (B, G, Tk, Dv); value is undefined in logits().
  at::Tensor query, key, value;
  /// Where a term of another encoding is there already, one adds to it.
  AttentionFuncOptions options = {};
  /// What FIRE adds; null: nothing.
  std::shared_ptr<const attention_ops::FireTerms> fire = nullptr;
};

/// An encoding that acts on attention scores. One of your own implements add_terms(), or attend_with_lse() and
/// logits(), or derives from AdditiveEncoding.
class POSENC_API ScoreEncoding {
 public:
  virtual ~ScoreEncoding() = default;

  /// query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv), fused.
  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttendOptions& call = {}) {
    return std::get<0>(attend_with_lse(query, key, value, call));
  }
  /// attend(), and the natural logarithm of each query's sum of exp of the final scores (B, H, Tq).
  virtual std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                             const at::Tensor& value, const AttendOptions& call = {});
  /// The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity: for inspection.
  /// call.dropout_p must be 0.
  virtual at::Tensor logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call = {});
  /// Adds what the encoding does to a call, of which op.options has what `call` gives. Attention asks each of several
  /// score encodings. c10::NotImplementedError by default: the encoding attends alone.
  virtual void add_terms(OpCall& op, const AttendOptions& call);
  /// What query . key is multiplied by where the call gives no scale; absent: 1 / sqrt(D).
  virtual std::optional<double> own_scale() const { return std::nullopt; }

  /// True where the encoding is causal by definition.
  virtual bool always_causal() const { return false; }
  /// False where positions are counted by the encoding itself, from what it sees.
  virtual bool takes_positions() const { return true; }
  /// The layer's input x (B, T, embed_dim) -> state of its tokens. Attention passes it to attend(), and with a cache
  /// that of earlier tokens too. Empty by default.
  virtual TokenState token_state(const at::Tensor& /*x*/) { return {}; }
  /// The names of the token state that attend() and logits() take; others raise c10::ValueError.
  virtual std::vector<std::string> token_state_names() const { return {}; }
  /// True where a call needs the state "gate_key": keys of a projection of their own, which Attention makes and rotates
  /// as it does the keys.
  virtual bool needs_gate_key() const { return false; }
  /// True where the encoding rotates queries and keys itself, and takes them unrotated.
  virtual bool rotates() const { return false; }
  /// The width of the layer's input that it was made for; absent: any.
  virtual std::optional<int64_t> embed_dim() const { return std::nullopt; }
  /// D, the width of a head that it was made for; absent: any.
  virtual std::optional<int64_t> head_dim() const { return std::nullopt; }
  /// H, the query heads that it was made for; absent: any number.
  virtual std::optional<int64_t> num_heads() const { return std::nullopt; }
};

}  // namespace posenc::nn
