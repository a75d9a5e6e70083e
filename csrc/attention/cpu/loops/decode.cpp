// Compiled once per instruction set.
#include "attention/terms/decode.h"
#include "attention/tile/exp2.h"
#include "attention/tile/gemv.h"

#include <functional>

namespace posenc::attention_ops {
namespace {

template <typename T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// The largest lane; NaN may get lost.
template <typename T>
T largest_lane(const Vec<T>& v) {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
  if constexpr (std::is_same_v<T, float>) {
    return at::vec::vec_reduce_all<T>([](Vec<T>& a, Vec<T>& b) { return at::vec::clamp_min(a, b); }, v);
  }
#endif
  alignas(64) T lanes[Vec<T>::size()];
  v.store(lanes);
  return *std::max_element(lanes, lanes + Vec<T>::size());
}

/// seen[key]: 1 where query q sees a key of the block, else 0.
template <typename T>
void fill_seen(const Visibility& v, const Tile& t, int64_t q, T* seen) {
  double distance[kDecodeKeys];
  fill_distances(v, t, q, distance);
  for (int64_t k = 0; k < t.keys; ++k) {
    seen[k] = sees_distance(v, -distance[k]) ? T(1) : T(0);
  }
  if (v.key_mask != nullptr) {
    for (int64_t k = 0; k < t.keys; ++k) {
      seen[k] = v.key_mask[t.first_key + k] ? seen[k] : T(0);
    }
  }
  if (v.segments != nullptr) {
    const int64_t segment = v.segments[v.keys - v.queries + q];
    for (int64_t k = 0; k < t.keys; ++k) {
      seen[k] = v.segments[t.first_key + k] == segment ? seen[k] : T(0);
    }
  }
}

template <typename T>
void hide(int64_t keys, const T* seen, T* scores) {
  for (int64_t k = 0; k < keys; ++k) {
    scores[k] = seen[k] != T(0) ? scores[k] : kHidden<T>;
  }
}

/// A row of scores becomes 2^(score - largest), and the largest moves on. Returns what earlier sums are multiplied by.
template <typename T>
T weigh(int64_t keys, T* scores, T& largest, double& total) {
  constexpr int64_t kLanes = Vec<T>::size();
  const int64_t lanes = padded<T>(keys);
  std::fill(scores + keys, scores + lanes, kHidden<T>);
  Vec<T> most(largest);
  for (int64_t k = 0; k < lanes; k += kLanes) {
    most = at::vec::clamp_min(Vec<T>::loadu(scores + k), most);
  }
  const T before = largest;
  largest = largest_lane(most);
  const Vec<T> shift(largest);
  Vec<T> sum(T(0));
  for (int64_t k = 0; k < lanes; k += kLanes) {
    const Vec<T> x = exp2(Vec<T>::loadu(scores + k) - shift);
    sum = sum + x;
    x.store(scores + k);
  }
  T factor(1);
  if (largest != before) {
    alignas(64) T all[kLanes];
    exp2(Vec<T>(before) - shift).store(all);
    factor = all[0];
  }
  total = total * static_cast<double>(factor) + static_cast<double>(cpu::sum_lanes(sum));
  return factor;
}

template <typename T>
void drop_row(const Dropout& dropout, const Tile& block, int64_t q, T* weights, T* scratch) {
  Tile t = block;
  t.first_query = q;
  t.queries = 1;
  t.lanes = 1;
  for (int64_t k = 0; k < t.keys; ++k) {
    scratch[k * kTileQueries] = weights[k];
  }
  drop(dropout, t, scratch);
  for (int64_t k = 0; k < t.keys; ++k) {
    weights[k] = scratch[k * kTileQueries];
  }
}

/// sums = factor * sums + weights . values over the keys that the row sees: sum_rows() where a value is not finite.
template <typename T, typename Element>
void sum_seen(const T* seen, const T* weights, const BlockRows<Element>& value, int64_t width, T factor, T* sums) {
  for_each_step<T, Element>(width, [&](int64_t d, const auto& load) {
    Pair<T> sum{Vec<T>(T(0)), Vec<T>(T(0))};
    for (int64_t k = 0; k < value.keys; ++k) {
      if (seen[k] != T(0)) {
        const Pair<T> x = load(value.data + k * value.row + d);
        sum.first = fmadd(Vec<T>(weights[k]), x.first, sum.first);
        sum.second = fmadd(Vec<T>(weights[k]), x.second, sum.second);
      }
    }
    T* second = sums + d + Vec<T>::size();
    fmadd(Vec<T>(factor), Vec<T>::loadu(sums + d), sum.first).store(sums + d);
    fmadd(Vec<T>(factor), Vec<T>::loadu(second), sum.second).store(second);
  });
}

/// One job.
template <typename T, typename Element>
class Decoder {
 public:
  static int64_t size(const Shape& s, int64_t rows) {
    return rows * (3 * kDecodeKeys + (s.far ? 2 : 1) * whole_steps<T>(s.width) + 2 * whole_steps<T>(s.value_width) + 2 +
                   kDouble) +
           kDecodeKeys * kTileQueries + DecodeRelative<T>::size(s, rows) + DecodeContextual<T>::size(s, rows);
  }

