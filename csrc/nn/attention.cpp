#include <posenc/nn/attention.h>

#include "common/checks.h"
#include "nn/attention_options.h"
#include "nn/describe.h"
#include "nn/score_call.h"

#include <posenc/nn/rotary.h>
#include <posenc/nn/sinusoidal.h>
#include <posenc/ops_attention.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <algorithm>

namespace posenc::nn {
namespace {

/// Whether test(score) is true of one of the score encodings.
template <typename Test>
bool any_score(const torch::nn::ModuleList& encodings, const Test& test) {
  const auto scores = members<ScoreEncoding>(encodings);
  return std::any_of(scores.begin(), scores.end(), test);
}

/// (B, T, N * width) -> (B, N, T, width), with as many heads as there are: a shard has fewer.
at::Tensor split_heads(const at::Tensor& x, int64_t width) { return x.unflatten(-1, {-1, width}).transpose(1, 2); }

/// The same, normed over all heads where the norm is as wide as they are.
at::Tensor normed(torch::nn::AnyModule& norm, const at::Tensor& x, int64_t width) {
  if (norm.is_empty()) {
    return split_heads(x, width);
  }
  const auto parameters = norm.ptr()->named_parameters(/*recurse=*/false);
  const at::Tensor* weight = parameters.find("weight");
  const bool all = weight != nullptr && weight->dim() == 1 && weight->size(0) != width && weight->size(0) == x.size(2);
  return all ? split_heads(norm.forward(x), width) : norm.forward(split_heads(x, width));
}

torch::nn::Linear projection(int64_t from, int64_t to, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(bias));
}

}  // namespace

AttentionImpl::AttentionImpl(AttentionOptions options) : options(std::move(options)) { reset(); }

void AttentionImpl::reset() {
  check(options);
  const int64_t width = options.embed_dim(), d = head_width(options), all = options.num_heads() * d,
                kv = kv_heads(options) * d;
  q_proj = register_module("q_proj", projection(width, all, options.bias()));
  k_proj = register_module("k_proj", projection(width, kv, options.bias()));
  const int64_t of_values = value_width(options);
  v_proj = register_module("v_proj", projection(width, kv_heads(options) * of_values, options.bias()));
  o_proj = register_module(
      "o_proj", projection(options.num_heads() * of_values, width, options.output_bias().value_or(options.bias())));
  // A copy of the layer has norms of its own.
  const auto own = [&](const char* name, const torch::nn::AnyModule& given) {
    torch::nn::AnyModule norm = is_built_ && !given.is_empty() ? given.clone() : given;
    if (!norm.is_empty()) {
      register_module(name, norm.ptr());
    }
    return norm;
  };
  q_norm = own("q_norm", options.q_norm());
  k_norm = own("k_norm", options.k_norm());
  is_built_ = true;
  if (options.sinks()) {
    sinks = register_parameter("sinks", at::zeros({options.num_heads()}));
  }
  encodings = torch::nn::ModuleList();
  for (const auto& module : options.encodings()) {
    encodings->push_back(module);
  }
  if (any_score(encodings, [](const auto* score) { return score->needs_gate_key(); })) {
    gate_proj = register_module("gate_proj", projection(width, kv, options.bias()));
  }
  register_module("encodings", encodings);
}

void AttentionImpl::reset_parameters() {
  for (auto* linear : {&q_proj, &k_proj, &v_proj, &o_proj, &gate_proj}) {
    if (!linear->is_empty()) {
      (*linear)->reset_parameters();
    }
  }
  if (sinks.defined()) {
    torch::nn::init::zeros_(sinks);
  }
}

std::shared_ptr<torch::nn::Module> AttentionImpl::clone(const std::optional<at::Device>& device) const {
  auto copy = std::static_pointer_cast<AttentionImpl>(Cloneable::clone(device));
  // What the copy was made from names this module's encodings and norms.
  copy->options.encodings({copy->encodings->begin(), copy->encodings->end()}).q_norm(copy->q_norm).k_norm(copy->k_norm);
  return copy;
}

void AttentionImpl::pretty_print(std::ostream& stream) const {
  auto shown = options;
  shown.num_kv_heads(kv_heads(options))
      .head_dim(head_width(options))
      .is_causal(is_causal(options))
      .value_dim(value_width(options))
      .output_bias(options.output_bias().value_or(options.bias()));
  print_options(stream, "Attention", shown);
}

