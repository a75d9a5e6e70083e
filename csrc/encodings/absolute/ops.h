#pragma once

/// The ops that the absolute encodings call, as calls through the dispatcher. The modules of posenc::nn are their
/// public form; the ops exist so that a compiled graph can hold them and C++ and Python share one formula.

#include <ATen/core/Tensor.h>

#include <optional>

namespace posenc::absolute_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Where the tokens of a call are: positions (T) or (B, T), else `offsets` (B) or `offset` and counted on from there.
struct Place {
  OptionalTensor positions;
  c10::SymInt offset = 0;
  OptionalTensor offsets;
};

/// How far CAPE moves positions in training.
struct Augmentation {
  double max_global_shift;
  double max_local_shift;
  double max_global_scaling;
};

/// x (B, T, dim) or (T, dim) plus sines and cosines of position * inv_freq[k]: columns (sin, cos) in turns, or all
/// sines and then all cosines. With ceil(dim/2) frequencies an odd dim lacks the last cosine; with floor(dim/2) its
/// last column gets nothing.
Tensor add_sinusoidal(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim, bool interleaved);

/// x (B, T, dim) or (T, dim) plus weight[position], for weight (max_positions, dim). The gradient of weight is 0 in
/// rows that no token uses. A position outside is a ValueError, before the table is read.
Tensor add_learned(const Tensor& x, const Place& place, const Tensor& weight);

/// add_sinusoidal() at positions that are centred where `centre`, and moved at random where there is an augmentation.
Tensor add_cape(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim, bool centre,
                const std::optional<Augmentation>& augmentation);

/// positions as a new int64 tensor, all of them known to lie in 0 .. max_positions - 1; reads data.
Tensor checked_positions(const Tensor& positions, c10::SymInt max_positions);

}  // namespace posenc::absolute_ops
