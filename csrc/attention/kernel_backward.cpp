// Compiled once per instruction set.
#include "attention/exp2.h"
#include "attention/policies/all.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
struct BackwardWorkspace {
  T *query_rows, *query, *grad_rows, *grad_out, *scores, *grad, *mask, *grad_query, *strip, *lse, *delta, *factor;

  static int64_t size(int64_t width, int64_t value_width) {
    return kTileQueries * (2 * padded<T>(width) + width + padded<T>(value_width) + value_width + 3 * kTileKeys + 3) +
           kStrip + Vec<T>::size();
  }
  BackwardWorkspace(T* at, int64_t width, int64_t value_width) {
    const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
    query = take(kTileQueries * width);
    grad_out = take(kTileQueries * value_width);
    scores = take(kTileQueries * kTileKeys);
    grad = take(kTileQueries * kTileKeys);
    mask = take(kTileQueries * kTileKeys);
    lse = take(kTileQueries);
    delta = take(kTileQueries);
    factor = take(kTileQueries);
    query_rows = take(kTileQueries * padded<T>(width));
    grad_query = take(kTileQueries * padded<T>(width));
    grad_rows = take(kTileQueries * padded<T>(value_width));
    strip = take(kStrip);
  }
};

/// One vector of queries: scores become weights 2^(score - lse), gradients of weights those of scores,
/// weight * (gradient - delta); both 0 where hidden.
template <typename T>
void differentiate(const Tile& t, int64_t q, const KeyRanges& keys, const BackwardWorkspace<T>& w) {
  const Vec<T> zero(T(0)), lse = Vec<T>::loadu(w.lse + q), delta = Vec<T>::loadu(w.delta + q);
  T *scores = w.scores + q, *grad = w.grad + q;
  int64_t k = 0;
  for (; k < keys.all; ++k) {
    const Vec<T> weight = exp2<false>(Vec<T>::loadu(scores + k * kTileQueries) - lse);
    const Vec<T> of_score = weight * (Vec<T>::loadu(grad + k * kTileQueries) - delta);
    weight.store(scores + k * kTileQueries);
    of_score.store(grad + k * kTileQueries);
  }
  for (; k < keys.some; ++k) {
    const Vec<T> is_seen = seen_lanes(t, w.mask, k, q);
    const Vec<T> weight = Vec<T>::blendv(zero, exp2<false>(Vec<T>::loadu(scores + k * kTileQueries) - lse), is_seen);
    const Vec<T> of_score = Vec<T>::blendv(zero, weight * (Vec<T>::loadu(grad + k * kTileQueries) - delta), is_seen);
    weight.store(scores + k * kTileQueries);
    of_score.store(grad + k * kTileQueries);
  }
  for (; k < keys.end; ++k) {
    zero.store(scores + k * kTileQueries);
    zero.store(grad + k * kTileQueries);
  }
}

/// to (keys x width) += weights rows over the queries that see each key: sum_over_queries() where a row is not finite.
template <typename T>
void sum_seen_queries(const Tile& t, const T* mask, const T* weights, const T* rows, int64_t width, T* to,
                      int64_t to_row) {
  for (int64_t k = 0; k < t.keys; ++k) {
    for (int64_t q = 0; q < t.queries; ++q) {
      if (seen(t, mask, k, q)) {
        for (int64_t d = 0; d < width; ++d) {
          to[k * to_row + d] += weights[k * kTileQueries + q] * rows[q * width + d];
        }
      }
    }
  }
}

/// delta = sum of grad_out * out - grad_lse, and lse in base 2, for each query.
template <typename T>
void prepare_rows(const BackwardJob<T>& job, const Tile& t, const BackwardWorkspace<T>& w) {
  const int64_t value_width = padded<T>(job.value_width);
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    double sum = 0.0;
    with_type(job.out.data, job.out.type, [&](const auto* data) {
      for (int64_t d = 0; d < job.value_width; ++d) {
        sum += static_cast<double>(widened<T>(data[q * job.out.row + d * job.out.column])) *
               static_cast<double>(w.grad_rows[q * value_width + d]);
      }
    });
    w.delta[q] = static_cast<T>(sum) - (job.grad_lse != nullptr ? job.grad_lse[at] : T(0));
    // A query that sees no key has lse -infinity, and weights that the mask sets to 0.
    const T lse = job.lse[at];
    w.lse[q] = lse == -std::numeric_limits<T>::infinity() ? T(0) : static_cast<T>(static_cast<double>(lse) * kLog2E);
  }
  std::fill(w.delta + t.queries, w.delta + t.lanes, T(0));
  // Lanes without a query: weights 0.
  std::fill(w.lse + t.queries, w.lse + t.lanes, std::numeric_limits<T>::max());
}

