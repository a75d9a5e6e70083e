#pragma once

/// The families of encodings, as Attention sees them: a module is added to embeddings, rotates queries and keys, or
/// acts on attention scores.

#include <posenc/export.h>
#include <posenc/nn/options.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <tuple>

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
};

/// An encoding that rotates queries and keys.
class POSENC_API RotaryEncoding {
 public:
  virtual ~RotaryEncoding() = default;
  /// q (B, H, T, D) and k (B, G, T, D) -> both rotated.
  virtual std::tuple<at::Tensor, at::Tensor> rotate(const at::Tensor& q, const at::Tensor& k,
                                                    const RotaryForwardOptions& call) = 0;
  /// True where the frequencies depend on the length of each call, so that cached keys would not match later queries.
  virtual bool depends_on_call_length() const { return false; }
  /// A, where positions are (A, T) or (A, B, T), several axes; absent where they are (T) or (B, T).
  virtual std::optional<int64_t> position_axes() const { return std::nullopt; }
  /// D, the width of a head that it was made for; absent: any.
  virtual std::optional<int64_t> head_dim() const { return std::nullopt; }
  /// H, the query heads that it was made for; absent: any number.
  virtual std::optional<int64_t> num_heads() const { return std::nullopt; }
};

/// Options of a call to a score encoding: the keyword arguments of its op (posenc/ops_attention.h).
struct AttendOptions {
  /// Absent: the op's default.
  TORCH_ARG(std::optional<bool>, is_causal) = std::nullopt;
  /// Absent: the module's own scale, else 1 / sqrt(D).
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, key_mask) = std::nullopt;
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, segment_ids) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, q_positions) = std::nullopt;
  TORCH_ARG(std::optional<at::Tensor>, k_positions) = std::nullopt;
  TORCH_ARG(double, dropout_p) = 0.0;
  /// Keys of CoPE's gates, (B, G, Tk, D).
  TORCH_ARG(std::optional<at::Tensor>, gate_key) = std::nullopt;
  /// Decays of ForgettingBias, (B, H, Tk).
  TORCH_ARG(std::optional<at::Tensor>, log_decay) = std::nullopt;
};

/// An encoding that acts on attention scores.
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
                                                             const at::Tensor& value,
                                                             const AttendOptions& call = {}) = 0;
  /// The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity: for inspection.
  /// call.dropout_p must be 0.
  virtual at::Tensor logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call = {}) = 0;

  /// True where the encoding is causal by definition.
  virtual bool always_causal() const { return false; }
  /// False where positions are counted by the encoding itself, from what it sees.
  virtual bool takes_positions() const { return true; }
  /// True where a call needs gate keys beside the keys.
  virtual bool needs_gate_key() const { return false; }
  /// True where a call needs log_decay() of the layer's input.
  virtual bool needs_log_decay() const { return false; }
  /// The layer's input x (B, T, embed_dim) -> what its tokens add to scores, (B, H, T), float32 (float64 for float64).
  /// Undefined unless needs_log_decay().
  virtual at::Tensor log_decay(const at::Tensor& /*x*/) { return {}; }
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
