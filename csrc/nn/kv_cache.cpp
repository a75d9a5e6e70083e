#include <posenc/nn/kv_cache.h>

#include "common/checks.h"
#include "nn/describe.h"
#include "nn/rotary_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace posenc::nn {
namespace {

int64_t value_width(const KVCacheOptions& o) { return o.value_dim().value_or(o.head_dim()); }

void check_cache_options(const KVCacheOptions& o) {
  check_options("KVCache", o);
  check_numbers("KVCache", "batch_size * num_kv_heads * max_length * head_dim",
                {o.batch_size(), o.num_kv_heads(), o.max_length(), o.head_dim()});
  check_numbers("KVCache", "batch_size * num_kv_heads * max_length * value_dim",
                {o.batch_size(), o.num_kv_heads(), o.max_length(), value_width(o)});
  TORCH_CHECK_VALUE(!o.window() || *o.window() <= o.max_length(),
                    "KVCache: expected window to be from 1 to max_length ", o.max_length(), ", but got ", *o.window());
  TORCH_CHECK_TYPE(at::isFloatingType(o.dtype()), "KVCache: expected a floating dtype, but got ", o.dtype());
}

/// The dtype of state with one number for each head and token, e.g. decays, which are summed over all tokens.
at::ScalarType sum_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Memory that stays writable outside an inference mode in which it may be made.
at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  const c10::InferenceMode normal(false);
  return at::empty(shape, at::TensorOptions(dtype).device(device));
}

}  // namespace

KVCache::KVCache(const KVCacheOptions& options) : options_(options) {
  check_cache_options(options_);
  at::DimVector shape{options_.batch_size(), options_.num_kv_heads(), options_.max_length(), options_.head_dim()};
  keys_ = allocate(shape, options_.dtype(), options_.device());
  shape[3] = value_width(options_);
  values_ = allocate(shape, options_.dtype(), options_.device());
}

std::tuple<at::Tensor, at::Tensor> KVCache::append(const at::Tensor& k, const at::Tensor& v,
                                                   const std::optional<at::Tensor>& gate_key,
                                                   const std::optional<at::Tensor>& positions,
                                                   const std::optional<at::Tensor>& log_decay) {
  const auto state = AttendOptions().gate_key(gate_key).log_decay(log_decay).token_state();
  return append(k, v, KVCacheAppendOptions().positions(positions).token_state(state));
}

std::tuple<at::Tensor, at::Tensor> KVCache::append(const at::Tensor& k, const at::Tensor& v,
                                                   const KVCacheAppendOptions& call) {
  check_dense("KVCache", "k", k);
  TORCH_CHECK_VALUE(k.dim() == 4, "KVCache: expected k of shape (batch, heads, tokens, head_dim), but got ", k.sizes());
  const int64_t tokens = k.size(2);
  check(k, "k", tokens, options_.head_dim());
  check(v, "v", tokens, value_width(options_));
  check_state(call.token_state(), tokens);
  if (call.positions()) {
    check_positions(*call.positions(), tokens);
  }
  const auto positions = call.positions() ? call.positions() : next_positions(tokens);
  const int64_t end = length_ + tokens;
  const bool slides = options_.window() && tokens > 0;
  const int64_t dropped = slides ? std::max(dropped_, length_ - (*options_.window() - 1)) : dropped_;
  TORCH_CHECK_VALUE(end - dropped <= options_.max_length(), "KVCache: expected at most max_length ",
                    options_.max_length(), " tokens, but got ", tokens, " new after ", length_ - dropped, " cached, ",
                    end - dropped, " in all");

  if (length_ == 0) {  // a call without tokens may have left state, which later calls need not have
    crop(0);
  }
  dropped_ = dropped;
  if (end - origin_ > options_.max_length()) {
    renew();
  }
  held(keys_, length_, end).copy_(k);
  held(values_, length_, end).copy_(v);
  for (const auto& [name, x] : call.token_state()) {
    at::Tensor& stored = token_state_[name];
    if (!stored.defined()) {
      at::DimVector shape(x.sizes());
      shape[2] = options_.max_length();
      stored = allocate(shape, x.scalar_type(), options_.device());
    }
    held(stored, length_, end).copy_(x);
  }
  store_positions(positions, tokens);
  length_ = end;
  return {keys(), values()};
}

