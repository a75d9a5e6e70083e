#pragma once

#include <posenc/nn/rotary.h>
#include <posenc/scaling.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lm {

/// How a layer attends, given its positional encoding: the part of the model that posenc supplies.
class AttendImpl : public torch::nn::Module {
 public:
  /// q, k, v and the result are (B, H, T, D).
  virtual at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;
};

/// How a token embedding learns its position.
class EmbedImpl : public torch::nn::Module {
 public:
  /// x and the result are (B, T, width).
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// Causal attention without any position: the causal mask alone tells order (NoPE).
class PlainAttentionImpl : public AttendImpl {
 public:
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
};

/// Causal attention over queries and keys that posenc::nn::Rotary has turned by their positions.
class RotaryAttentionImpl : public AttendImpl {
 public:
  explicit RotaryAttentionImpl(int64_t head_dim);

  /// Uses another context extension from now on; no weight depends on it.
  void rescale(const posenc::scaling::Scaling& scaling);
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  posenc::nn::Rotary rotary_;
};

/// How an encoding enters the model.
struct Encoding {
  std::string name;
  /// Name in tables.
  std::string title;
  /// Makes the attention of a layer.
  std::function<std::shared_ptr<AttendImpl>(int64_t head_dim, int64_t heads)> attention;
  /// Makes the embedding with positions, where the encoding has one.
  std::function<std::shared_ptr<EmbedImpl>(int64_t width)> embedding;
  /// The attention is a RotaryAttention, so the scalings apply.
  bool rescalable = false;
};

/// The encodings that a model can be trained with.
const std::vector<Encoding>& encodings();
std::vector<std::string> encoding_names();
/// Throws UserError for an unknown name.
const Encoding& find_encoding(const std::string& name);

/// Gives every rotary attention of the model another context extension.
void rescale(torch::nn::Module& model, const posenc::scaling::Scaling& scaling);

}  // namespace lm
