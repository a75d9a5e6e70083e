// Compiled once per instruction set.
#include "attention/cpu/loops/kernel.h"
#include "attention/cpu/loops/workspace.h"
#include "attention/terms/kernels.h"

#include <functional>

namespace posenc::attention_ops {
namespace {

/// Where the largest score of a row starts.
template <typename T>
constexpr T kStart = std::numeric_limits<T>::lowest();

template <typename T>
struct ForwardWorkspace {
  double* total;
  T *query, *query_pairs, *scores, *mask, *largest, *factor, *scale_since_flush, *sums, *flushed_sums, *rows, *terms;

  /// Calls part(pointer, elements) for each part in order.
  template <typename Part>
  void lay_out(int64_t width, int64_t value_width, const Part& part) {
    part(total, kTileQueries);
    part(query, kTileQueries * width);
    part(query_pairs, kTileQueries * ((width + 1) / 2));
    part(scores, kTileQueries * kTileKeys);
    part(mask, kTileQueries * kTileKeys);
    part(largest, kTileQueries);
    part(factor, kTileQueries);
    part(scale_since_flush, kTileQueries);
    part(sums, kTileQueries * padded<T>(value_width));
    part(flushed_sums, kTileQueries * padded<T>(value_width));
    part(rows, kTileQueries * padded<T>(width));
  }
};

template <typename T>
TileContext<T> context_of(const ForwardJob<T>& job) {
  return {job.width, job.value_width, job.scale, &job.visible, /*backward=*/false};
}

template <typename T>
int64_t workspace_size(const WorkspaceSpec<T>& spec) {
  const TileContext<T> context{spec.width, spec.value_width, 1.0, nullptr, /*backward=*/false};
  return size_of<ForwardWorkspace<T>, T>(spec.width, spec.value_width) + TileTerms<T>::size(spec.heads, context);
}

/// One vector of queries: hides what they do not see, moves the largest score on and turns scores into 2^(score -
/// largest), 0 where hidden.
template <typename T>
void make_weights(const Tile& t, int64_t q, const KeyRanges& keys, bool know_largest, const ForwardWorkspace<T>& w,
                  const T* previous) {
  const Vec<T> hidden(-std::numeric_limits<T>::infinity());
  const Vec<T> before = Vec<T>::loadu(previous + q);
  Vec<T> largest = know_largest ? Vec<T>::loadu(w.largest + q) : before;
  T* column = w.scores + q;
  if (!know_largest) {
    for (int64_t k = 0; k < keys.all; ++k) {
      largest = at::vec::clamp_min(Vec<T>::loadu(column + k * kTileQueries), largest);
    }
    for (int64_t k = keys.all; k < keys.some; ++k) {
      const Vec<T> score = Vec<T>::loadu(column + k * kTileQueries);
      const Vec<T> kept = Vec<T>::blendv(hidden, score, seen_lanes(t, w.mask, k, q));
      kept.store(column + k * kTileQueries);
      largest = at::vec::clamp_min(kept, largest);
    }
    largest.store(w.largest + q);
  }
  Vec<T> sum(T(0)), second(T(0));
  int64_t k = 0;
  for (; k + 2 <= keys.all; k += 2) {
    const Vec<T> x = exp2(Vec<T>::loadu(column + k * kTileQueries) - largest);
    const Vec<T> y = exp2(Vec<T>::loadu(column + (k + 1) * kTileQueries) - largest);
    sum = sum + x;
    second = second + y;
    x.store(column + k * kTileQueries);
    y.store(column + (k + 1) * kTileQueries);
  }
  for (; k < keys.some; ++k) {
    const Vec<T> x = exp2(Vec<T>::loadu(column + k * kTileQueries) - largest);
    sum = sum + x;
    x.store(column + k * kTileQueries);
  }
  for (; k < keys.end; ++k) {
    Vec<T>(T(0)).store(column + k * kTileQueries);
  }
  const Vec<T> factor = exp2(before - largest);
  factor.store(w.factor + q);
  T factors[Vec<T>::size()], sums[Vec<T>::size()];
  factor.store(factors);
  (sum + second).store(sums);
  for (int i = 0; i < Vec<T>::size(); ++i) {
    w.total[q + i] = w.total[q + i] * static_cast<double>(factors[i]) + static_cast<double>(sums[i]);
  }
}

template <typename T>
void forward(const ForwardJob<T>& job, T* workspace) {
  ForwardWorkspace<T> w;
  w.terms = take_parts(w, job.width, job.value_width, workspace);
  const int64_t value_width = padded<T>(job.value_width);
  Tile t{};
  t.first_query = job.first_query;
  t.queries = job.queries;
  t.lanes = padded<T>(job.queries);
  pack_queries(job.query, t, job.width, w.rows);
  std::fill(w.largest, w.largest + t.lanes, kStart<T>);
  std::fill(w.total, w.total + t.lanes, 0.0);
  std::fill(w.sums, w.sums + t.queries * value_width, T(0));
  Operands<T> operands{};
  operands.scale = pack_operand(w.rows, t, job.width, static_cast<T>(job.scale * kLog2E), job.key_pairs.data != nullptr,
                                w.query, w.query_pairs);
  operands.query = w.query;
  operands.key = job.key;
  operands.query_pairs = w.query_pairs;
  operands.key_pairs = job.key_pairs;

  T previous[kTileQueries];
  int64_t begin, end;
  visible_keys(job.visible, t.first_query, t.queries, begin, end);
  TileTerms<T> terms(job.heads, nullptr, context_of(job), w.terms);
  terms.for_each([&](auto& term) { term.begin({t, begin, end, operands, w.rows, nullptr, w.scores}); });
  const bool is_long = end - begin > kSumsTogether * kTileKeys;
  int64_t tiles = 0;
  if (is_long) {
    std::fill(w.scale_since_flush, w.scale_since_flush + t.lanes, T(1));
    std::fill(w.flushed_sums, w.flushed_sums + t.queries * value_width, T(0));
  }
  // From the last key to the first, as encodings that count from the query need it.
  for (int64_t last = end; last > begin; last -= kTileKeys) {
    t.first_key = std::max(begin, last - kTileKeys);
    t.keys = last - t.first_key;
    find_cover(job.visible, t);
    if (t.cover == Cover::kHidden || terms.any([&](auto& term) { return term.hides(t); })) {
      continue;
    }
    const PackedRows<T> value = job.value.from(t.first_key);
    terms.for_each([&](auto& term) {
      term.begin_tile(t);
      term.defer(t, w.largest);
    });
    std::copy(w.largest, w.largest + t.lanes, previous);
    const bool know_largest = t.cover == Cover::kAll && !terms.any([](auto& term) { return term.changes_scores(); });
    make_scores(terms, job.visible, job.width, t, operands, w.scores, w.mask, know_largest ? w.largest : nullptr);
    for_each_vector<T>(t,
                       [&](int64_t q, const KeyRanges& keys) { make_weights(t, q, keys, know_largest, w, previous); });
    if (job.dropout.probability > 0.0) {
      drop(job.dropout, t, w.scores);
    }
    terms.for_each([&](auto& term) { term.accumulate_weights(t, w.scores, w.factor); });
    if (t.cover != Cover::kAll && any_nonfinite(value.data, value.row, t.keys, value_width)) {
      for (int64_t i = 0; i < t.queries * value_width; ++i) {
        w.sums[i] *= w.factor[i / value_width];
      }
      sum_visible_keys(t, w.mask, w.scores, value, value_width, w.sums);
    } else {
      sum_over_keys(w.scores, value, t.keys, t.queries, value_width, t.diagonal, w.factor, w.sums);
    }
    if (is_long) {
      std::transform(w.factor, w.factor + t.lanes, w.scale_since_flush, w.scale_since_flush, std::multiplies<T>());
      if (++tiles % kSumsTogether == 0) {
        flush_sums(t.queries, value_width, w.sums, w.flushed_sums, w.scale_since_flush);
      }
    }
  }
  if (is_long) {
    flush_sums(t.queries, value_width, w.sums, w.flushed_sums, w.scale_since_flush);
  }
  T* sums = is_long ? w.flushed_sums : w.sums;
  terms.for_each([&](auto& term) { term.finish(ForwardSums<T>{t, begin, sums, value_width, w.scores}); });

  for (int64_t q = 0; q < t.queries; ++q) {
    double total = w.total[q], largest = static_cast<double>(w.largest[q]);
    terms.for_each([&](auto& term) { largest += static_cast<double>(term.deferred(q)); });
    const double kept = join_sink(terms.sink(t.first_query + q), largest, total);
    const double lse = total == 0.0 ? -std::numeric_limits<double>::infinity() : (largest + std::log2(total)) * kLn2;
    job.lse[t.first_query + q] = static_cast<T>(lse);
    if (job.softmax.largest != nullptr) {
      const T rounded = static_cast<T>(largest);
      job.softmax.largest[t.first_query + q] = rounded;
      job.softmax.total[t.first_query + q] = static_cast<T>(total * std::exp2(largest - static_cast<double>(rounded)));
    }
    w.factor[q] = total == 0.0 ? T(0) : static_cast<T>(kept / total);
  }
  unpack_rows(sums, value_width, t.queries, job.value_width, w.factor, job.out);
}

template <typename T>
void unpack_row(const T* row, int64_t width, T factor, const MutableRows& to) {
  unpack_rows(row, width, 1, width, &factor, to);
}

constexpr ForwardKernels kKernels{
    .workspace_float = &workspace_size<float>,
    .workspace_double = &workspace_size<double>,
    .forward_float = &forward<float>,
    .forward_double = &forward<double>,
    .float_lanes = Vec<float>::size(),
    .double_lanes = Vec<double>::size(),
    .pack_float = &pack_rows<float>,
    .pack_double = &pack_rows<double>,
    .unpack_float = &unpack_row<float>,
    .unpack_double = &unpack_row<double>,
};

}  // namespace

POSENC_DEFINE_KERNELS(ForwardKernels, attention_forward_kernels, kKernels)

}  // namespace posenc::attention_ops