void KVCache::evict(int64_t start, int64_t count, RotaryEncoding* rotary) {
  check_eviction(start, count, rotary);
  const at::NoGradGuard no_grad;
  const int64_t length = length_ - count;
  const auto gate_key = token_state_.find("gate_key");
  const auto rotated = [&](const at::Tensor& stored) {
    return stored.is_same(keys_) || (gate_key != token_state_.end() && stored.is_same(gate_key->second));
  };
  std::vector<std::pair<at::Tensor, at::Tensor>> moves;
  for_stored([&](const at::Tensor& stored) {
    const at::Tensor later = held(stored, start + count, length_), place = held(stored, start, length);
    if (stored.is_same(positions_)) {
      moves.emplace_back(place, later - count);
    } else {
      moves.emplace_back(place, rotary != nullptr && rotated(stored) ? rotary->shift(later, -count) : later.clone());
    }
  });
  for (const auto& [place, moved] : moves) {
    place.copy_(moved);
  }
  if (first_of_several_axes_ && *first_of_several_axes_ > start) {
    first_of_several_axes_ = std::max(start, *first_of_several_axes_ - count);
  }
  shorten(length);
}

void KVCache::reorder(const at::Tensor& index) {
  check_index(index);
  for_stored([&](const at::Tensor& stored) { held(stored).copy_(held(stored).index_select(0, index)); });
}

KVCache KVCache::copy() const {
  KVCache twin(*this);
  twin.renew();
  return twin;
}

void KVCache::renew() {
  for_stored([&](at::Tensor& stored) {
    const at::Tensor memory = allocate(stored.sizes(), stored.scalar_type(), stored.device());
    const int64_t axis = stored.dim() == 2 ? 1 : 2;
    memory.narrow(axis, 0, length_ - dropped_).copy_(held(stored));
    stored = memory;
  });
  origin_ = dropped_;
}

at::Tensor KVCache::held(const at::Tensor& stored, int64_t start, int64_t end) const {
  return stored.narrow(stored.dim() == 2 ? 1 : 2, start - origin_, end - start);
}

template <typename Visit>
void KVCache::for_stored(Visit&& visit) {
  visit(keys_);
  visit(values_);
  for (auto& [name, stored] : token_state_) {
    visit(stored);
  }
  if (positions_.defined()) {
    visit(positions_);
  }
}

void KVCache::check(const at::Tensor& x, const char* name, int64_t tokens, int64_t width) const {
  const at::DimVector shape{options_.batch_size(), options_.num_kv_heads(), tokens, width};
  check_dense("KVCache", name, x);
  TORCH_CHECK_VALUE(x.sizes() == shape, "KVCache: expected ", name, " of shape ", at::IntArrayRef(shape), ", but got ",
                    x.sizes());
  TORCH_CHECK_TYPE(x.scalar_type() == options_.dtype(), "KVCache: expected ", name, " of the cache's dtype ",
                   options_.dtype(), ", but got ", x.scalar_type());
  check_place(x, name);
}

void KVCache::check_state(const TokenState& state, int64_t tokens) const {
  const auto complete = [&](const std::string& name, bool stored) {
    TORCH_CHECK_VALUE(length_ == 0 || state.count(name) == token_state_.count(name), "KVCache: expected ", name,
                      " with every token or with none, but the cached ones came ", stored ? "with" : "without");
  };
  for (const auto& [name, stored] : token_state_) {
    complete(name, true);
  }
  for (const auto& [name, x] : state) {
    complete(name, false);
    if (x.dim() == 4) {
      check(x, name.c_str(), tokens, options_.head_dim());
    } else {
      check_per_head(x, name.c_str(), tokens);
    }
  }
}

