// Compiled once per instruction set.
#include "attention/terms/list.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
struct BackwardWorkspace {
  T *query_rows, *query, *query_pairs, *grad_rows, *grad_out, *grad_pairs, *scores, *grad, *mask, *grad_query, *shift,
      *factor, *delta;
  T *total, *out_rows, *policies;

  static int64_t size(const Shape& s) {
    return kTileQueries * (2 * padded<T>(s.width) + s.width + (s.width + 1) / 2 + 2 * padded<T>(s.value_width) +
                           s.value_width + (s.value_width + 1) / 2 + 3 * kTileKeys + 4) +
           policies_size<T>(s, /*backward=*/true) + Vec<T>::size();
  }
  BackwardWorkspace(T* at, const Shape& s) {
    const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
    query = take(kTileQueries * s.width);
    grad_out = take(kTileQueries * s.value_width);
    query_pairs = take(kTileQueries * ((s.width + 1) / 2));
    grad_pairs = take(kTileQueries * ((s.value_width + 1) / 2));
    scores = take(kTileQueries * kTileKeys);
    grad = take(kTileQueries * kTileKeys);
    mask = take(kTileQueries * kTileKeys);
    shift = take(kTileQueries);
    delta = take(kTileQueries);
    factor = take(kTileQueries);
    total = take(kTileQueries);
    query_rows = take(kTileQueries * padded<T>(s.width));
    grad_query = take(kTileQueries * padded<T>(s.width));
    grad_rows = take(kTileQueries * padded<T>(s.value_width));
    out_rows = take(kTileQueries * padded<T>(s.value_width));
    policies = at;
  }
};

/// One vector of queries: scores become weights 2^(score - shift) * factor, gradients of weights those of scores,
/// weight * (gradient - delta); both 0 where hidden.
template <typename T>
void differentiate(const Tile& t, int64_t q, const KeyRanges& keys, const BackwardWorkspace<T>& w) {
  const Vec<T> zero(T(0)), shift = Vec<T>::loadu(w.shift + q), factor = Vec<T>::loadu(w.factor + q),
                           delta = Vec<T>::loadu(w.delta + q);
  T *scores = w.scores + q, *grad = w.grad + q;
  int64_t k = 0;
  for (; k < keys.all; ++k) {
    const Vec<T> weight = exp2(Vec<T>::loadu(scores + k * kTileQueries) - shift) * factor;
    const Vec<T> of_score = weight * (Vec<T>::loadu(grad + k * kTileQueries) - delta);
    weight.store(scores + k * kTileQueries);
    of_score.store(grad + k * kTileQueries);
  }
  for (; k < keys.some; ++k) {
    const Vec<T> is_seen = seen_lanes(t, w.mask, k, q);
    const Vec<T> weight =
        Vec<T>::blendv(zero, exp2(Vec<T>::loadu(scores + k * kTileQueries) - shift) * factor, is_seen);
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

/// The sum of products of two rows of whole vectors.
template <typename T>
T dot(const T* a, const T* b, int64_t width) {
  Vec<T> sum(T(0));
  for (int64_t d = 0; d < width; d += Vec<T>::size()) {
    sum = fmadd(Vec<T>::loadu(a + d), Vec<T>::loadu(b + d), sum);
  }
  return cpu::sum_lanes(sum);
}

/// Whether an lse is that of a query that sees no key.
template <typename T>
bool is_blind(T lse) {
  return lse == -std::numeric_limits<T>::infinity();
}

/// For each query delta = sum of grad_out * out - grad_lse, and the sum of its score gradients, grad_lse.
template <typename T>
void prepare_rows(const BackwardJob<T>& job, const Tile& t, const BackwardWorkspace<T>& w) {
  const int64_t row = padded<T>(job.shape.value_width);
  pack_rows(job.out, t.queries, job.shape.value_width, row, w.out_rows);
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    const T grad_lse = job.grad_lse != nullptr ? job.grad_lse[at] : T(0);
    w.delta[q] = dot(w.out_rows + q * row, w.grad_rows + q * row, row) - grad_lse;
    w.total[q] = is_blind(job.lse[at]) ? T(0) : grad_lse;
  }
  std::fill(w.delta + t.queries, w.delta + t.lanes, T(0));
}

/// What weights are made with: 2^(score - shift) * factor. lacking(query): what the scores lack.
template <typename T, typename Lacking>
void prepare_softmax(const BackwardJob<T>& job, const Tile& t, const Lacking& lacking, const BackwardWorkspace<T>& w) {
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    if (is_blind(job.lse[at])) {
      w.shift[q] = T(0);
      w.factor[q] = T(0);
      continue;
    }
    const bool known = job.softmax.largest != nullptr;
    const double largest = known ? static_cast<double>(job.softmax.largest[at]) : job.lse[at] * kLog2E;
    const double total = known ? static_cast<double>(job.softmax.total[at]) : 1.0;
    const double shift = largest - static_cast<double>(lacking(q));
    w.shift[q] = static_cast<T>(shift);
    const double lost = static_cast<double>(w.shift[q]) - shift;
    w.factor[q] = static_cast<T>((lost == 0.0 ? 1.0 : std::exp2(lost)) / total);
  }
  // Lanes without a query: weights 0.
  std::fill(w.shift + t.queries, w.shift + t.lanes, std::numeric_limits<T>::max());
  std::fill(w.factor + t.queries, w.factor + t.lanes, T(0));
}

