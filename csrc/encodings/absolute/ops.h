#pragma once

/// The ops that the absolute encodings call, as calls through the dispatcher. The modules of posenc::nn are their
/// public form; the ops exist so that a compiled graph can hold them and C++ and Python share one formula.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace posenc::absolute_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Where the tokens of a call are: positions (T) or (B, T), else `offsets` (B) or `offset` and counted on from there.
struct Place {
  OptionalTensor positions;
  c10::SymInt offset = 0;
  OptionalTensor offsets;
};

/// The columns of sines and cosines, and the axes of positions.
struct Columns {
  /// (sin, cos) in turns.
  bool interleaved = true;
  /// Where not in turns: all cosines, then all sines, instead of the other way round.
  bool cosines_first = false;
  /// A. With more than one, positions are (A, T) or (A, B, T) and each axis has dim/A columns of its own, axis by axis.
  int64_t num_axes = 1;
};

/// How a learned table becomes one for other positions.
struct Resize {
  /// The new number of rows, or the rows and columns of the new grid after the prefix.
  std::vector<int64_t> size;
  int64_t prefix = 0;
  /// Rows and columns of the old grid; absent: a square.
  std::optional<std::vector<int64_t>> grid;
  /// "linear" for a number of rows, "bilinear" or "bicubic" for a grid; absent: linear and bicubic.
  std::optional<std::string> mode;
  bool align_corners = false;
  bool antialias = false;
};

/// How far CAPE moves positions in training.
struct Augmentation {
  double max_global_shift;
  double max_local_shift;
  double max_global_scaling;
};

/// x (B, T, dim) or (T, dim) plus sines and cosines of position * inv_freq[k], as `columns` say. With ceil(dim/2)
/// frequencies an odd dim lacks the last cosine; with floor(dim/2) its last column gets nothing. Frequencies are those
/// of one axis.
Tensor add_sinusoidal(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim, const Columns& columns);

/// x (B, T, dim) or (T, dim) plus weight[position], for weight (max_positions, dim). The gradient of weight is 0 in
/// rows that no token uses. A position outside is a ValueError, before the table is read.
Tensor add_learned(const Tensor& x, const Place& place, const Tensor& weight);

/// add_sinusoidal() at positions that are centred where `centre`, and moved at random where there is an augmentation.
Tensor add_cape(const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim, bool centre,
                const std::optional<Augmentation>& augmentation);

/// weight (rows, dim) interpolated to other rows, of which the first `prefix` are kept: (prefix + size.., dim) for a
/// grid, (size, dim) for a number of rows. In float32 for 16-bit weights.
Tensor resized_positions(const Tensor& weight, const Resize& resize);

/// positions as a new int64 tensor, all of them known to lie in 0 .. max_positions - 1; reads data.
Tensor checked_positions(const Tensor& positions, c10::SymInt max_positions);

}  // namespace posenc::absolute_ops
