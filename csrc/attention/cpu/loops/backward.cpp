// Compiled once per instruction set.
#include "attention/cpu/loops/kernel.h"
#include "attention/cpu/loops/workspace.h"
#include "attention/terms/kernels.h"

namespace posenc::attention_ops {
namespace {

template <typename T>
struct BackwardWorkspace {
  T *query, *grad_out, *query_pairs, *grad_pairs, *scores, *grad, *mask, *shift, *delta, *factor, *total, *query_rows,
      *grad_query, *grad_rows, *out_rows, *terms;

  /// Calls part(pointer, elements) for each part in order.
  template <typename Part>
  void lay_out(int64_t width, int64_t value_width, const Part& part) {
    part(query, kTileQueries * width);
    part(grad_out, kTileQueries * value_width);
    part(query_pairs, kTileQueries * ((width + 1) / 2));
    part(grad_pairs, kTileQueries * ((value_width + 1) / 2));
    part(scores, kTileQueries * kTileKeys);
    part(grad, kTileQueries * kTileKeys);
    part(mask, kTileQueries * kTileKeys);
    part(shift, kTileQueries);
    part(delta, kTileQueries);
    part(factor, kTileQueries);
    part(total, kTileQueries);
    part(query_rows, kTileQueries * padded<T>(width));
    part(grad_query, kTileQueries * padded<T>(width));
    part(grad_rows, kTileQueries * padded<T>(value_width));
    part(out_rows, kTileQueries * padded<T>(value_width));
  }
};

template <typename T>
int64_t workspace_size(const WorkspaceSpec<T>& spec) {
  const TileContext<T> context{spec.width, spec.value_width, 1.0, nullptr, /*backward=*/true};
  return size_of<BackwardWorkspace<T>, T>(spec.width, spec.value_width) + TileTerms<T>::size(spec.heads, context);
}

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
  // Scores of hidden keys may be anything: their exponentials must not overflow, nor meet a factor of NaN.
  const Vec<T> hidden(-std::numeric_limits<T>::infinity());
  for (; k < keys.some; ++k) {
    const Vec<T> is_seen = seen_lanes(t, w.mask, k, q);
    const Vec<T> exponent = Vec<T>::blendv(hidden, Vec<T>::loadu(scores + k * kTileQueries) - shift, is_seen);
    const Vec<T> weight = Vec<T>::blendv(zero, exp2(exponent) * factor, is_seen);
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
void sum_visible_queries(const Tile& t, const T* mask, const T* weights, const T* rows, int64_t width, T* to,
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

/// The weight of a row's sink; 0 without one.
template <typename T>
double sink_weight(const BackwardJob<T>& job, double sink, int64_t query) {
  if (sink == kNoSink) {
    return 0.0;
  }
  return job.softmax.largest != nullptr
             ? std::exp2(sink - static_cast<double>(job.softmax.largest[query])) / job.softmax.total[query]
             : std::exp2(sink - static_cast<double>(job.lse[query]) * kLog2E);
}

/// blind[q]: whether no key has a weight, as the query sees none, or as its sink has all.
template <typename T>
void find_blind_rows(const BackwardJob<T>& job, const Tile& t, TileTerms<T>& terms, bool* blind) {
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    blind[q] = job.lse[at] == -std::numeric_limits<T>::infinity() || sink_weight(job, terms.sink(at), at) >= 1.0;
  }
}

/// For each query delta = sum of grad_out * out - grad_lse, and the sum of its score gradients, grad_lse less what its
/// sink takes, whose weight has no value.
template <typename T>
void prepare_rows(const BackwardJob<T>& job, const Tile& t, const bool* blind, TileTerms<T>& terms,
                  const BackwardWorkspace<T>& w) {
  const int64_t row = padded<T>(job.value_width);
  pack_rows(job.out, t.queries, job.value_width, row, w.out_rows);
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    const T grad_lse = job.grad_lse != nullptr ? job.grad_lse[at] : T(0);
    w.delta[q] = dot(w.out_rows + q * row, w.grad_rows + q * row, row) - grad_lse;
    const double of_sink = -sink_weight(job, terms.sink(at), at) * static_cast<double>(w.delta[q]);
    terms.for_each([&](auto& term) { term.add_sink_gradient(at, of_sink); });
    w.total[q] = blind[q] ? T(0) : static_cast<T>(static_cast<double>(grad_lse) - of_sink);
  }
  std::fill(w.delta + t.queries, w.delta + t.lanes, T(0));
}

/// What weights are made with: 2^(score - shift) * factor. deferred(query): what the scores lack.
template <typename T, typename Deferred>
void prepare_softmax(const BackwardJob<T>& job, const Tile& t, const bool* blind, const Deferred& deferred,
                     const BackwardWorkspace<T>& w) {
  for (int64_t q = 0; q < t.queries; ++q) {
    const int64_t at = t.first_query + q;
    if (blind[q]) {
      w.shift[q] = T(0);
      w.factor[q] = T(0);
      continue;
    }
    const bool known = job.softmax.largest != nullptr;
    const double largest = known ? static_cast<double>(job.softmax.largest[at]) : job.lse[at] * kLog2E;
    const double total = known ? static_cast<double>(job.softmax.total[at]) : 1.0;
    const double shift = largest - static_cast<double>(deferred(q));
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
    if (partly && any_nonfinite(key.data, key.row, t.keys, width)) {
      sum_visible_keys(t, mask, grad, key, width, o.grad_query);
    } else {
      sum_over_keys<T>(grad, key, t.keys, t.queries, width, t.diagonal, nullptr, o.grad_query);
    }
  }
  if (o.grad_key.data != nullptr) {
    T* to = o.grad_key.from(t.first_key).data;
    if (partly && o.query_is_nonfinite) {
      sum_visible_queries(t, mask, grad, o.query_rows, width, to, o.grad_key.row);
    } else {
      sum_over_queries<T>(grad, o.query_rows, t.keys, t.queries, width, t.diagonal, to, o.grad_key.row);
    }
  }
}

/// The gradients of values, and whatever else follows from a tile of weights, which dropout has not seen yet.
template <typename T>
void add_value_gradients(const BackwardJob<T>& job, const Tile& t, bool grad_is_nonfinite, TileTerms<T>& terms,
                         const BackwardWorkspace<T>& w) {
  const int64_t width = padded<T>(job.value_width);
  if (job.dropout.probability > 0.0) {
    drop(job.dropout, t, w.scores);
  }
  terms.for_each([&](auto& term) { term.accumulate_weights(t, w.scores); });
  if (job.grad_value.data == nullptr) {
    return;
  }
  T* to = job.grad_value.from(t.first_key).data;
  if (t.cover != Cover::kAll && grad_is_nonfinite) {
    sum_visible_queries(t, w.mask, w.scores, w.grad_rows, width, to, job.grad_value.row);
  } else {
    sum_over_queries<T>(w.scores, w.grad_rows, t.keys, t.queries, width, t.diagonal, to, job.grad_value.row);
  }
}

/// Rows of the tile's queries, 0 those of blind ones.
template <typename T>
void pack_seeing_rows(const bool* blind, const ConstRows& rows, const Tile& t, int64_t width, T* to) {
  pack_queries(rows, t, width, to);
  clear_blind_rows(t, blind, padded<T>(width), to);
}

template <typename T>
void backward(const BackwardJob<T>& job, T* workspace) {
  BackwardWorkspace<T> w;
  w.terms = take_parts(w, job.width, job.value_width, workspace);
  const int64_t width = padded<T>(job.width), value_width = padded<T>(job.value_width);
  Tile t{};
  t.first_query = job.first_query;
  t.queries = job.queries;
  t.lanes = padded<T>(job.queries);
  TileTerms<T> terms(job.heads, &job.gradients,
                     {job.width, job.value_width, job.scale, &job.visible, /*backward=*/true}, w.terms);
  bool blind[kTileQueries];
  find_blind_rows(job, t, terms, blind);
  pack_queries(job.query, t, job.width, w.query_rows);
  const bool as_pairs = job.key_pairs.data != nullptr;
  const bool grad_as_pairs = as_pairs && job.grad_out.type == ElementType::kBFloat16;
  const T scale =
      pack_operand(w.query_rows, t, job.width, static_cast<T>(job.scale * kLog2E), as_pairs, w.query, w.query_pairs);
  pack_seeing_rows(blind, job.grad_out, t, job.value_width, w.grad_rows);
  pack_operand(w.grad_rows, t, job.value_width, T(1), grad_as_pairs, w.grad_out, w.grad_pairs);
  prepare_rows(job, t, blind, terms, w);

  int64_t begin, end;
  visible_keys(job.visible, t.first_query, t.queries, begin, end);
  T* grad_query = job.grad_query.data != nullptr ? w.grad_query : nullptr;
  Operands<T> operands{.query = w.query,
                       .key = job.key,
                       .query_pairs = w.query_pairs,
                       .key_pairs = job.key_pairs,
                       .scale = scale,
                       .query_rows = w.query_rows,
                       .query_is_nonfinite = any_nonfinite(w.query_rows, width, t.queries, width),
                       .grad_query = grad_query,
                       .grad_key = job.grad_key};
  terms.for_each([&](auto& term) { term.begin({t, begin, end, operands, w.query_rows, w.grad_out, w.scores}); });
  prepare_softmax(job, t, blind, [](int64_t) { return T(0); }, w);
  scale_rows(w.query_rows, t.queries * width, job.scale);
  std::fill(w.grad_query, w.grad_query + t.queries * width, T(0));
  const bool grad_is_nonfinite = any_nonfinite(w.grad_rows, value_width, t.queries, value_width);

  for (t.first_key = begin; t.first_key < end; t.first_key += kTileKeys) {
    t.keys = std::min(kTileKeys, end - t.first_key);
    find_cover(job.visible, t);
    if (t.cover == Cover::kHidden || terms.any([&](auto& term) { return term.hides(t); })) {
      continue;
    }
    terms.for_each([&](auto& term) { term.begin_tile(t); });
    make_scores<T>(terms, job.visible, job.width, t, operands, w.scores, w.mask, nullptr);
    if (grad_as_pairs) {
      pair_product<T>(job.value_pairs.from(t.first_key), w.grad_pairs, t.keys, t.lanes, job.value_width, t.diagonal,
                      w.grad, nullptr, T(1));
    } else {
      score_product<T>(job.value.from(t.first_key), w.grad_out, t.keys, t.lanes, job.value_width, t.diagonal, w.grad,
                       nullptr);
    }
    terms.for_each([&](auto& term) { term.add_weight_gradients(t, w.grad); });
    if (job.dropout.probability > 0.0) {
      drop(job.dropout, t, w.grad);
    }
    if (terms.any([](auto& term) { return term.may_defer(); })) {
      const auto deferred = [&](int64_t q) {
        T sum(0);
        terms.for_each([&](auto& term) { sum += term.deferred(t, q); });
        return sum;
      };
      prepare_softmax(job, t, blind, deferred, w);
    }
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) { differentiate(t, q, keys, w); });
    add_value_gradients(job, t, grad_is_nonfinite, terms, w);
    terms.for_each([&](auto& term) { term.uncap_scores(t, w.grad); });
    terms.for_each([&](auto& term) { term.accumulate_gradients(t, w.mask, w.grad); });
    const auto add_products = [&](const Tile& part, const T* mask, const T* grad, const Operands<T>& o) {
      add_product_gradients(part, mask, grad, o, width);
    };
    if (!terms.any([&](auto& term) { return term.take_products(t, w.mask, operands, w.grad, add_products); })) {
      add_products(t, w.mask, w.grad, operands);
    }
  }

  scale_rows(w.grad_query, t.queries * width, job.scale);
  if (terms.any([](auto& term) { return term.has_sums(); })) {
    pack_seeing_rows(blind, job.query, t, job.width, w.query_rows);
  }
  terms.for_each([&](auto& term) {
    term.finish(BackwardSums<T>{t, w.query_rows, w.grad_rows, grad_query, w.total, blind, w.scores});
  });
  if (grad_query != nullptr) {
    unpack_scaled(grad_query, t.queries, job.width, 1.0, job.grad_query);
  }
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
