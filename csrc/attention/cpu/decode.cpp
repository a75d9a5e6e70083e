/// Jobs of the decode kernel: ranges of keys, merged by their sums of exponentials.

#include "attention/cpu/jobs.h"
#include "attention/cpu/ops.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {
namespace {

/// Keys that a part of the work reads at least.
constexpr int64_t kSplitKeys = 256;

/// The jobs of a call and what they find. A pair is a batch row and a key head with the query heads that share it.
template <typename T>
class DecodeJobs {
 public:
  DecodeJobs(const Call& c, int64_t seed)
      : c_(c), n_(c), rules_(c), seed_(seed), shape_(rules_.shape()), rows_(n_.share * n_.queries) {
    const int64_t threads = n_.products() < kSerialProducts ? 1 : at::get_num_threads();
    parts_ = std::clamp<int64_t>(ceil_div(threads, pairs()), 1, ceil_div(n_.keys, kSplitKeys));
    grain_ = threads == 1 ? pairs() * parts_ : 1;
    walks_bands_ = c.has(kPosEmb) && parts_ > 1;
    states_ = at::empty({pairs(), parts_ + walks_bands_, rows_ * (2 + sums_row())},
                        at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  }

  void run() {
    std::vector<int64_t> keys(pairs(), n_.keys);
    if (walks_bands_) {
      // Positions count leftwards from the queries, one part after another, until further keys are all at the last.
      at::parallel_for(0, pairs(), grain_, [&](int64_t begin, int64_t end) {
        for (int64_t pair = begin; pair < end; ++pair) {
          run_part(pair, parts_, 0, n_.keys, &keys[pair]);
        }
      });
    }
    at::parallel_for(0, pairs() * parts_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t pair = item / parts_, part = item % parts_;
        run_part(pair, part, keys[pair] * part / parts_, keys[pair] * (part + 1) / parts_, nullptr);
      }
    });
  }

  void write(const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state) const {
    std::vector<T> sums(sums_row());
    for (int64_t pair = 0; pair < pairs(); ++pair) {
      for (int64_t row = 0; row < rows_; ++row) {
        const int64_t b = pair / n_.groups, h = pair % n_.groups * n_.share + row / n_.queries, q = row % n_.queries;
        const auto [largest, total] = merge(pair, row, sums.data());
        lse.mutable_data_ptr<T>()[(b * n_.heads + h) * n_.queries + q] =
            total == T(0) ? -std::numeric_limits<T>::infinity()
                          : static_cast<T>((largest + std::log2(static_cast<double>(total))) * kLn2);
        const SoftmaxState<T> softmax = softmax_state<T>(state, b * n_.heads + h);
        if (softmax.largest != nullptr) {
          softmax.largest[q] = largest;
          softmax.total[q] = total;
        }
        const T factor = total == T(0) ? T(0) : T(1) / total;
        KernelsOf<T>::unpack(sums.data(), n_.value_width, factor, mutable_rows_of(out, b, h, q));
      }
    }
  }

 private:
  int64_t pairs() const { return n_.batch * n_.groups; }
  int64_t query_row() const { return whole_vectors<T>(n_.width); }
  int64_t sums_row() const { return whole_vectors<T>(n_.value_width); }

  /// What a part has found: by row the largest score, then the sums of exponentials, then those of values.
  T* state(int64_t pair, int64_t part) const {
    return states_.mutable_data_ptr<T>() + (pair * states_.size(1) + part) * states_.size(2);
  }

  /// stop: null, or the part walks the band and writes where it begins.
  void run_part(int64_t pair, int64_t part, int64_t first_key, int64_t last_key, int64_t* stop) const {
    const int64_t b = pair / n_.groups, g = pair % n_.groups;
    std::vector<Scores<T>> scores;
    std::vector<Dropout> dropouts;
    for (int64_t h = g * n_.share; h < (g + 1) * n_.share; ++h) {
      scores.push_back(rules_.scores(b, h));
      dropouts.push_back(dropout_of(c_, seed_, b * n_.heads + h));
    }
    DecodeJob<T> job{};
    job.shape = shape_;
    job.visible = rules_.visibility(b);
    job.scores = scores.data();
    job.dropouts = dropouts.data();
    job.heads = n_.share;
    job.queries = n_.queries;
    job.first_key = first_key;
    job.last_key = last_key;
    job.saturated = walks_bands_ && stop == nullptr;
    job.stop = stop;
    job.largest = state(pair, part);
    job.total = job.largest + rows_;
    job.sums = job.total + rows_;
    job.sums_row = sums_row();
    Memory& memory = thread_memory();
    enter_queries_and_keys(job, b, g, memory);
    KernelsOf<T>::decode(job, memory.workspace.get<T>(KernelsOf<T>::decode_workspace(shape_, rows_)));
  }