/// The gradients of queries and keys from those of a tile of their products.
template <typename T>
void add_product_gradients(const Tile& t, const T* mask, const T* grad, const Operands<T>& o, int64_t width) {
  const PackedRows<T> key = o.key.from(t.first_key);
  const bool partly = t.cover != Cover::kAll;
  if (o.grad_query != nullptr) {
    if (partly && any_infinite(key.data, key.row, t.keys, width)) {
      sum_seen_keys(t, mask, grad, key, width, o.grad_query);
    } else {
      sum_over_keys<T>(grad, key, t.keys, t.queries, width, t.diagonal, nullptr, o.grad_query);
    }
  }
  if (o.grad_key.data != nullptr) {
    T* to = o.grad_key.from(t.first_key).data;
    if (partly && o.wild_query) {
      sum_seen_queries(t, mask, grad, o.query_rows, width, to, o.grad_key.row);
    } else {
      sum_over_queries<T>(grad, o.query_rows, t.keys, t.queries, width, t.diagonal, to, o.grad_key.row);
    }
  }
}

/// The gradients of values, and whatever else follows from a tile of weights, which dropout has not seen yet.
template <typename T>
void add_value_gradients(const BackwardJob<T>& job, const Tile& t, bool wild_grad, BackwardPolicies<T>& policies,
                         const BackwardWorkspace<T>& w) {
  const int64_t width = padded<T>(job.shape.value_width);
  if (job.dropout.probability > 0.0) {
    drop(job.dropout, t, w.scores);
  }
  policies.take_weights(t, w.scores);
  if (job.grad_value.data == nullptr) {
    return;
  }
  T* to = job.grad_value.from(t.first_key).data;
  if (t.cover != Cover::kAll && wild_grad) {
    sum_seen_queries(t, w.mask, w.scores, w.grad_rows, width, to, job.grad_value.row);
  } else {
    sum_over_queries<T>(w.scores, w.grad_rows, t.keys, t.queries, width, t.diagonal, to, job.grad_value.row);
  }
}

/// Rows of the tile's queries, 0 those of queries that see no key: what they hold must not meet their weights, 0.
template <typename T>
void pack_seeing_rows(const BackwardJob<T>& job, const ConstRows& rows, const Tile& t, int64_t row_width, T* to) {
  const int64_t width = padded<T>(row_width);
  pack_queries(rows, t, row_width, to);
  for (int64_t q = 0; q < t.queries; ++q) {
    if (is_blind(job.lse[t.first_query + q])) {
      std::fill(to + q * width, to + (q + 1) * width, T(0));
    }
  }
}

/// Nothing where rows are null.
template <typename T>
void unpack_gradients(const Tile& t, int64_t width, const T* rows, double scale, const MutableRows& to) {
  if (rows != nullptr) {
    T factor[kTileQueries];
    std::fill(factor, factor + t.queries, static_cast<T>(scale));
    unpack_rows(rows, padded<T>(width), t.queries, width, factor, to);
  }
}