void KVCache::check_per_head(const at::Tensor& x, const char* name, int64_t tokens) const {
  const auto stored = token_state_.find(name);
  const bool known = length_ > 0 && stored != token_state_.end();
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(0) == options_.batch_size() && x.size(2) == tokens &&
                        (!known || x.size(1) == stored->second.size(1)),
                    "KVCache: expected ", name, " of shape (", options_.batch_size(), ", ",
                    known ? c10::str(stored->second.size(1)) : "heads", ", ", tokens, "), but got ", x.sizes());
  const at::ScalarType dtype = sum_dtype(options_.dtype());
  TORCH_CHECK_TYPE(x.scalar_type() == dtype, "KVCache: expected ", name, " to be ", dtype, " in a cache of ",
                   options_.dtype(), ", but got ", x.scalar_type());
  check_place(x, name);
}

void KVCache::check_place(const at::Tensor& x, const char* name) const {
  TORCH_CHECK_VALUE(x.device() == keys_.device(), "KVCache: expected ", name, " on the cache's device ", keys_.device(),
                    ", but got ", x.device());
  TORCH_CHECK(!(at::GradMode::is_enabled() && x.requires_grad()),
              "KVCache: a cache is for inference and passes no gradient on, but ", name,
              " requires one: call within torch.no_grad(), or detach it");
}

void KVCache::check_positions(const at::Tensor& positions, int64_t tokens) const {
  const int64_t dims = positions.dim(), batch = options_.batch_size();
  const bool fits = dims >= 1 && dims <= 3 && positions.size(-1) == tokens &&
                    (dims == 1 || positions.size(-2) == 1 || positions.size(-2) == batch);
  TORCH_CHECK_VALUE(fits, "KVCache: expected positions of shape (", tokens, ") or (", batch, ", ", tokens,
                    "), or over several axes (axes, ", batch, ", ", tokens, "), but got ", positions.sizes());
  const bool one = positions_.defined(), other = dims == 3 ? one : first_of_several_axes_.has_value();
  TORCH_CHECK_VALUE(length_ == 0 || !other, "KVCache: expected positions with ", one ? "one axis" : "several axes",
                    ", as cached ones have, but got ", positions.sizes());
  const at::ScalarType dtype = positions.scalar_type();
  TORCH_CHECK_TYPE(dtype != at::kBool && !at::isComplexType(dtype),
                   "KVCache: expected positions of an integer or floating dtype, but got ", dtype);
  TORCH_CHECK_VALUE(positions.device() == keys_.device(), "KVCache: expected positions on the cache's device ",
                    keys_.device(), ", but got ", positions.device());
}

void KVCache::check_eviction(int64_t start, int64_t count, const RotaryEncoding* rotary) const {
  TORCH_CHECK_VALUE(start >= 0 && count >= 0 && count <= length_ - start,
                    "KVCache: expected to evict tokens from 0 to ", length_, ", but got start ", start, " and count ",
                    count);
  TORCH_CHECK_VALUE(dropped_ == 0, "KVCache: expected to evict before tokens leave the window ",
                    options_.window().value_or(0), ", but ", dropped_, " have left it");
  TORCH_CHECK_VALUE(rotary == nullptr || !rotary->position_axes(),
                    "KVCache: expected rotary to have positions on one axis, but got ", name_of(*rotary), " with ",
                    *rotary->position_axes());
}