template <typename T>
void backward(const BackwardJob<T>& job, T* workspace) {
  BackwardWorkspace<T> w(workspace, job.width, job.value_width);
  const int64_t width = padded<T>(job.width), value_width = padded<T>(job.value_width);
  Tile t{};
  t.first_query = job.first_query;
  t.queries = job.queries;
  t.lanes = padded<T>(job.queries);
  pack_rows(job.query, t.queries, job.width, width, w.query_rows);
  pack_transposed(w.query_rows, width, t.queries, t.lanes, job.width, static_cast<T>(job.scale * kLog2E), w.query);
  pack_rows(job.grad_out, t.queries, job.value_width, value_width, w.grad_rows);
  pack_transposed(w.grad_rows, value_width, t.queries, t.lanes, job.value_width, T(1), w.grad_out);
  prepare_rows(job, t, w);
  for (int64_t i = 0; i < t.queries * width; ++i) {
    w.query_rows[i] *= static_cast<T>(job.scale);
  }
  std::fill(w.grad_query, w.grad_query + t.queries * width, T(0));

  const bool wild_query = any_infinite(w.query_rows, width, t.queries, width);
  const bool wild_grad = any_infinite(w.grad_rows, value_width, t.queries, value_width);
  int64_t begin, end;
  visible_keys(job.visible, t.first_query, t.queries, begin, end);
  for (t.first_key = begin; t.first_key < end; t.first_key += kTileKeys) {
    t.keys = std::min(kTileKeys, end - t.first_key);
    find_cover(job.visible, t);
    if (t.cover == Cover::kHidden) {
      continue;
    }
    const PackedRows<T> key{job.key.data + t.first_key * job.key.row, job.key.row};
    const PackedRows<T> value{job.value.data + t.first_key * job.value.row, job.value.row};
    score_product<T>(key, w.query, t.keys, t.lanes, job.width, t.diagonal, w.scores, nullptr);
    score_product<T>(value, w.grad_out, t.keys, t.lanes, job.value_width, t.diagonal, w.grad, nullptr);
    add_biases(job.bias, job.visible, t, w.strip, w.mask, w.scores);
    if (job.dropout.probability > 0.0) {
      drop(job.dropout, t, w.grad);
    }
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) { differentiate(t, q, keys, w); });
    if (job.grad_table != nullptr || job.grad_slope != nullptr) {
      add_distance_gradients(job.bias, job.visible, t, w.grad, w.strip, job.grad_table, job.grad_slope);
    }
    if (job.grad_bias.data != nullptr) {
      add_bias_gradients(job.grad_bias, t, w.mask, w.grad);
    }
    const bool partly = t.cover != Cover::kAll;
    if (job.grad_query.data != nullptr) {
      if (partly && any_infinite(key.data, key.row, t.keys, width)) {
        sum_seen_keys(t, w.mask, w.grad, key, width, w.grad_query);
      } else {
        sum_over_keys<T>(w.grad, key, t.keys, t.queries, width, t.diagonal, nullptr, w.grad_query);
      }
    }
    if (job.grad_key != nullptr) {
      T* to = job.grad_key + t.first_key * job.grad_key_row;
      if (partly && wild_query) {
        sum_seen_queries(t, w.mask, w.grad, w.query_rows, width, to, job.grad_key_row);
      } else {
        sum_over_queries<T>(w.grad, w.query_rows, t.keys, t.queries, width, t.diagonal, to, job.grad_key_row);
      }
    }
    if (job.grad_value != nullptr) {
      if (job.dropout.probability > 0.0) {
        drop(job.dropout, t, w.scores);
      }
      T* to = job.grad_value + t.first_key * job.grad_value_row;
      if (partly && wild_grad) {
        sum_seen_queries(t, w.mask, w.scores, w.grad_rows, value_width, to, job.grad_value_row);
      } else {
        sum_over_queries<T>(w.scores, w.grad_rows, t.keys, t.queries, value_width, t.diagonal, to, job.grad_value_row);
      }
    }
  }
  if (job.grad_query.data != nullptr) {
    std::fill(w.factor, w.factor + t.queries, static_cast<T>(job.scale));
    unpack_rows(w.grad_query, width, t.queries, job.width, w.factor, job.grad_query);
  }
}

template <typename T>
int64_t workspace_size(int64_t width, int64_t value_width) {
  return BackwardWorkspace<T>::size(width, value_width);
}

constexpr BackwardKernels kKernels{
    .workspace_float = &workspace_size<float>,
    .workspace_double = &workspace_size<double>,
    .backward_float = &backward<float>,
    .backward_double = &backward<double>,
};

}  // namespace

POSENC_DEFINE_KERNELS(BackwardKernels, attention_backward_kernels, kKernels)

}  // namespace posenc::attention_ops
