#pragma once

/// The op that TransformerXL calls, as a call through the dispatcher. The attention itself is
/// posenc::relative_attention(), with rel_query.

#include "encodings/bias/ops.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace posenc::transformer_xl_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// What is learned, with the frequencies of the sinusoids: content_bias u and position_bias v (H, D), pos_proj
/// (H * D, P), inv_freq (P/2), radians per token.
struct Parameters {
  Tensor content_bias;
  Tensor position_bias;
  Tensor pos_proj;
  Tensor inv_freq;
};

/// Which keys a call hides by their distance from the query: rows of these are not made.
struct Hidden {
  bool is_causal = false;
  std::optional<int64_t> window;
  std::optional<int64_t> window_left;
  std::optional<int64_t> window_right;
  /// Blocks show what the others hide.
  bool has_blocks = false;
};

/// What relative_attention() takes: query + u, query + v (B, H, Tq, D) in the dtype of query, and rows of projected
/// sinusoids (H, 2R + 1, D), float32 (float64 with a float64 query) but under autocast. Where there are few queries,
/// these are projected, (B, H, Tq, P), and the rows are the sinusoids (2R + 1, P).
struct Terms {
  Tensor content_query;
  Tensor position_query;
  Tensor rel_k;
};

/// Terms of Transformer-XL (arXiv 1901.02860, section 3.3). Row R + d is that of keys d tokens after their query: the
/// projected sinusoids of -d, as the paper's distances are query minus key. Columns of sinusoids are (sin, cos) in
/// turns where `interleaved`, else all sines and then all cosines. Positions that are given are read.
Terms terms(const Parameters& parameters, const bias_ops::Span& span, bool interleaved, const Hidden& hidden);

}  // namespace posenc::transformer_xl_ops
