#pragma once

#include "encodings.h"
#include "options.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace lm {

/// Multi-head self-attention; the encoding attends.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const ModelOptions& options);
  /// x and the result are (B, T, width).
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear qkv = nullptr;
  torch::nn::Linear out = nullptr;
  std::shared_ptr<AttendImpl> attend;

 private:
  int64_t heads_;
};
TORCH_MODULE(Attention);

/// Attention and a feed-forward layer, each normalised before and added after.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const ModelOptions& options);
  /// x and the result are (B, T, width).
  at::Tensor forward(const at::Tensor& x);

  torch::nn::LayerNorm attention_norm = nullptr;
  Attention attention = nullptr;
  torch::nn::LayerNorm feed_norm = nullptr;
  torch::nn::Linear feed_in = nullptr;
  torch::nn::Linear feed_out = nullptr;
};
TORCH_MODULE(Block);

/// A pre-norm transformer over bytes: scores for the next byte at every position. Names of modules and the order of
/// their initialisation are those of the Python program, so weights and seeds can be exchanged.
class LanguageModelImpl : public torch::nn::Module {
 public:
  static constexpr int64_t kVocabulary = 256;

  /// Throws UserError where the encoding cannot have these sizes.
  explicit LanguageModelImpl(const ModelOptions& options);
  /// tokens (B, T) int64 -> logits (B, T, 256).
  at::Tensor forward(const at::Tensor& tokens);

  ModelOptions options;
  torch::nn::Embedding embedding = nullptr;
  /// Absent where the encoding adds nothing to the embeddings.
  ModulePointer positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(LanguageModel);

}  // namespace lm
