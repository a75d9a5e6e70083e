#include <posenc/nn/kv_cache.h>

#include "nn/describe.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace posenc::nn {
namespace {

void check_cache_options(const KVCacheOptions& o) {
  check_options("KVCache", o);
  TORCH_CHECK_TYPE(at::isFloatingType(o.dtype()), "KVCache: expected a floating dtype, but got ", o.dtype());
}

/// Of decays, which are summed over all tokens.
at::ScalarType sum_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Memory that stays writable outside an inference mode in which it may be made.
at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  const c10::InferenceMode normal(false);
  return at::empty(shape, at::TensorOptions(dtype).device(device));
}

}  // namespace

KVCache::KVCache(const KVCacheOptions& options) : options_(options) {
  check_cache_options(options_);
  const at::DimVector shape{options_.batch_size(), options_.num_kv_heads(), options_.max_length(), options_.head_dim()};
  keys_ = allocate(shape, options_.dtype(), options_.device());
  values_ = allocate(shape, options_.dtype(), options_.device());
}

std::tuple<at::Tensor, at::Tensor> KVCache::append(const at::Tensor& k, const at::Tensor& v,
                                                   const std::optional<at::Tensor>& gate_key,
                                                   const std::optional<at::Tensor>& positions,
                                                   const std::optional<at::Tensor>& log_decay) {
  TORCH_CHECK_VALUE(k.dim() == 4, "KVCache: expected k of shape (batch, heads, tokens, head_dim), but got ", k.sizes());
  const int64_t tokens = k.size(2);
  check(k, "k", tokens);
  check(v, "v", tokens);
  check_complete("gate_key", gate_key.has_value(), gate_keys_.defined());
  if (gate_key) {
    check(*gate_key, "gate_key", tokens);
  }
  check_complete("log_decay", log_decay.has_value(), log_decay_.defined());
  if (log_decay) {
    check_log_decay(*log_decay, tokens);
  }
  if (positions) {
    check_positions(*positions, tokens);
  }
  const int64_t end = length_ + tokens;
  TORCH_CHECK_VALUE(end <= options_.max_length(), "KVCache: expected at most max_length ", options_.max_length(),
                    " tokens, but got ", tokens, " new after ", length_, " cached, ", end, " in all");

  if (length_ == 0) {  // an empty call before may have left some, which bind nobody
    gate_keys_.reset();
    log_decay_.reset();
  }
  keys_.narrow(2, length_, tokens).copy_(k);
  values_.narrow(2, length_, tokens).copy_(v);
  if (gate_key) {
    if (!gate_keys_.defined()) {
      gate_keys_ = allocate(keys_.sizes(), options_.dtype(), options_.device());
    }
    gate_keys_.narrow(2, length_, tokens).copy_(*gate_key);
  }
  if (log_decay) {
    if (!log_decay_.defined()) {
      log_decay_ = allocate({options_.batch_size(), log_decay->size(1), options_.max_length()},
                            log_decay->scalar_type(), options_.device());
    }
    log_decay_.narrow(2, length_, tokens).copy_(*log_decay);
  }
  store_positions(positions, tokens);
  length_ = end;
  return {keys_.narrow(2, 0, end), values_.narrow(2, 0, end)};
}

void KVCache::check(const at::Tensor& x, const char* name, int64_t tokens) const {
  const at::DimVector shape{options_.batch_size(), options_.num_kv_heads(), tokens, options_.head_dim()};
  TORCH_CHECK_VALUE(x.sizes() == shape, "KVCache: expected ", name, " of shape ", at::IntArrayRef(shape), ", but got ",
                    x.sizes());
  TORCH_CHECK_TYPE(x.scalar_type() == options_.dtype(), "KVCache: expected ", name, " of the cache's dtype ",
                   options_.dtype(), ", but got ", x.scalar_type());
  check_place(x, name);
}

