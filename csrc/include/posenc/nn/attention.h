#pragma once

#include <posenc/nn/encoding.h>
#include <posenc/nn/kv_cache.h>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace posenc::nn {

/// Options of Attention.
///
///     Attention attention(AttentionOptions(512, 8).num_kv_heads(2).with(Rotary(64), CoPE(64, 129)));
struct AttentionOptions {
  AttentionOptions(int64_t embed_dim, int64_t num_heads) : embed_dim_(embed_dim), num_heads_(num_heads) {}

  /// Appends encodings, e.g. `with(Rotary(64), ALiBi(8))`.
  template <typename... Modules>
  AttentionOptions& with(const torch::nn::ModuleHolder<Modules>&... modules) {
    (encodings_.push_back(modules.ptr()), ...);
    return *this;
  }

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("embed_dim", self.embed_dim(), at_least(1));
    visit("num_heads", self.num_heads(), at_least(1));
    visit("num_kv_heads", self.num_kv_heads(), at_least(1));
    visit("head_dim", self.head_dim(), at_least(1));
    visit("encodings", self.encodings());
    visit("dropout", self.dropout(), probability());
    visit("output_dropout", self.output_dropout(), probability());
    visit("bias", self.bias());
    visit("output_bias", self.output_bias());
    visit("is_causal", self.is_causal());
    visit("window", self.window(), at_least(1));
    visit("window_left", self.window_left(), at_least(0));
    visit("window_right", self.window_right(), at_least(0));
    visit("scale", self.scale());
    visit("sinks", self.sinks());
    visit("softcap", self.softcap());
    visit("softcap_on", self.softcap_on());
    visit("value_dim", self.value_dim(), at_least(1));
    visit("cross", self.cross());
  }

  /// Width of x.
  TORCH_ARG(int64_t, embed_dim);
  /// H, heads of queries.
  TORCH_ARG(int64_t, num_heads);
  /// G, heads of keys and values, a divisor of num_heads; absent: num_heads.
  TORCH_ARG(std::optional<int64_t>, num_kv_heads) = std::nullopt;
  /// D; absent: embed_dim / num_heads.
  TORCH_ARG(std::optional<int64_t>, head_dim) = std::nullopt;
  /// Encodings of any family: absolute and rotary ones act in their order here, of score encodings there is at most
  /// one.
  TORCH_ARG(std::vector<std::shared_ptr<torch::nn::Module>>, encodings);
  /// Probability with which an attention weight is zeroed in training.
  TORCH_ARG(double, dropout) = 0.0;
  /// Probability with which an element of the output is zeroed in training.
  TORCH_ARG(double, output_dropout) = 0.0;
  /// Of the projections to queries, keys, values and gate keys.
  TORCH_ARG(bool, bias) = false;
  /// Of the output projection; absent: as bias.
  TORCH_ARG(std::optional<bool>, output_bias) = std::nullopt;
  /// Absent: true, but for cross.
  TORCH_ARG(std::optional<bool>, is_causal) = std::nullopt;
  /// Positions that a query sees, its own included; absent: all.
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Instead: how far a query sees to both sides; absent: any distance.
  TORCH_ARG(std::optional<int64_t>, window_left) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, window_right) = std::nullopt;
  /// Multiplies q . k; absent: that of the score encoding, else 1 / sqrt(D).
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  /// Whether a parameter (H) of logits without a value joins the softmax (gpt-oss), initially 0.
  TORCH_ARG(bool, sinks) = false;
  /// Scores become softcap * tanh(score / softcap), "content" or "sum" (posenc/attention_arguments.h).
  TORCH_ARG(std::optional<double>, softcap) = std::nullopt;
  TORCH_ARG(std::string, softcap_on) = "content";
  /// Dv, the width of a head's values; absent: D.
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;
  /// Keys and values come from another sequence (Whisper, T5): not causal, without a window, positions and encodings.
  TORCH_ARG(bool, cross) = false;
  /// Norm queries and keys before rotary encodings: (B, heads, T, D) -> the same, for each head (Qwen3, Gemma 3); or
  /// (B, T, heads * D), where `weight` has heads * D elements (OLMo 2).
  TORCH_ARG(torch::nn::AnyModule, q_norm);
  TORCH_ARG(torch::nn::AnyModule, k_norm);
};