void KVCache::check_index(const at::Tensor& index) const {
  TORCH_CHECK_VALUE(index.sizes() == at::IntArrayRef({options_.batch_size()}), "KVCache: expected index of shape [",
                    options_.batch_size(), "], a row for each, but got ", index.sizes());
  TORCH_CHECK_TYPE(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                   "KVCache: expected index to be int64 or int32, but got ", index.scalar_type());
  TORCH_CHECK_VALUE(index.device() == keys_.device(), "KVCache: expected index on the cache's device ", keys_.device(),
                    ", but got ", index.device());
  if (index.is_meta()) {
    return;
  }
  const at::Tensor rows = index.to(at::kCPU, at::kLong).contiguous();
  for (const int64_t row : at::IntArrayRef(rows.const_data_ptr<int64_t>(), rows.numel())) {
    TORCH_CHECK_VALUE(row >= 0 && row < options_.batch_size(), "KVCache: expected index to name rows from 0 to ",
                      options_.batch_size() - 1, ", but got ", row);
  }
}

void KVCache::store_positions(const std::optional<at::Tensor>& positions, int64_t tokens) {
  if (!positions || tokens == 0) {
    return;
  }
  if (positions->dim() == 3) {
    first_of_several_axes_ = first_of_several_axes_.value_or(length_);
    return;
  }
  const bool whole = !positions->is_floating_point();
  const auto dtype = whole ? at::kLong : c10::promoteTypes(positions->scalar_type(), at::kFloat);
  if (!positions_.defined()) {
    const auto first = length_ == 0 ? dtype : at::kLong;
    positions_ = allocate({options_.batch_size(), options_.max_length()}, first, keys_.device());
    held(positions_).copy_(at::arange(dropped_, length_, at::TensorOptions(at::kLong).device(keys_.device())));
  }
  if (positions_.scalar_type() != dtype) {
    // float32 would round whole numbers from 2^24 on, be they there already or new.
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    positions_ = positions_.to(at::kDouble);
  }
  held(positions_, length_, length_ + tokens).copy_(positions->detach());
}

TokenState KVCache::token_state() const {
  TokenState state;
  for (const auto& [name, stored] : token_state_) {
    state.emplace(name, held(stored));
  }
  return state;
}

std::optional<at::Tensor> KVCache::state_of(const char* name) const {
  const auto found = token_state_.find(name);
  return found == token_state_.end() ? std::nullopt : std::make_optional(held(found->second));
}

std::optional<at::Tensor> KVCache::positions() const {
  return positions_.defined() ? std::make_optional(held(positions_)) : std::nullopt;
}

std::optional<at::Tensor> KVCache::next_positions(int64_t tokens) const {
  if (length_ == 0 || tokens == 0) {
    return std::nullopt;
  }
  const auto check_known = [](bool known, const char* kind) {
    TORCH_CHECK_VALUE(known, "KVCache: expected positions of the new tokens, since those of cached ones ", kind,
                      " and nothing says which come next: pass positions");
  };
  check_known(!first_of_several_axes_, "have several axes");
  const auto known = positions();
  if (!known) {
    return std::nullopt;
  }
  check_known(!known->is_floating_point(), "are floating");
  return known->amax(1, /*keepdim=*/true) + at::arange(1, tokens + 1, known->options());
}

void KVCache::crop(int64_t length) {
  const int64_t kept = length >= 0 ? length : length_ + length;
  TORCH_CHECK_VALUE(kept >= 0 && kept <= length_, "KVCache: expected to crop to a length from 0 to ", length_,
                    ", or by one from -", length_, ", but got ", length);
  const int64_t first = dropped_ + std::max<int64_t>(1, options_.window().value_or(1) - 1);
  TORCH_CHECK_VALUE(dropped_ == 0 || kept == 0 || kept >= first, "KVCache: expected to crop to a length from ", first,
                    " to ", length_, ", or to 0, as the window of the next token reaches no further back, but got ",
                    length);
  shorten(kept);
}

void KVCache::shorten(int64_t length) {
  length_ = length;
  if (first_of_several_axes_ && *first_of_several_axes_ >= length) {
    first_of_several_axes_.reset();
  }
  if (length == 0) {
    token_state_.clear();
    positions_.reset();
    dropped_ = origin_ = 0;
  }
}

}  // namespace posenc::nn
