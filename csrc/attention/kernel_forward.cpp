// Compiled once per instruction set.
#include "attention/exp2.h"
#include "attention/policies/all.h"

namespace posenc::attention_ops {
namespace {

/// Where the largest score of a row starts.
template <typename T>
constexpr T kStart = std::numeric_limits<T>::lowest();

template <typename T>
struct ForwardWorkspace {
  T *rows, *query, *scores, *mask, *sums, *strip, *largest, *total, *factor;

  static int64_t size(int64_t width, int64_t value_width) {
    return kTileQueries * (padded<T>(width) + width + 2 * kTileKeys + padded<T>(value_width) + 3) + kStrip +
           Vec<T>::size();
  }
  ForwardWorkspace(T* at, int64_t width, int64_t value_width) {
    const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
    query = take(kTileQueries * width);
    scores = take(kTileQueries * kTileKeys);
    mask = take(kTileQueries * kTileKeys);
    largest = take(kTileQueries);
    total = take(kTileQueries);
    factor = take(kTileQueries);
    sums = take(kTileQueries * padded<T>(value_width));
    rows = take(kTileQueries * padded<T>(width));
    strip = take(kStrip);
  }
};

/// One vector of queries: hides what they do not see, moves the largest score on and turns scores into 2^(score -
/// largest), 0 where hidden.
template <typename T>
void weigh(const Tile& t, int64_t q, const KeyRanges& keys, bool know_largest, const ForwardWorkspace<T>& w,
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
    const Vec<T> x = exp2<false>(Vec<T>::loadu(column + k * kTileQueries) - largest);
    const Vec<T> y = exp2<false>(Vec<T>::loadu(column + (k + 1) * kTileQueries) - largest);
    sum = sum + x;
    second = second + y;
    x.store(column + k * kTileQueries);
    y.store(column + (k + 1) * kTileQueries);
  }
  for (; k < keys.some; ++k) {
    const Vec<T> x = exp2<true>(Vec<T>::loadu(column + k * kTileQueries) - largest);
    sum = sum + x;
    x.store(column + k * kTileQueries);
  }
  for (; k < keys.end; ++k) {
    Vec<T>(T(0)).store(column + k * kTileQueries);
  }
  const Vec<T> factor = exp2<true>(before - largest);
  factor.store(w.factor + q);
  fmadd(Vec<T>::loadu(w.total + q), factor, sum + second).store(w.total + q);
}

template <typename T>
void forward(const ForwardJob<T>& job, T* workspace) {
  ForwardWorkspace<T> w(workspace, job.width, job.value_width);
  const int64_t width = padded<T>(job.width), value_width = padded<T>(job.value_width);
  Tile t{};
  t.first_query = job.first_query;
  t.queries = job.queries;
  t.lanes = padded<T>(job.queries);
  pack_rows(job.query, t.queries, job.width, width, w.rows);
  pack_transposed(w.rows, width, t.queries, t.lanes, job.width, static_cast<T>(job.scale * kLog2E), w.query);
  std::fill(w.largest, w.largest + t.lanes, kStart<T>);
  std::fill(w.total, w.total + t.lanes, T(0));
  std::fill(w.sums, w.sums + t.queries * value_width, T(0));

  T previous[kTileQueries];
  int64_t begin, end;
  visible_keys(job.visible, t.first_query, t.queries, begin, end);
  // From the diagonal leftwards, as encodings that count from the query need it.
  for (int64_t last = end; last > begin; last -= kTileKeys) {
    t.first_key = std::max(begin, last - kTileKeys);
    t.keys = last - t.first_key;
    find_cover(job.visible, t);
    if (t.cover == Cover::kHidden) {
      continue;
    }
    const PackedRows<T> key{job.key.data + t.first_key * job.key.row, job.key.row};
    const PackedRows<T> value{job.value.data + t.first_key * job.value.row, job.value.row};
    std::copy(w.largest, w.largest + t.lanes, previous);
    const bool know_largest = t.cover == Cover::kAll && !has_bias(job.bias);
    score_product(key, w.query, t.keys, t.lanes, job.width, t.diagonal, w.scores, know_largest ? w.largest : nullptr);
    add_biases(job.bias, job.visible, t, w.strip, w.mask, w.scores);
    for_each_vector<T>(t, [&](int64_t q, const KeyRanges& keys) { weigh(t, q, keys, know_largest, w, previous); });
    if (job.dropout.probability > 0.0) {
      drop(job.dropout, t, w.scores);
    }
    if (t.cover != Cover::kAll && any_infinite(value.data, value.row, t.keys, value_width)) {
      for (int64_t i = 0; i < t.queries * value_width; ++i) {
        w.sums[i] *= w.factor[i / value_width];
      }
      sum_seen_keys(t, w.mask, w.scores, value, value_width, w.sums);
    } else {
      sum_over_keys(w.scores, value, t.keys, t.queries, value_width, t.diagonal, w.factor, w.sums);
    }
  }

  for (int64_t q = 0; q < t.queries; ++q) {
    const T total = w.total[q];
    job.lse[t.first_query + q] = total == T(0)
                                     ? -std::numeric_limits<T>::infinity()
                                     : static_cast<T>((w.largest[q] + std::log2(static_cast<double>(total))) * kLn2);
    w.factor[q] = total == T(0) ? T(0) : T(1) / total;
  }
  unpack_rows(w.sums, value_width, t.queries, job.value_width, w.factor, job.out);
}

template <typename T>
int64_t workspace_size(int64_t width, int64_t value_width) {
  return ForwardWorkspace<T>::size(width, value_width);
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