void AttentionImpl::check_call(const at::Tensor& x, const AttentionForwardOptions& call) const {
  if (x.defined()) {
    check_dense("Attention", "x", x);
  }
  TORCH_CHECK_VALUE(x.defined() && x.dim() == 3 && x.size(2) == options.embed_dim(),
                    "Attention: expected x of shape (batch, length, embed_dim) with embed_dim ", options.embed_dim(),
                    ", but got ", x.defined() ? c10::str(x.sizes()) : "an undefined tensor");
  const auto& positions = call.positions();
  check_dense("Attention", "positions", positions);
  if (positions) {
    const int64_t dims = positions->dim();
    const bool fits = dims >= 1 && dims <= 3 && positions->size(-1) == x.size(1) &&
                      (dims == 1 || positions->size(-2) == x.size(0) || positions->size(-2) == 1);
    TORCH_CHECK_VALUE(fits,
                      "Attention: expected positions of shape (length), (batch, length) or (axes, batch, length) "
                      "with x of shape ",
                      x.sizes(), ", but got ", positions->sizes());
    const bool by_index = any_score(encodings, [](const auto* score) { return !score->takes_positions(); });
    TORCH_CHECK_VALUE(
        !by_index || !any_score(encodings, [](const auto* score) { return score->takes_positions(); }),
        "Attention: expected no positions with a score encoding that goes by index, and one of distances: "
        "leave positions out, so that both count tokens");
    TORCH_CHECK_VALUE(dims < 3 || members<ScoreEncoding>(encodings).empty(),
                      "Attention: expected positions of shape (length) or (batch, length) with a score encoding, "
                      "whose distances have one axis, but got ",
                      positions->sizes());
  }
  if (const auto* cache = call.cache(); cache != nullptr && cache->options().window()) {
    const int64_t kept = *cache->options().window();
    const auto reach = options.window_left() ? std::make_optional(*options.window_left() + 1) : options.window();
    TORCH_CHECK_VALUE(reach && *reach <= kept, "Attention: expected a window of at most ", kept,
                      ", that of the cache, which drops what is further back, but got ",
                      reach ? c10::str(*reach) : "none");
  }
  const auto rotary = members<RotaryEncoding>(encodings);
  bool axial = !rotary.empty();
  for (const auto* encoding : members<AbsoluteEncoding>(encodings)) {
    const auto axes = encoding->position_axes();
    axial = axial || axes;
    TORCH_CHECK_VALUE(!axes || (positions && positions->dim() == 3 && positions->size(0) == *axes),
                      "Attention: expected positions of shape (", axes.value_or(0),
                      ", batch, length) for its absolute encoding, but got ",
                      positions ? c10::str(positions->sizes()) : "none");
  }
  if (positions && positions->dim() == 3) {
    TORCH_CHECK_VALUE(axial,
                      "Attention: expected a rotary or absolute encoding that takes positions of several axes, "
                      "with positions of shape ",
                      positions->sizes());
  }
  for (const auto* encoding : rotary) {
    const auto axes = encoding->position_axes();
    if (positions) {
      const bool several = positions->dim() == 3;
      TORCH_CHECK_VALUE(several == axes.has_value() && (!several || positions->size(0) == *axes),
                        "Attention: expected positions of shape ",
                        axes ? c10::str("(", *axes, ", batch, length)") : "(length) or (batch, length)",
                        " for its rotary encoding, but got ", positions->sizes());
    }
    TORCH_CHECK_VALUE(call.cache() == nullptr || !encoding->depends_on_call_length(),
                      "Attention: a rotary scaling that depends on the length of each call turns cached keys and later "
                      "queries differently: give the rotary encoding seq_len, one length for all calls");
  }
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const AttentionForwardOptions& call) {
  check_call(x, call);
  if (options.cross()) {
    return attend_to_context(x, call, attend_options(call));
  }
  TORCH_CHECK_VALUE(!call.context(), "Attention: expected no context in a layer that was made without cross");
  KVCache* cache = call.cache();
  const int64_t start = cache == nullptr ? 0 : cache->length();
  auto positions = call.positions();
  if (cache != nullptr && !positions) {
    positions = cache->next_positions(x.size(1));
  }
  const bool several_axes = positions && positions->dim() == 3;
  // Where tokens are on the one axis of distances and causality.
  const auto places = several_axes ? std::nullopt : positions;

  at::Tensor embedded = x;
  for (auto* encoding : members<AbsoluteEncoding>(encodings)) {
    const auto& own = encoding->position_axes() ? positions : places;
    embedded = encoding->embed(embedded, AbsoluteForwardOptions().positions(own).offset(own ? 0 : start));
  }
  const int64_t width = head_width(options);
  at::Tensor q = normed(q_norm, q_proj->forward(embedded), width), k = normed(k_norm, k_proj->forward(embedded), width),
             v = split_heads(v_proj->forward(embedded), value_width(options));
  const auto scores = members<ScoreEncoding>(encodings);
  TokenState state;
  for (auto* score : scores) {
    state.merge(score->token_state(embedded));
  }
  at::Tensor gate_key;
  if (!gate_proj.is_empty()) {
    gate_key = split_heads(gate_proj->forward(embedded), width);
  }
  const auto rotation = RotaryForwardOptions().positions(positions).offset(positions ? 0 : start);
  for (auto* encoding : members<RotaryEncoding>(encodings)) {
    if (gate_key.defined()) {
      gate_key = std::get<1>(encoding->rotate(gate_key, gate_key, rotation));
    }
    std::tie(q, k) = encoding->rotate(q, k, rotation);
  }
  if (gate_key.defined()) {
    state["gate_key"] = gate_key;
  }

  auto attended = attend_options(call).token_state(state);
  if (cache == nullptr) {
    return output(attend(q, k, v, attended.q_positions(places).k_positions(places)));
  }
  KVCache before(*cache);
  const auto [keys, values] = cache->append(k, v, KVCacheAppendOptions().positions(positions).token_state(state));
  try {
    attended.token_state(cache->token_state());
    auto known = cache->positions();
    if (const int64_t dropped = cache->dropped(); dropped > 0) {
      const auto visible = [&](const std::optional<at::Tensor>& mask) {
        return mask && mask->size(-1) != 1 ? std::make_optional(mask->slice(-1, dropped)) : mask;
      };
      attended.key_mask(visible(call.key_mask()))
          .segment_ids(visible(call.segment_ids()))
          .attn_mask(visible(call.attn_mask()))
          .block_ids(visible(call.block_ids()))
          .bias(visible(call.bias()));
      if (!known && !scores.empty()) {  // some of which ask where tokens are, not just how far apart
        known = at::arange(dropped, cache->length(), at::TensorOptions(at::kLong).device(k.device()));
      }
    }
    if (known) {
      attended.k_positions(known).q_positions(known->slice(-1, known->size(-1) - x.size(1)));
    }
    return output(attend(q, keys, values, attended));
  } catch (...) {
    *cache = std::move(before);
    throw;
  }
}