/// Options of a call to Attention.
struct AttentionForwardOptions {
  /// (T) or (B, T), or for encodings over several axes (A, B, T). Absent: 0 and on; after cached tokens the
  /// cache's length and on, or where those came with positions, what follows the largest of each row.
  TORCH_ARG(std::optional<at::Tensor>, positions) = std::nullopt;
  /// (B, Tk) bool, true where a key may be attended; with a cache Tk counts cached and new keys, those that have left
  /// its window too.
  TORCH_ARG(std::optional<at::Tensor>, key_mask) = std::nullopt;
  /// (B, Tk) integer: packed sequences, each of which sees itself alone.
  TORCH_ARG(std::optional<at::Tensor>, segment_ids) = std::nullopt;
  /// bool, broadcastable to (B, H, T, Tk): true where a query may attend to a key.
  TORCH_ARG(std::optional<at::Tensor>, attn_mask) = std::nullopt;
  /// (B, Tk) integer: tokens of one block see each other, also later ones; below 0: no block. With a cache, those of a
  /// block come in one call.
  TORCH_ARG(std::optional<at::Tensor>, block_ids) = std::nullopt;
  /// Broadcastable to (B, H, T, Tk), added to the scores.
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// (B, Tk, embed_dim), in a layer with cross alone: keys and values are made of it. With a cache the first call gives
  /// it, and later ones find its keys and values there.
  TORCH_ARG(std::optional<at::Tensor>, context) = std::nullopt;
  /// Where keys and values of earlier tokens are, and those of x go. One with a window drops what no query of this
  /// layer's window sees, where positions rise from token to token. Not owned.
  TORCH_ARG(std::add_pointer_t<KVCache>, cache) = nullptr;
};

/// Multi-head attention (arXiv 1706.03762) with grouped heads (arXiv 2305.13245) and positional encodings of any kind:
///
///     x <- x + absolute encodings;  q, k, v = projections of x;  rotary encodings rotate q and k, in order
///     y = o_proj(softmax(scores of the score encoding, else q . k / sqrt(D)) v)
///
/// Positions say where tokens are, for absolute and rotary encodings, for distances in scores and for causality: a
/// query sees keys at positions up to its own. Encodings that count for themselves (CoPE, ForgettingBias) are causal by
/// index instead, and so is a layer whose positions have several axes; only encodings over several axes get those,
/// and other absolute ones count by index. Positions that restart within a row need segment_ids.
///
/// A score encoding that makes gates from keys of their own (CoPE with gates by key) adds gate_proj, whose keys rotary
/// encodings rotate as they do the others. One that needs other state of tokens (token_state(), e.g. the decays of
/// ForgettingBias) makes it of x, absolute encodings included.
///
/// Raises c10::ValueError for options that do not fit together: a second score encoding, a score encoding that rotates
/// queries and keys itself together with a rotary one, is_causal(false) with one that is causal by definition, an
/// encoding made for another width or number of heads; in a call for shapes, and where rotary frequencies depend on the
/// length of each call (DynamicNTK, LongRoPE without seq_len) with a cache, or positions are left out after cached ones
/// that are floating or have several axes, or the layer's window is wider than that of the cache. A call that raises
/// leaves the cache as it was.
class POSENC_API AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  AttentionImpl(int64_t embed_dim, int64_t num_heads) : AttentionImpl(AttentionOptions(embed_dim, num_heads)) {}
  explicit AttentionImpl(AttentionOptions options);

  void reset() override;
  /// Draws the projections anew; encodings are left as they are.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;

  /// x (B, T, embed_dim) -> the same shape.
  at::Tensor forward(const at::Tensor& x, const AttentionForwardOptions& call = {});

  AttentionOptions options;
  torch::nn::Linear q_proj = nullptr, k_proj = nullptr, v_proj = nullptr, o_proj = nullptr;
  /// Empty unless the score encoding needs gate keys.
  torch::nn::Linear gate_proj = nullptr;
  /// Empty unless given.
  torch::nn::AnyModule q_norm, k_norm;
  /// (H), undefined unless asked for.
  at::Tensor sinks;
  torch::nn::ModuleList encodings = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(AttentionForwardOptions())})

 private:
  void check_call(const at::Tensor& x, const AttentionForwardOptions& call) const;
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttendOptions& call) const;
  at::Tensor attend_to_context(const at::Tensor& x, const AttentionForwardOptions& call, const AttendOptions& options);
  AttendOptions attend_options(const AttentionForwardOptions& call) const;
  at::Tensor output(const at::Tensor& attended);
  bool is_built_ = false;
};

TORCH_MODULE(Attention);

/// Raises unless the options fit together.
POSENC_API void check(const AttentionOptions& options);

}  // namespace posenc::nn
