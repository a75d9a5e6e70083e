#pragma once

/// What the options of Attention say where they leave something out, and the encodings by their families.

#include <posenc/nn/attention.h>

namespace posenc::nn {

inline int64_t kv_heads(const AttentionOptions& o) { return o.num_kv_heads().value_or(o.num_heads()); }

inline bool is_causal(const AttentionOptions& o) { return o.is_causal().value_or(!o.cross()); }

inline int64_t head_width(const AttentionOptions& o) { return o.head_dim().value_or(o.embed_dim() / o.num_heads()); }

inline int64_t value_width(const AttentionOptions& o) { return o.value_dim().value_or(head_width(o)); }

/// The members of one family, in order.
template <typename Family>
std::vector<Family*> members(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::vector<Family*> found;
  for (const auto& module : modules) {
    if (auto* member = dynamic_cast<Family*>(module.get())) {
      found.push_back(member);
    }
  }
  return found;
}

template <typename Family>
std::vector<Family*> members(const torch::nn::ModuleList& encodings) {
  return members<Family>(std::vector(encodings->begin(), encodings->end()));
}

}  // namespace posenc::nn