AttendOptions AttentionImpl::attend_options(const AttentionForwardOptions& call) const {
  return AttendOptions()
      .key_mask(call.key_mask())
      .segment_ids(call.segment_ids())
      .attn_mask(call.attn_mask())
      .block_ids(call.block_ids())
      .bias(call.bias())
      .window(options.window())
      .window_left(options.window_left())
      .window_right(options.window_right())
      .scale(options.scale())
      .sinks(where_defined(sinks))
      .softcap(options.softcap())
      .softcap_on(options.softcap_on())
      .dropout_p(is_training() ? options.dropout() : 0.0);
}

at::Tensor AttentionImpl::output(const at::Tensor& attended) {
  const at::Tensor y = o_proj->forward(attended.transpose(1, 2).flatten(2));
  return at::dropout(y, options.output_dropout(), is_training());
}

at::Tensor AttentionImpl::attend_to_context(const at::Tensor& x, const AttentionForwardOptions& call,
                                            const AttendOptions& attended) {
  TORCH_CHECK_VALUE(!call.positions() && !call.block_ids(),
                    "Attention: expected neither positions nor block_ids in a layer with cross");
  KVCache* cache = call.cache();
  const bool cached = cache != nullptr && cache->length() > 0;
  TORCH_CHECK_VALUE(call.context() || cached,
                    "Attention: expected context (batch, length, embed_dim) with cross, but got none");
  TORCH_CHECK_VALUE(!call.context() || !cached,
                    "Attention: expected no context, whose keys and values the cache holds: reset() forgets them");
  const int64_t width = head_width(options);
  const at::Tensor q = normed(q_norm, q_proj->forward(x), width);
  if (cached) {
    return output(attend(q, cache->keys(), cache->values(), attended));
  }
  const at::Tensor& context = *call.context();
  check_dense("Attention", "context", context);
  TORCH_CHECK_VALUE(context.dim() == 3 && context.size(0) == x.size(0) && context.size(2) == options.embed_dim(),
                    "Attention: expected context of shape (", x.size(0), ", length, ", options.embed_dim(),
                    "), but got ", context.sizes());
  const at::Tensor k = normed(k_norm, k_proj->forward(context), width),
                   v = split_heads(v_proj->forward(context), value_width(options));
  if (cache == nullptr) {
    return output(attend(q, k, v, attended));
  }
  KVCache before(*cache);
  const auto [keys, values] = cache->append(k, v);
  try {
    return output(attend(q, keys, values, attended));
  } catch (...) {
    *cache = std::move(before);
    throw;
  }
}

at::Tensor AttentionImpl::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttendOptions& call) const {
  const auto scores = members<ScoreEncoding>(encodings);
  auto own = call;
  if (!any_score(encodings, [](const auto* score) { return score->always_causal(); })) {
    own.is_causal(is_causal(options));
  }
  if (any_score(encodings, [](const auto* score) { return !score->takes_positions(); })) {
    own.q_positions(std::nullopt).k_positions(std::nullopt);
  }
  if (scores.size() == 1) {
    return scores.front()->attend(q, k, v, own);
  }
  return std::get<0>(nn::attend(op_call(scores, q, k, v, own)));
}

}  // namespace posenc::nn