void KVCache::check_log_decay(const at::Tensor& x, int64_t tokens) const {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(0) == options_.batch_size() && x.size(2) == tokens &&
                        (length_ == 0 || !log_decay_.defined() || x.size(1) == log_decay_.size(1)),
                    "KVCache: expected log_decay of shape (", options_.batch_size(), ", ",
                    log_decay_.defined() ? c10::str(log_decay_.size(1)) : "heads", ", ", tokens, "), but got ",
                    x.sizes());
  const at::ScalarType dtype = sum_dtype(options_.dtype());
  TORCH_CHECK_TYPE(x.scalar_type() == dtype, "KVCache: expected log_decay to be ", dtype, " in a cache of ",
                   options_.dtype(), ", but got ", x.scalar_type());
  check_place(x, "log_decay");
}

void KVCache::check_complete(const char* name, bool given, bool stored) const {
  TORCH_CHECK_VALUE(length_ == 0 || given == stored, "KVCache: expected ", name,
                    " with every token or with none, but the cached ones came ", stored ? "with" : "without");
}

void KVCache::check_place(const at::Tensor& x, const char* name) const {
  TORCH_CHECK_VALUE(x.device() == keys_.device(), "KVCache: expected ", name, " on the cache's device ", keys_.device(),
                    ", but got ", x.device());
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()),
              "KVCache: a cache is for inference and passes no gradient on, but ", name,
              " requires one: call within torch.no_grad(), or detach it");
}

void KVCache::check_positions(const at::Tensor& positions, int64_t tokens) const {
  const bool shape =
      (positions.dim() == 1 ||
       (positions.dim() == 2 && (positions.size(0) == options_.batch_size() || positions.size(0) == 1))) &&
      positions.size(-1) == tokens;
  TORCH_CHECK_VALUE(shape, "KVCache: expected positions of shape (", tokens, ") or (", options_.batch_size(), ", ",
                    tokens, "), but got ", positions.sizes());
  const at::ScalarType dtype = positions.scalar_type();
  TORCH_CHECK_TYPE(dtype != at::kBool && !at::isComplexType(dtype),
                   "KVCache: expected positions of an integer or floating dtype, but got ", dtype);
  TORCH_CHECK_VALUE(positions.device() == keys_.device(), "KVCache: expected positions on the cache's device ",
                    keys_.device(), ", but got ", positions.device());
}

void KVCache::store_positions(const std::optional<at::Tensor>& positions, int64_t tokens) {
  if (!positions && !positions_.defined()) {
    return;
  }
  const auto counted = [&](int64_t begin, int64_t end) {
    return at::arange(begin, end, at::TensorOptions(at::kLong).device(keys_.device()));
  };
  const bool whole = !positions || !positions->is_floating_point();
  const auto dtype = whole ? at::kLong : c10::promoteTypes(positions->scalar_type(), at::kFloat);
  if (!positions_.defined()) {
    const auto first = length_ == 0 ? dtype : at::kLong;
    positions_ = allocate({options_.batch_size(), options_.max_length()}, first, keys_.device());
    positions_.narrow(1, 0, length_).copy_(counted(0, length_));
  }
  if (positions_.scalar_type() != dtype) {
    // float32 would round whole numbers from 2^24 on, be they there already or new.
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    positions_ = positions_.to(at::kDouble);
  }
  positions_.narrow(1, length_, tokens).copy_(positions ? positions->detach() : counted(length_, length_ + tokens));
}

std::optional<at::Tensor> KVCache::gate_keys() const {
  return gate_keys_.defined() ? std::make_optional(gate_keys_.narrow(2, 0, length_)) : std::nullopt;
}

std::optional<at::Tensor> KVCache::log_decay() const {
  return log_decay_.defined() ? std::make_optional(log_decay_.narrow(2, 0, length_)) : std::nullopt;
}

std::optional<at::Tensor> KVCache::positions() const {
  return positions_.defined() ? std::make_optional(positions_.narrow(1, 0, length_)) : std::nullopt;
}

void KVCache::restore(State state) {
  length_ = state.length;
  gate_keys_ = std::move(state.gate_keys);
  log_decay_ = std::move(state.log_decay);
  positions_ = std::move(state.positions);
}

void KVCache::crop(int64_t length) {
  TORCH_CHECK_VALUE(length >= 0 && length <= length_, "KVCache: expected to crop to a length from 0 to ", length_,
                    ", but got ", length);
  length_ = length;
  if (length == 0) {
    gate_keys_.reset();
    log_decay_.reset();
    positions_.reset();
  }
}

}  // namespace posenc::nn
