#include "model.h"

#include "error.h"

#include <posenc/nn/sinusoidal.h>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

namespace lm {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

torch::nn::LayerNorm layer_norm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

}  // namespace

AttentionImpl::AttentionImpl(const ModelOptions& options) : heads_(options.heads) {
  qkv = register_module("qkv", linear(options.width, 3 * options.width, /*bias=*/false));
  out = register_module("out", linear(options.width, options.width, /*bias=*/false));
  attend = register_module("attend", find_encoding(options.encoding).attention(options));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const auto split_heads = [this](const at::Tensor& part) {
    return part.unflatten(-1, {heads_, -1}).transpose(1, 2);  // (B, T, width) -> (B, H, T, D)
  };
  const auto parts = qkv(x).chunk(3, /*dim=*/-1);
  const auto attended = attend->forward(split_heads(parts[0]), split_heads(parts[1]), split_heads(parts[2]), x);
  return out(attended.transpose(1, 2).flatten(2));
}

BlockImpl::BlockImpl(const ModelOptions& options) {
  attention_norm = register_module("attention_norm", layer_norm(options.width));
  attention = register_module("attention", Attention(options));
  feed_norm = register_module("feed_norm", layer_norm(options.width));
  feed_in = register_module("feed_in", linear(options.width, 4 * options.width, /*bias=*/true));
  feed_out = register_module("feed_out", linear(4 * options.width, options.width, /*bias=*/true));
  // A block that starts as the identity lets the first steps be large.
  torch::nn::init::zeros_(attention->out->weight);
  torch::nn::init::zeros_(feed_out->weight);
}

at::Tensor BlockImpl::forward(const at::Tensor& input) {
  const auto x = input + attention(attention_norm(input));
  return x + feed_out(at::gelu(feed_in(feed_norm(x))));
}

LanguageModelImpl::LanguageModelImpl(const ModelOptions& model_options) : options(model_options) {
  embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, options.width));
  try {
    if (const auto& make = find_encoding(options.encoding).embedding) {
      positions = register_module("positions", make(options));
    }
    register_module("blocks", blocks);
    for (int64_t layer = 0; layer < options.layers; ++layer) {
      blocks->push_back(Block(options));
    }
  } catch (const c10::ValueError& error) {
    throw UserError("the encoding '" + options.encoding + "' does not fit: " + error.what_without_backtrace());
  }
  norm = register_module("norm", layer_norm(options.width));
  head = register_module("head", linear(options.width, kVocabulary, /*bias=*/false));
}

at::Tensor LanguageModelImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = embedding(tokens);
  if (positions) {
    x = dynamic_cast<posenc::nn::AbsoluteEncoding&>(*positions).embed(x, {});
  }
  for (const auto& block : *blocks) {
    x = block->as<Block>()->forward(x);
  }
  return head(norm(x));
}

}  // namespace lm
