// Compiled once per instruction set.
#include "attention/cpu/loops/kernel.h"
#include "attention/terms/kernels.h"

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

/// visible[key]: 1 where query q sees a key of the block, else 0.
template <typename T>
void fill_visible(const Visibility& v, const Tile& t, int64_t q, T* visible) {
  if (v.by_index()) {
    const int64_t position = q + v.offset;
    for (int64_t k = 0; k < t.keys; ++k) {
      visible[k] = sees(v, position, t.first_key + k) ? T(1) : T(0);
    }
  } else {
    with_positions(v, [&](const auto* queries, const auto* keys) {
      for (int64_t k = 0; k < t.keys; ++k) {
        visible[k] = sees(v, queries[q], keys[t.first_key + k]) ? T(1) : T(0);
      }
    });
  }
  for (int64_t k = 0; k < t.keys && v.k_blocks != nullptr; ++k) {
    visible[k] = in_one_block(v, q, t.first_key + k) ? T(1) : visible[k];
  }
  if (v.key_mask != nullptr) {
    for (int64_t k = 0; k < t.keys; ++k) {
      visible[k] = v.key_mask[t.first_key + k] ? visible[k] : T(0);
    }
  }
  for (int64_t k = 0; k < t.keys && v.k_segments != nullptr; ++k) {
    visible[k] = v.k_segments[t.first_key + k] == v.q_segments[q] ? visible[k] : T(0);
  }
}

template <typename T>
void hide(int64_t keys, const T* visible, T* scores) {
  for (int64_t k = 0; k < keys; ++k) {
    scores[k] = visible[k] != T(0) ? scores[k] : kHidden<T>;
  }
}

