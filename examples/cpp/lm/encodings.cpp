#include "encodings.h"

#include "error.h"

#include <ATen/ops/scaled_dot_product_attention.h>

namespace lm {
namespace {

at::Tensor attend_causally(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
}

}  // namespace

at::Tensor PlainAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return attend_causally(q, k, v);
}

RotaryAttentionImpl::RotaryAttentionImpl(int64_t head_dim)
    : rotary_(register_module("rotary", posenc::nn::Rotary(head_dim))) {}

void RotaryAttentionImpl::rescale(const posenc::scaling::Scaling& scaling) {
  auto options = posenc::nn::RotaryOptions(rotary_->options.head_dim()).scaling(scaling);
  rotary_ = replace_module("rotary", posenc::nn::Rotary(options));
}

at::Tensor RotaryAttentionImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto [rotated_q, rotated_k] = rotary_->forward_qk(q, k);
  return attend_causally(rotated_q, rotated_k, v);
}

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> all = {
      {.name = "rotary",
       .title = "RoPE",
       .attention = [](int64_t head_dim, int64_t) { return std::make_shared<RotaryAttentionImpl>(head_dim); },
       .embedding = {},
       .rescalable = true},
      {.name = "nope",
       .title = "NoPE",
       .attention = [](int64_t, int64_t) { return std::make_shared<PlainAttentionImpl>(); },
       .embedding = {},
       .rescalable = false},
  };
  return all;
}

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const auto& encoding : encodings()) {
    names.push_back(encoding.name);
  }
  return names;
}

const Encoding& find_encoding(const std::string& name) {
  for (const auto& encoding : encodings()) {
    if (encoding.name == name) {
      return encoding;
    }
  }
  throw UserError("the encoding '" + name + "' is not known here");
}

void rescale(torch::nn::Module& model, const posenc::scaling::Scaling& scaling) {
  for (const auto& module : model.modules()) {
    if (auto* rotary = module->as<RotaryAttentionImpl>()) {
      rotary->rescale(scaling);
    }
  }
}

}  // namespace lm
