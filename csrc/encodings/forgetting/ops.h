#pragma once

/// The ops that ForgettingBias calls, as calls through the dispatcher. The attention itself is posenc::attention(),
/// with log_decay.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace posenc::forgetting_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// What each token adds to the scores of the keys before it: x (B, T, E), weight (H, E), bias (H) -> (B, H, T), float32
/// (float64 for float64 x), under autocast too. With z = weight . x + bias that is log sigmoid(z), or with `complement`
/// log(1 - sigmoid(z)) = -softplus(z).
Tensor log_decay(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool complement);

/// log_decay (B, H, Tk) or (1, H, Tk) as that of posenc::attention(): 0 where key_mask (B, Tk) hides a token. Raises
/// unless it and the query have num_heads heads; of the query and the key only shapes are looked at.
Tensor decay_terms(const OptionalTensor& log_decay, const Tensor& query, const Tensor& key, int64_t num_heads,
                   const OptionalTensor& key_mask);

}  // namespace posenc::forgetting_ops