  Decoder(const DecodeJob<T>& job, T* at)
      : job_(job),
        rows_(job.heads * job.queries),
        query_row_(whole_steps<T>(job.shape.width)),
        sums_row_(whole_steps<T>(job.shape.value_width)),
        scores_(std::exchange(at, at + rows_ * kDecodeKeys)),
        other_scores_(std::exchange(at, at + rows_ * kDecodeKeys)),
        seen_(std::exchange(at, at + rows_ * kDecodeKeys)),
        query_(std::exchange(at, at + rows_ * query_row_)),
        far_query_(std::exchange(at, at + (job.shape.far ? rows_ * query_row_ : 0))),
        sums_(std::exchange(at, at + rows_ * sums_row_)),
        older_sums_(std::exchange(at, at + rows_ * sums_row_)),
        since_(std::exchange(at, at + rows_)),
        factor_(std::exchange(at, at + rows_)),
        scratch_(std::exchange(at, at + kDecodeKeys * kTileQueries)),
        total_(reinterpret_cast<double*>(std::exchange(at, at + rows_ * kDouble))),
        relative_(job, std::exchange(at, at + DecodeRelative<T>::size(job.shape, rows_))),
        contextual_(job, at) {}

  void run() {
    int64_t begin, end;
    visible_keys(job_.visible, 0, job_.queries, begin, end);
    begin = std::clamp(begin, job_.first_key, job_.last_key);
    end = std::clamp(end, begin, job_.last_key);
    start(begin, end);
    for (int64_t walked = 0; walked < end - begin && !stops(); walked += t_.keys) {
      enter(begin, end, walked);
      find_cover(job_.visible, t_);
      if (t_.cover != Cover::kHidden) {
        attend();
      }
    }
    finish();
  }

 private:
  /// Elements of T in a double.
  static constexpr int64_t kDouble = sizeof(double) / sizeof(T);

  void start(int64_t begin, int64_t end) {
    t_.queries = job_.queries;
    t_.first_key = end;
    arrange_rows<T, Element>(job_.query, rows_, job_.shape.width, query_);
    if (job_.shape.far) {
      arrange_rows<T, Element>(job_.far_query, rows_, job_.shape.width, far_query_);
    }
    if (relative_.used() && begin < end) {
      relative_.begin(begin, end);
    }
    if (contextual_.used()) {
      contextual_.begin();
    }
    std::fill(job_.largest, job_.largest + rows_, std::numeric_limits<T>::lowest());
    std::fill(total_, total_ + rows_, 0.0);
    std::fill(sums_, sums_ + rows_ * sums_row_, T(0));
    std::fill(older_sums_, older_sums_ + rows_ * sums_row_, T(0));
    std::fill(since_, since_ + rows_, T(1));
  }

  /// Moves on to the block behind `walked` keys of begin .. end - 1. Positions count leftwards; else the way that
  /// memory is read fastest is taken.
  void enter(int64_t begin, int64_t end, int64_t walked) {
    t_.keys = std::min(kDecodeKeys, end - begin - walked);
    t_.first_key = contextual_.used() ? end - walked - t_.keys : begin + walked;
  }

