#pragma once

/// The attention layer written out in plain ATen, whose gradients are torch's.

#include "module_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>

#include <cmath>
#include <optional>
#include <vector>

namespace {

using namespace posenc::nn;
using at::Tensor;
using torch::nn::AnyModule;

constexpr int64_t kEmbed = 24, kHeads = 4, kKeyHeads = 2, kWidth = 6, kTokens = 110;

/// x / root of the mean of x^2, times weight, over the last axis.
inline Tensor rms_normed(const Tensor& x, const Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6) * weight;
}

struct RootNormImpl : torch::nn::Cloneable<RootNormImpl> {
  explicit RootNormImpl(int64_t width) : width(width) { reset(); }
  void reset() override { weight = register_parameter("weight", at::ones({width})); }
  Tensor forward(const Tensor& x) { return rms_normed(x, weight); }
  int64_t width;
  Tensor weight;
};
TORCH_MODULE(RootNorm);

inline AttentionOptions options() { return AttentionOptions(kEmbed, kHeads).num_kv_heads(kKeyHeads).bias(true); }

inline AttentionOptions normed(int64_t of_query, int64_t of_key) {
  return options().q_norm(AnyModule(RootNorm(of_query))).k_norm(AnyModule(RootNorm(of_key)));
}

inline Attention made(const AttentionOptions& options) {
  at::manual_seed(21);
  return prepared(Attention(options));
}

inline Tensor tokens(int64_t count = kTokens) {
  at::manual_seed(22);
  return at::randn({2, count, kEmbed}, kWide);
}

/// What a query sees by index, where it is the last of `queries`.
inline Tensor causal_mask(int64_t queries = kTokens, int64_t keys = kTokens) {
  return at::arange(keys).unsqueeze(0) <= at::arange(keys - queries, keys).unsqueeze(1);
}

enum class Norm { kNone, kHead, kAllHeads };

/// The layer written out. Absent: as in a plain causal layer.
struct Formula {
  /// Broadcastable to (B, H, Tq, Tk).
  Tensor visible = {}, bias = {};
  double scale = 1.0 / std::sqrt(static_cast<double>(kWidth));
  std::optional<double> softcap = std::nullopt;
  bool caps_sum = false;
  Norm norm = Norm::kNone;
  /// Radians for each token and pair of columns (k, k + D/2): rotary positions.
  Tensor angles = {};
  /// Where keys and values come from.
  Tensor context = {};
};

inline Tensor projected(torch::nn::Linear& linear, const Tensor& x) {
  const Tensor y = x.matmul(linear->weight.t());
  return linear->bias.defined() ? y + linear->bias : y;
}

/// (B, T, N * width) -> (B, N, T, width).
inline Tensor heads_of(const Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

inline Tensor turned(const Tensor& x, const Tensor& angles) {
  if (!angles.defined()) {
    return x;
  }
  const Tensor a = x.slice(-1, 0, kWidth / 2), b = x.slice(-1, kWidth / 2), c = angles.cos(), s = angles.sin();
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

inline Tensor query_or_key(torch::nn::Linear& linear, AnyModule& norm, const Tensor& x, int64_t heads,
                           const Formula& f) {
  Tensor y = projected(linear, x);
  const Tensor weight = norm.is_empty() ? Tensor() : norm.ptr()->named_parameters()["weight"];
  if (f.norm == Norm::kAllHeads) {
    y = rms_normed(y, weight);
  }
  y = heads_of(y, heads);
  return turned(f.norm == Norm::kHead ? rms_normed(y, weight) : y, f.angles);
}

inline Tensor formula(Attention& layer, const Tensor& x, const Formula& f = {}) {
  const auto cap = [&](const Tensor& s) { return *f.softcap * (s / *f.softcap).tanh(); };
  const auto for_heads = [](const Tensor& y) { return y.repeat_interleave(kHeads / kKeyHeads, 1); };
  const Tensor from = f.context.defined() ? f.context : x;
  const Tensor q = query_or_key(layer->q_proj, layer->q_norm, x, kHeads, f);
  const Tensor k = for_heads(query_or_key(layer->k_proj, layer->k_norm, from, kKeyHeads, f));
  const Tensor v = for_heads(heads_of(projected(layer->v_proj, from), kKeyHeads));
  Tensor s = q.matmul(k.transpose(-1, -2)) * f.scale;
  s = f.softcap && !f.caps_sum ? cap(s) : s;
  s = f.bias.defined() ? s + f.bias : s;
  s = f.caps_sum ? cap(s) : s;
  s = s.masked_fill(f.visible.defined() ? ~f.visible : ~causal_mask(), -reference::kInfinity);
  if (layer->sinks.defined()) {
    s = at::cat({s, layer->sinks.view({1, -1, 1, 1}).expand({s.size(0), kHeads, s.size(2), 1})}, -1);
  }
  const Tensor out = s.softmax(-1).slice(-1, 0, k.size(2)).matmul(v);
  return projected(layer->o_proj, out.transpose(1, 2).flatten(2));
}

/// Output, and the gradients of x and of every parameter.
inline void expect_formula(const AttentionOptions& options, const Formula& f,
                           const AttentionForwardOptions& call = {}) {
  auto layer = made(options);
  const Tensor x = tokens().requires_grad_();
  const Tensor actual = layer->forward(x, call), expected = formula(layer, x, f);
  expect_near(actual, expected, 1e-12);
  std::vector<Tensor> sources = layer->parameters();
  sources.push_back(x);
  const Tensor grad = at::randn_like(actual);
  const auto grads = torch::autograd::grad({actual}, sources, {grad});
  const auto wanted = torch::autograd::grad({expected}, sources, {grad});
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_LT(reference::error(grads[i], wanted[i]), 1e-11)
        << "gradient of " << (i + 1 < sources.size() ? layer->named_parameters()[i].key() : "x");
  }
}

inline Tensor rotary_angles() {
  return at::arange(kTokens, kWide).unsqueeze(1) * at::pow(1e4, at::arange(3, kWide) / -3);
}

}  // namespace