  void enter_queries_and_keys(DecodeJob<T>& job, int64_t b, int64_t g, Memory& memory) const {
    const double scale = c_.score_scale();
    const int64_t size = rows_ * query_row();
    T* queries = memory.key.get<T>(2 * size);
    job.query = pack(c_.query(), b, g, scale, queries);
    job.key = rows_of(c_.key(), b, g);
    job.value = rows_of(c_.value(), b, g);
    if (c_.has(kFarQuery)) {
      job.far_query = pack(c_[kFarQuery], b, g, scale, queries + size);
      job.far_key = rows_of(c_[kFarKey], b, g);
    }
    if (c_.has(kPosEmb)) {
      job.position_query = pack(c_.query(), b, g, job.scores->contextual.scale, queries + size);
    }
    if (c_.has(kGateKey)) {
      job.gate_key = rows_of(c_[kGateKey], b, g);
    }
  }

  /// The queries of a pair times scale * log2 e: scores are in base 2.
  PackedRows<T> pack(const Tensor& x, int64_t b, int64_t g, double scale, T* to) const {
    const int64_t head = n_.queries * query_row();
    for (int64_t i = 0; i < n_.share; ++i) {
      KernelsOf<T>::pack(rows_of(x, b, g * n_.share + i), n_.queries, n_.width, query_row(), to + i * head);
    }
    const T factor = static_cast<T>(scale * kLog2E);
    std::transform(to, to + n_.share * head, to, [factor](T q) { return q * factor; });
    return {to, query_row()};
  }

  /// The largest score of a row in base 2, the sum of 2^(score - largest), and the sums of values with those weights.
  std::pair<T, T> merge(int64_t pair, int64_t row, T* sums) const {
    const int64_t parts = states_.size(1);
    T largest = state(pair, 0)[row];
    for (int64_t part = 1; part < parts; ++part) {
      const T x = state(pair, part)[row];
      largest = x > largest || x != x ? x : largest;
    }
    T total(0);
    std::fill(sums, sums + n_.value_width, T(0));
    for (int64_t part = 0; part < parts; ++part) {
      const T *found = state(pair, part), *values = found + 2 * rows_ + row * sums_row();
      const T factor = std::exp2(found[row] - largest);
      total += factor * found[rows_ + row];
      for (int64_t d = 0; d < n_.value_width; ++d) {
        sums[d] += factor * values[d];
      }
    }
    return {largest, total};
  }

  const Call& c_;
  Sizes n_;
  Rules<T> rules_;
  int64_t seed_;
  Shape shape_;
  int64_t rows_, grain_, parts_;
  /// Whether parts of their own count positions: then the others begin where all keys are at the last one.
  bool walks_bands_;
  Tensor states_;
};

}  // namespace

bool decodes(const Call& c) {
  const Sizes n(c);
  const auto adjacent = [&](Slot slot) { return !c.has(slot) || c[slot].stride(3) == 1 || c[slot].size(3) == 1; };
  return n.queries <= 8 && n.share * n.queries <= 32 && adjacent(kKey) && adjacent(kValue) && adjacent(kFarKey) &&
         adjacent(kGateKey);
}

template <typename T>
void run_decode(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse, const std::vector<Tensor>& state) {
  DecodeJobs<T> jobs(c, seed);
  jobs.run();
  jobs.write(out, lse, state);
}

template void run_decode<float>(const Call&, int64_t, const Tensor&, const Tensor&, const std::vector<Tensor>&);
template void run_decode<double>(const Call&, int64_t, const Tensor&, const Tensor&, const std::vector<Tensor>&);

}  // namespace posenc::attention_ops