/// A row of scores becomes 2^(score - largest), and the largest moves on. Returns what earlier sums are multiplied by.
template <typename T>
T make_weights(int64_t keys, T* scores, T& largest, double& total) {
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
void sum_visible(const T* visible, const T* weights, const BlockRows<Element>& value, int64_t width, T factor,
                 T* sums) {
  for_each_step<T, Element>(width, [&](int64_t d, const auto& load) {
    Pair<T> sum{Vec<T>(T(0)), Vec<T>(T(0))};
    for (int64_t k = 0; k < value.keys; ++k) {
      if (visible[k] != T(0)) {
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
  static int64_t size(const WorkspaceSpec<T>& spec, int64_t heads, int64_t queries) {
    const DecodeContext<T> context{spec.width, spec.value_width, heads, queries, nullptr, {}};
    return context.rows() *
               (2 * kDecodeKeys + whole_steps<T>(spec.width) + 2 * whole_steps<T>(spec.value_width) + 2 + kDouble) +
           kDecodeKeys * kTileQueries + DecodeTerms<T>::size(spec.heads, context);
  }

  Decoder(const DecodeJob<T>& job, T* at)
      : job_(job),
        rows_(job.heads * job.queries),
        query_row_(whole_steps<T>(job.width)),
        sums_row_(whole_steps<T>(job.value_width)),
        scores_(std::exchange(at, at + rows_ * kDecodeKeys)),
        visible_(std::exchange(at, at + rows_ * kDecodeKeys)),
        query_(std::exchange(at, at + rows_ * query_row_)),
        sums_(std::exchange(at, at + rows_ * sums_row_)),
        flushed_sums_(std::exchange(at, at + rows_ * sums_row_)),
        scale_since_flush_(std::exchange(at, at + rows_)),
        factor_(std::exchange(at, at + rows_)),
        scratch_(std::exchange(at, at + kDecodeKeys * kTileQueries)),
        total_(reinterpret_cast<double*>(std::exchange(at, at + rows_ * kDouble))),
        terms_(job.head_terms, job.rows, {job.width, job.value_width, job.heads, job.queries, &job.visible, job.query},
               at) {}

  void run() {
    int64_t begin, end;
    visible_keys(job_.visible, 0, job_.queries, begin, end);
    begin = std::clamp(begin, job_.first_key, job_.last_key);
    end = std::clamp(end, begin, job_.last_key);
    start(begin, end);
    for (int64_t walked = 0; walked < end - begin && !stops(); walked += t_.keys) {
      select_block(begin, end, walked);
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

  /// Products of the block at hand, as terms ask for them.
  struct Product {
    const Decoder& decoder;

    /// Rows of queries as the others take them.
    void arrange(const PackedRows<T>& from, T* to) const {
      arrange_rows<T, Element>(from, decoder.rows_, decoder.job_.width, to);
    }
    /// Rows of a table likewise.
    void arrange(const PackedRows<T>& from, int64_t rows, T* to) const {
      arrange_rows<T, Element>(from, rows, decoder.job_.width, to);
    }
    void operator()(const T* query, const ConstRows& keys, T* to) const {
      score_rows(query, decoder.query_row_, decoder.rows_, decoder.block_of(keys, decoder.job_.width),
                 decoder.job_.width, to, kDecodeKeys);
    }
    void of_query(const ConstRows& keys, T* to) const { (*this)(decoder.query_, keys, to); }
    void near(T* to) const { of_query(decoder.job_.key, to); }
    /// to[key] = row_of(key) . key for the block's keys; row_of() gives arranged rows.
    template <typename RowOf>
    void of_rows(const RowOf& row_of, T* to) const {
      const int64_t width = decoder.job_.width;
      const BlockRows<Element> keys = decoder.block_of(decoder.job_.key, width);
      for (int64_t k = 0; k < keys.keys; ++k) {
        const T* row = row_of(k);
        Vec<T> sum(T(0));
        for_each_step<T, Element>(width, [&](int64_t d, const auto& load) {
          const Pair<T> x = load(keys.data + k * keys.row + d);
          sum = fmadd(x.first, Vec<T>::loadu(row + d), sum);
          sum = fmadd(x.second, Vec<T>::loadu(row + d + Vec<T>::size()), sum);
        });
        to[k] = cpu::sum_lanes(sum);
      }
    }
  };

  void start(int64_t begin, int64_t end) {
    t_.queries = job_.queries;
    t_.first_key = end;
    const Product product{*this};
    product.arrange(job_.query, query_);
    terms_.for_each([&](auto& term) {
      term.begin(begin, end, product);
      needs_distance_ = needs_distance_ || term.kNeedsDistance;
      needs_mask_ = needs_mask_ || term.needs_mask();
      counts_from_query_ = counts_from_query_ || term.counts_from_query();
    });
    std::fill(job_.largest, job_.largest + rows_, std::numeric_limits<T>::lowest());
    std::fill(total_, total_ + rows_, 0.0);
    std::fill(sums_, sums_ + rows_ * sums_row_, T(0));
    std::fill(flushed_sums_, flushed_sums_ + rows_ * sums_row_, T(0));
    std::fill(scale_since_flush_, scale_since_flush_ + rows_, T(1));
  }

  /// Selects the next block: from the last key to the first where a term counts from the query, otherwise from the
  /// first to the last, which memory reads fastest. `walked` keys of begin .. end - 1 are done.
  void select_block(int64_t begin, int64_t end, int64_t walked) {
    t_.keys = std::min(kDecodeKeys, end - begin - walked);
    t_.first_key = counts_from_query_ ? end - walked - t_.keys : begin + walked;
  }

  bool stops() const {
    return job_.stop != nullptr && terms_.any([](const auto& term) { return term.stops(); });
  }

  /// Takes in the keys and values of a block.
  void attend() {
    const Product product{*this};
    if (!terms_.any([&](auto& term) { return term.make_product(t_, product, scores_); })) {
      product.near(scores_);
    }
    if (t_.cover != Cover::kAll || needs_mask_) {
      find_visible();
    }
    terms_.for_each([&](auto& term) {
      for (int64_t r = 0; r < rows_; ++r) {
        job_.largest[r] -= term.newly_deferred(r);
      }
      term.begin_block(t_, product, scores_);
    });
    bool all = true;
    for (int64_t r = 0; r < rows_; ++r) {
      all = finish_row(r) && all;
    }
    std::transform(factor_, factor_ + rows_, scale_since_flush_, scale_since_flush_, std::multiplies<T>());
    sum_values(all);
    if (++blocks_ % kSumsTogether == 0) {
      flush_sums(rows_, sums_row_, sums_, flushed_sums_, scale_since_flush_);
    }
  }

  BlockRows<Element> block_of(const ConstRows& rows, int64_t width) const {
    const int64_t ahead = counts_from_query_ ? -kDecodeKeys * rows.row : elements_ahead<Element>(rows.row, width);
    return {static_cast<const Element*>(rows.data) + t_.first_key * rows.row, rows.row, t_.keys, ahead};
  }

  void find_visible() {
    for (int64_t q = 0; q < job_.queries; ++q) {
      fill_visible(job_.visible, t_, q, visible_ + q * kDecodeKeys);
    }
    for (int64_t h = 1; h < job_.heads; ++h) {
      std::copy(visible_, visible_ + job_.queries * kDecodeKeys, visible_ + h * job_.queries * kDecodeKeys);
    }
  }

  /// Turns the products of a row into weights. Returns whether the row sees all keys.
  bool finish_row(int64_t r) {
    const int64_t q = r % job_.queries;
    if (needs_distance_) {
      fill_distances(job_.visible, t_, q, distance_);
    }
    DecodeRow<T> row{
        t_, r, q, distance_, visible_ + r * kDecodeKeys, scores_ + r * kDecodeKeys, t_.cover != Cover::kAll};
    terms_.for_each([&](auto& term) { term.cap_product(row); });
    terms_.for_each([&](auto& term) { term.add(row); });
    terms_.for_each([&](auto& term) { term.cap_scores(row); });
    if (row.partial) {
      hide(t_.keys, row.visible, row.scores);
    }
    factor_[r] = make_weights(t_.keys, row.scores, job_.largest[r], total_[r]);
    const Dropout& dropout = job_.dropouts[r / job_.queries];
    if (dropout.probability > 0.0) {
      drop_row(dropout, t_, q, row.scores, scratch_);
    }
    terms_.for_each([&](auto& term) { term.accumulate_weights(row, factor_[r]); });
    return !row.partial;
  }

  void sum_values(bool all) {
    const int64_t width = job_.value_width;
    const BlockRows<Element> value = block_of(job_.value, width);
    if (all || !any_nonfinite_element<T>(value, width)) {
      sum_rows(scores_, rows_, value, width, factor_, sums_, sums_row_);
      return;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      sum_visible(visible_ + r * kDecodeKeys, scores_ + r * kDecodeKeys, value, width, factor_[r],
                  sums_ + r * sums_row_);
    }
  }

  /// Writes what the job has found.
  void finish() {
    flush_sums(rows_, sums_row_, sums_, flushed_sums_, scale_since_flush_);
    for (int64_t r = 0; r < rows_; ++r) {
      T* sums = job_.sums + r * job_.sums_row;
      std::fill(sums, sums + padded<T>(job_.value_width), T(0));
      restore<T, Element>(flushed_sums_ + r * sums_row_, job_.value_width, sums);
      job_.total[r] = static_cast<T>(total_[r]);
    }
    terms_.for_each([&](auto& term) {
      for (int64_t r = 0; r < rows_; ++r) {
        job_.largest[r] += term.deferred(r);
      }
      term.finish(job_.sums, job_.sums_row);
    });
    if (job_.stop != nullptr) {
      *job_.stop = t_.first_key;
    }
  }

  const DecodeJob<T>& job_;
  int64_t rows_, query_row_, sums_row_;
  T *scores_, *visible_, *query_, *sums_, *flushed_sums_, *scale_since_flush_, *factor_, *scratch_;
  double* total_;
  DecodeTerms<T> terms_;
  bool needs_distance_ = false, needs_mask_ = false, counts_from_query_ = false;
  int64_t blocks_ = 0;
  /// The block at hand, with all queries.
  Tile t_{};
  /// key - query along the row at hand, where a term needs it.
  int64_t distance_[kDecodeKeys];
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
int64_t workspace_size(const WorkspaceSpec<T>& spec, int64_t heads, int64_t queries) {
  return Decoder<T, T>::size(spec, heads, queries);
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
