#pragma once

/// The ops that the additive score encodings call, as calls through the dispatcher. The modules of posenc::nn are their
/// public form; the ops exist so that a compiled graph can hold them and C++ and Python share one formula.

#include "attention/ops.h"

#include <posenc/bias.h>
#include <posenc/ops_attention.h>

#include <optional>
#include <tuple>
#include <vector>

namespace posenc::bias_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Whose scores get a bias. Only shapes, dtype and device of query and key are looked at.
struct Span {
  Tensor query;
  Tensor key;
  OptionalTensor q_positions;
  OptionalTensor k_positions;
};

/// How far keys lie before and after the queries of their row, in tokens, hidden keys included; each at least 0.
struct Reach {
  c10::SymInt before;
  c10::SymInt after;
};

/// What FIRE learns: c and threshold (1), and the layers of its MLP, 1 -> hidden -> heads.
struct FireParameters {
  Tensor c;
  Tensor threshold;
  Tensor weight_in;
  Tensor bias_in;
  Tensor weight_out;
  Tensor bias_out;
};

/// Slopes of ALiBi for `num_heads` heads in float64.
std::vector<double> alibi_slope_list(int64_t num_heads);

/// Raises unless T5's buckets exist for these numbers.
void check_buckets(const char* op, int64_t num_buckets, int64_t max_distance, bool bidirectional);

/// The reach of a span. Positions that are given are read; ones more than 2^24 tokens apart raise.
Reach reach(const char* module, const Span& span);

// Each of the following is float32 (float64 with a float64 query) and raises unless the query has as many heads as
// the encoding. Tables (H, 2R+1) are the distance_bias of posenc::attention().

/// slopes (H) as alibi_slopes of posenc::attention().
Tensor alibi_terms(const Tensor& slopes, const Span& span);

/// T5's table from weight (num_buckets, H); R is max_distance, since all that lies beyond shares a bucket.
Tensor t5_table(const Tensor& weight, const Span& span, int64_t max_distance, bool bidirectional);

/// KERPLE's table: -r1 ln(1 + r2 n), or -r1 n^r2 where `power`, for distances n up to the largest of the span. r1 and
/// r2 (H) are clamped where they are used, and get their gradients as if they were not.
Tensor kerple_table(const Tensor& r1, const Tensor& r2, const Span& span, bool power);

/// Sandwich's table: (sum over k of cos(n inv_freq[k]) - number of frequencies) / (8h/H) for heads h = 1 .. H.
Tensor sandwich_table(const Tensor& inv_freq, int64_t num_heads, const Span& span);

/// sum over k of cos(n inv_freq[k]) for n = 0 .. length - 1, in the dtype of inv_freq.
Tensor cosine_sums(const Tensor& inv_freq, c10::SymInt length);

/// FIRE's bias as terms of attention(): its MLP, of one hidden layer with ReLU over a number, is linear between knots.
attention_ops::FireTerms fire_terms(const FireParameters& parameters, double eps, const Span& span);

}  // namespace posenc::bias_ops
