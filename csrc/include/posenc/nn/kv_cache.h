#pragma once

#include <posenc/export.h>
#include <posenc/nn/encoding.h>
#include <posenc/nn/options.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace posenc::nn {

/// Options of KVCache.
struct KVCacheOptions {
  KVCacheOptions(int64_t batch_size, int64_t num_kv_heads, int64_t max_length, int64_t head_dim)
      : batch_size_(batch_size), num_kv_heads_(num_kv_heads), max_length_(max_length), head_dim_(head_dim) {}

  /// Calls visit(name, option, rule) for each (posenc/nn/options.h).
  template <typename Self, typename Visit>
  static void describe(Self& self, Visit&& visit) {
    visit("batch_size", self.batch_size(), at_least(1));
    visit("num_kv_heads", self.num_kv_heads(), at_least(1));
    visit("max_length", self.max_length(), at_least(1));
    visit("head_dim", self.head_dim(), at_least(1));
    visit("value_dim", self.value_dim(), at_least(1));
    visit("window", self.window(), at_least(1));
    visit("dtype", self.dtype());
    visit("device", self.device());
  }

  /// B.
  TORCH_ARG(int64_t, batch_size);
  /// G.
  TORCH_ARG(int64_t, num_kv_heads);
  /// Tokens that fit; with `window` those held at once. A multiple of `window` seldom moves them.
  TORCH_ARG(int64_t, max_length);
  /// D, the width of keys.
  TORCH_ARG(int64_t, head_dim);
  /// Dv, the width of values, where it is another (multi-head latent attention); absent: head_dim.
  TORCH_ARG(std::optional<int64_t>, value_dim) = std::nullopt;
  /// Tokens that a query sees, its own included, as of Attention; at most max_length. Absent: all.
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  TORCH_ARG(at::ScalarType, dtype) = at::kFloat;
  TORCH_ARG(at::Device, device) = at::kCPU;
};

/// Options of KVCache::append().
struct KVCacheAppendOptions {
  /// (T) or (B, T), integer or floating; absent: next_positions(). (A, B, T), over several axes, is not stored, but
  /// later tokens then need positions too.
  TORCH_ARG(std::optional<at::Tensor>, positions) = std::nullopt;
  /// State of the new tokens, by name: (B, G, T, D) of the cache's dtype, or (B, heads, T), float32 (float64 in a
  /// float64 cache). It comes with every token or with none.
  TORCH_ARG(TokenState, token_state);
};

/// Keys and values of the tokens that one attention layer has seen, for decoding. Memory is allocated once; what it
/// returns are views of it, which later calls extend or overwrite. For inference: tensors that require a gradient raise
/// while gradients are recorded.
///
/// Attention (posenc/nn/attention.h) stores keys as they are attended: after rotary encodings. Encodings that rotate
/// keys themselves (ReRoPE, SelfExtend) get them from here unrotated.
///
/// With a window the cache holds what queries with this window see, however many tokens come: the last window - 1 of
/// earlier calls, and those of the last call. Tokens keep their numbers, so length() counts all; the first dropped() of
/// them are gone. Where memory is full, what is held moves to the front of new memory.
///
///     KVCache cache(KVCacheOptions(/*batch_size=*/1, /*num_kv_heads=*/8, /*max_length=*/4096, /*head_dim=*/128));
///     auto y = attention->forward(x, AttentionForwardOptions().cache(&cache));
class POSENC_API KVCache {
 public:
  /// c10::ValueError unless all sizes are positive, c10::TypeError unless dtype is floating.
  explicit KVCache(const KVCacheOptions& options);
  KVCache& operator=(const KVCache&) = delete;
  KVCache(KVCache&&) = default;
  KVCache& operator=(KVCache&&) = default;

  /// Stores new tokens and returns keys() and values(), those of all so far that have not left the window. k (B, G, T,
  /// D) and v (B, G, T, Dv), of the cache's dtype and on its device.
  ///
  /// Raises, before anything is stored: c10::ValueError for shapes, devices and more tokens than fit, c10::TypeError
  /// for dtypes, c10::Error where a tensor requires a gradient while gradients are recorded.
  std::tuple<at::Tensor, at::Tensor> append(const at::Tensor& k, const at::Tensor& v, const KVCacheAppendOptions& call);
  /// The same with the state "gate_key" (of CoPE) and "log_decay" (of ForgettingBias).
  std::tuple<at::Tensor, at::Tensor> append(const at::Tensor& k, const at::Tensor& v,
                                            const std::optional<at::Tensor>& gate_key = std::nullopt,
                                            const std::optional<at::Tensor>& positions = std::nullopt,
                                            const std::optional<at::Tensor>& log_decay = std::nullopt);