  bool stops() const { return job_.stop != nullptr && contextual_.saturated(); }

  bool counts() const { return contextual_.used() && !contextual_.saturated(); }

  /// Takes in the keys and values of a block.
  void attend() {
    multiply();
    if (t_.cover != Cover::kAll || job_.scores->bias.bias.data != nullptr) {
      find_seen();
    }
    if (contextual_.used()) {
      for (int64_t r = 0; r < rows_; ++r) {
        job_.largest[r] -= contextual_.newly_lacking(r);
      }
    }
    if (counts()) {
      add_contextual();
    }
    bool all = true;
    for (int64_t r = 0; r < rows_; ++r) {
      all = finish_scores(r) && all;
      weigh_row(r);
    }
    std::transform(factor_, factor_ + rows_, since_, since_, std::multiplies<T>());
    sum_values(all);
    if (++blocks_ % kSumsTogether == 0) {
      set_sums_aside(rows_, sums_row_, sums_, older_sums_, since_);
    }
  }

  /// Scores of near and far keys.
  void multiply() {
    if (!job_.shape.far) {
      product(query_, job_.key, scores_);
      return;
    }
    const Range<double> distances = range_of_distances(job_.visible, t_);
    const double nearest_far = -static_cast<double>(job_.scores->far.threshold);
    if (distances.largest <= nearest_far) {
      product(far_query_, job_.far_key, scores_);
      return;
    }
    product(query_, job_.key, scores_);
    if (distances.smallest <= nearest_far) {
      product(far_query_, job_.far_key, other_scores_);
      choose_far(nearest_far);
    }
  }

  void product(const T* query, const ConstRows& keys, T* to) const {
    score_rows(query, query_row_, rows_, block_of(keys, job_.shape.width), job_.shape.width, to, kDecodeKeys);
  }

  BlockRows<Element> block_of(const ConstRows& rows, int64_t width) const {
    const int64_t ahead = contextual_.used() ? -kDecodeKeys * rows.row : elements_ahead<Element>(rows.row, width);
    return {static_cast<const Element*>(rows.data) + t_.first_key * rows.row, rows.row, t_.keys, ahead};
  }

  void choose_far(double nearest_far) {
    double distance[kDecodeKeys];
    for (int64_t r = 0; r < rows_; ++r) {
      fill_distances(job_.visible, t_, r % job_.queries, distance);
      T* scores = scores_ + r * kDecodeKeys;
      const T* far = other_scores_ + r * kDecodeKeys;
      for (int64_t k = 0; k < t_.keys; ++k) {
        scores[k] = distance[k] <= nearest_far ? far[k] : scores[k];
      }
    }
  }

  void find_seen() {
    for (int64_t q = 0; q < job_.queries; ++q) {
      fill_seen(job_.visible, t_, q, seen_ + q * kDecodeKeys);
    }
    for (int64_t h = 1; h < job_.heads; ++h) {
      std::copy(seen_, seen_ + job_.queries * kDecodeKeys, seen_ + h * job_.queries * kDecodeKeys);
    }
  }

  void add_contextual() {
    contextual_.make_ready(t_.keys);
    const T* gate_scores = scores_;
    if (job_.gate_key.data != nullptr) {
      product(query_, job_.gate_key, other_scores_);
      gate_scores = other_scores_;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t at = r * kDecodeKeys;
      contextual_.add(r, t_.keys, t_.cover == Cover::kAll ? nullptr : seen_ + at, gate_scores + at, scores_ + at);
    }
  }