template <typename T>
void backward(const BackwardJob<T>& job, T* workspace) {
  const BackwardWorkspace<T> w(workspace, job.shape);
  const int64_t width = padded<T>(job.shape.width), value_width = padded<T>(job.shape.value_width);
  Tile t{};
  t.first_query = job.first_query;
  t.queries = job.queries;
  t.lanes = padded<T>(job.queries);
  pack_queries(job.query, t, job.shape.width, w.query_rows);
  const bool as_pairs = job.key_pairs.data != nullptr;
  const bool grad_as_pairs = as_pairs && job.grad_out.type == ElementType::kBFloat16;
  const T scale = pack_operand(w.query_rows, t, job.shape.width, static_cast<T>(job.scale * kLog2E), as_pairs, w.query,
                               w.query_pairs);
  pack_seeing_rows(job, job.grad_out, t, job.shape.value_width, w.grad_rows);
  pack_operand(w.grad_rows, t, job.shape.value_width, T(1), grad_as_pairs, w.grad_out, w.grad_pairs);
  prepare_rows(job, t, w);

  int64_t begin, end;
  visible_keys(job.visible, t.first_query, t.queries, begin, end);
  T* grad_query = job.grad_query.data != nullptr ? w.grad_query : nullptr;
  Operands<T> operands{.query = w.query,
                       .key = job.key,
                       .query_pairs = w.query_pairs,
                       .key_pairs = job.key_pairs,
                       .scale = scale,
                       .query_rows = w.query_rows,
                       .wild_query = any_infinite(w.query_rows, width, t.queries, width),
                       .grad_query = grad_query,
                       .grad_key = job.grad_key};
  BackwardPolicies<T> policies(job, w.policies);
  policies.begin(t, begin, end, operands, w.query_rows, w.grad_out, w.scores);
  prepare_softmax(job, t, [](int64_t) { return T(0); }, w);
  scale_rows(w.query_rows, t.queries * width, job.scale);
  std::fill(w.grad_query, w.grad_query + t.queries * width, T(0));
  const bool wild_grad = any_infinite(w.grad_rows, value_width, t.queries, value_width);

  for (t.first_key = begin; t.first_key < end; t.first_key += kTileKeys) {
    t.keys = std::min(kTileKeys, end - t.first_key);
    find_cover(job.visible, t);
    if (policies.hides(t)) {
      continue;
    }
    policies.meet(t);
    policies.score(t, operands, w.scores, w.mask);
    if (grad_as_pairs) {
      pair_product<T>(job.value_pairs.from(t.first_key), w.grad_pairs, t.keys, t.lanes, job.shape.value_width,
                      t.diagonal, w.grad, nullptr, T(1));
    } else {
      score_product<T>(job.value.from(t.first_key), w.grad_out, t.keys, t.lanes, job.shape.value_width, t.diagonal,
                       w.grad, nullptr);
    }
    policies.add_to_weight_gradients(t, w.grad);
    if (job.dropout.probability > 0.0) {
      drop(job.dropout, t, w.grad);
    }
    if (policies.may_lack()) {
      prepare_softmax(job, t, [&](int64_t q) { return policies.lacking(t, q); }, w);
    }
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) { differentiate(t, q, keys, w); });
    add_value_gradients(job, t, wild_grad, policies, w);
    policies.take(t, w.mask, operands, w.grad, [&](const Tile& part, const T* mask, const T* grad, const auto& o) {
      add_product_gradients(part, mask, grad, o, width);
    });
  }

  scale_rows(w.grad_query, t.queries * width, job.scale);
  if (policies.has_sums()) {
    pack_seeing_rows(job, job.query, t, job.shape.width, w.query_rows);
    policies.finish(t, w.query_rows, grad_query, w.grad_rows, w.total, w.scores);
  }
  unpack_gradients(t, job.shape.width, grad_query, 1.0, job.grad_query);
  unpack_gradients(t, job.shape.width, policies.grad_far_query(), job.scale, job.grad_scores.far_query);
}

constexpr BackwardKernels kKernels{
    .workspace_float = &BackwardWorkspace<float>::size,
    .workspace_double = &BackwardWorkspace<double>::size,
    .backward_float = &backward<float>,
    .backward_double = &backward<double>,
};

}  // namespace

POSENC_DEFINE_KERNELS(BackwardKernels, attention_backward_kernels, kKernels)

}  // namespace posenc::attention_ops