  /// Tokens so far.
  int64_t length() const { return length_; }
  /// How many of them have left the window; views begin with the first that has not.
  int64_t dropped() const { return dropped_; }
  /// View (B, G, length() - dropped(), D).
  at::Tensor keys() const { return held(keys_); }
  /// View (B, G, length() - dropped(), Dv).
  at::Tensor values() const { return held(values_); }
  /// The state of these tokens, by name: views whose axis 2 has length() - dropped() entries.
  TokenState token_state() const;
  /// token_state()["gate_key"], absent where tokens came without.
  std::optional<at::Tensor> gate_keys() const { return state_of("gate_key"); }
  /// token_state()["log_decay"], absent where tokens came without.
  std::optional<at::Tensor> log_decay() const { return state_of("log_decay"); }
  /// View (B, length() - dropped()), absent where no token came with a position. Integer; float32 where all came as
  /// float32 or narrower; else float64, which holds whole numbers to 2^53 exactly.
  std::optional<at::Tensor> positions() const;
  /// Positions (B, tokens) of new tokens that come without: in each row those that follow its largest. Absent where no
  /// token came with a position: new ones then count by their place in the cache. c10::ValueError where cached
  /// positions are floating or have several axes, so that nothing says which come next.
  std::optional<at::Tensor> next_positions(int64_t tokens) const;

  /// Forgets all tokens.
  void reset() { crop(0); }
  /// Forgets all but the first `length` tokens; the last -length ones where it is negative. c10::ValueError unless it
  /// is from -length() to length(). With a window, tokens of the last call can be forgotten, or all, once earlier ones
  /// are gone.
  void crop(int64_t length);
  /// Forgets `count` tokens from token `start` on; later ones move up (StreamingLLM, arXiv 2309.17453). The cache is
  /// then as if it had been filled with the remaining tokens alone, each at its new place: stored positions of those
  /// that move fall by `count`, and `rotary`, the encoding that rotated the keys, turns them, and gate keys, back by as
  /// much. In float16 and bfloat16 each eviction rounds these keys anew. nullptr: keys stay as they are, which suits
  /// layers without rotary encodings, and those that cache unrotated keys (ReRoPE, SelfExtend).
  ///
  ///     cache.evict(4, 256, rope.get());  // rope is a Rotary
  ///
  /// Raises, before anything is changed: c10::ValueError for tokens that are not in the cache, where others have left
  /// its window already, and for a rotary encoding over several axes, c10::NotImplementedError for one without shift().
  void evict(int64_t start, int64_t count, RotaryEncoding* rotary = nullptr);
  /// Row b becomes what row index[b] was: keys, values, token state and positions, as beam search needs. index (B),
  /// int64 or int32; rows may come more than once, or not at all. c10::ValueError for another shape or device, or a row
  /// that is not there, c10::TypeError for another dtype; nothing is changed then.
  void reorder(const at::Tensor& index);
  /// An independent cache with the same tokens and room.
  KVCache copy() const;

  const KVCacheOptions& options() const { return options_; }

 private:
  friend class AttentionImpl;

  /// Shares memory; see copy(). Later tokens change nothing of what it holds: they go to other places.
  KVCache(const KVCache&) = default;

  /// The part of memory for tokens `start` to `end`.
  at::Tensor held(const at::Tensor& stored, int64_t start, int64_t end) const;
  at::Tensor held(const at::Tensor& stored) const { return held(stored, dropped_, length_); }
  void shorten(int64_t length);
  /// Moves the tokens to the front of new memory.
  void renew();
  /// Calls visit(memory) for all.
  template <typename Visit>
  void for_stored(Visit&& visit);
  std::optional<at::Tensor> state_of(const char* name) const;
  void check(const at::Tensor& x, const char* name, int64_t tokens, int64_t width) const;
  void check_state(const TokenState& state, int64_t tokens) const;
  void check_per_head(const at::Tensor& x, const char* name, int64_t tokens) const;
  void check_place(const at::Tensor& x, const char* name) const;
  void check_positions(const at::Tensor& positions, int64_t tokens) const;
  void check_index(const at::Tensor& index) const;
  void check_eviction(int64_t start, int64_t count, const RotaryEncoding* rotary) const;
  void store_positions(const std::optional<at::Tensor>& positions, int64_t tokens);

  KVCacheOptions options_;
  /// Of tokens: how many came, the first that is held, and the one whose place is the first in memory.
  int64_t length_ = 0, dropped_ = 0, origin_ = 0;
  /// (B, G, max_length, D or Dv).
  at::Tensor keys_, values_;
  /// With max_length entries on axis 2.
  TokenState token_state_;
  /// (B, max_length), undefined until given.
  at::Tensor positions_;
  /// The first token whose positions had several axes.
  std::optional<int64_t> first_of_several_axes_;
};

}  // namespace posenc::nn