  /// Adds to a row of scores what follows from distances and from a bias, and hides. Returns whether the row sees all
  /// keys.
  bool finish_scores(int64_t r) {
    const int64_t q = r % job_.queries;
    const ScoreBias<T>& bias = job_.scores[r / job_.queries].bias;
    T *scores = scores_ + r * kDecodeKeys, *seen = seen_ + r * kDecodeKeys;
    if (relative_.used() || depends_on_distance(bias)) {
      fill_distances(job_.visible, t_, q, distance_);
      add_distance_bias(bias, distance_, t_.keys, scores);
    }
    if (relative_.used()) {
      relative_.add(r, distance_, t_.keys, scores);
    }
    if (bias.decay_sums != nullptr) {
      add_decay(bias, job_.visible, t_, q, scores);
    }
    bool all = t_.cover == Cover::kAll;
    if (bias.bias.data != nullptr) {
      all = !add_bias(bias.bias, t_, q, scores, seen) && all;
    }
    if (!all) {
      hide(t_.keys, seen, scores);
    }
    return all;
  }

  /// Makes the scores that finish_scores() has left weights.
  void weigh_row(int64_t r) {
    const Dropout& dropout = job_.dropouts[r / job_.queries];
    T* weights = scores_ + r * kDecodeKeys;
    factor_[r] = weigh(t_.keys, weights, job_.largest[r], total_[r]);
    if (dropout.probability > 0.0) {
      drop_row(dropout, t_, r % job_.queries, weights, scratch_);
    }
    if (relative_.has_values()) {
      relative_.weigh(r, distance_, t_.keys, weights, factor_[r]);
    }
  }

  void sum_values(bool all) {
    const int64_t width = job_.shape.value_width;
    const BlockRows<Element> value = block_of(job_.value, width);
    if (all || !any_infinite_element<T>(value, width)) {
      sum_rows(scores_, rows_, value, width, factor_, sums_, sums_row_);
      return;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      sum_seen(seen_ + r * kDecodeKeys, scores_ + r * kDecodeKeys, value, width, factor_[r], sums_ + r * sums_row_);
    }
  }

  /// Writes what the job has found.
  void finish() {
    set_sums_aside(rows_, sums_row_, sums_, older_sums_, since_);
    for (int64_t r = 0; r < rows_; ++r) {
      T* sums = job_.sums + r * job_.sums_row;
      std::fill(sums, sums + padded<T>(job_.shape.value_width), T(0));
      restore<T, Element>(older_sums_ + r * sums_row_, job_.shape.value_width, sums);
      job_.total[r] = static_cast<T>(total_[r]);
      if (contextual_.used()) {
        job_.largest[r] += contextual_.lacking(r);
      }
    }
    if (relative_.has_values()) {
      relative_.finish();
    }
    if (job_.stop != nullptr) {
      *job_.stop = t_.first_key;
    }
  }

  const DecodeJob<T>& job_;
  int64_t rows_, query_row_, sums_row_;
  T *scores_, *other_scores_, *seen_, *query_, *far_query_, *sums_, *older_sums_, *since_, *factor_, *scratch_;
  double* total_;
  DecodeRelative<T> relative_;
  DecodeContextual<T> contextual_;
  int64_t blocks_ = 0;
  /// The block at hand, with all queries.
  Tile t_{};
  /// key - query along the row at hand, where something depends on it.
  double distance_[kDecodeKeys];
};

template <typename T, typename Element>
void decode(const DecodeJob<T>& job, T* workspace) {
  Decoder<T, Element>(job, workspace).run();
}

void decode_float(const DecodeJob<float>& job, float* workspace) {
  switch (job.key.type) {
    case ElementType::kBFloat16:
      return decode<float, c10::BFloat16>(job, workspace);
    case ElementType::kHalf:
      return decode<float, c10::Half>(job, workspace);
    default:
      return decode<float, float>(job, workspace);
  }
}

void decode_double(const DecodeJob<double>& job, double* workspace) { decode<double, double>(job, workspace); }

template <typename T>
int64_t workspace_size(const Shape& shape, int64_t rows) {
  return Decoder<T, T>::size(shape, rows);
}

constexpr DecodeKernels kKernels{
    .workspace_float = &workspace_size<float>,
    .workspace_double = &workspace_size<double>,
    .decode_float = &decode_float,
    .decode_double = &decode_double,
};

}  // namespace

POSENC_DEFINE_KERNELS(DecodeKernels, attention_decode_kernels, kKernels)

}  // namespace posenc::attention_ops
