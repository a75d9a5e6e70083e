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
      : c_(c), n_(c), call_(c), seed_(seed), spec_(call_.workspace_spec()), rows_(n_.heads_per_group * n_.queries) {
    const int64_t threads = n_.products() < kSerialProducts ? 1 : at::get_num_threads();
    parts_ = std::clamp<int64_t>(ceil_div(threads, pairs()), 1, ceil_div(n_.keys, kSplitKeys));
    grain_ = threads == 1 ? pairs() * parts_ : 1;
    walks_first_ = call_.terms().counts_from_query() && parts_ > 1;
    states_ = at::empty({pairs(), parts_ + walks_first_, rows_ * (2 + sums_row())},
                        at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  }

  void run() {
    std::vector<int64_t> keys(pairs(), n_.keys);
    if (walks_first_) {
      // A term that counts from the queries walks keys from the last on, until it has found what it counts.
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

  void write(const Tensor& out, const Residuals& r) const {
    std::vector<T> sums(sums_row());
    for (int64_t pair = 0; pair < pairs(); ++pair) {
      for (int64_t row = 0; row < rows_; ++row) {
        const int64_t b = pair / n_.groups, h = pair % n_.groups * n_.heads_per_group + row / n_.queries,
                      q = row % n_.queries;
        const auto [part_largest, part_total] = merge(pair, row, sums.data());
        double largest = static_cast<double>(part_largest), total = static_cast<double>(part_total);
        const double kept = join_sink(call_.terms().sink(b, h, q), largest, total);
        r.lse.mutable_data_ptr<T>()[(b * n_.heads + h) * n_.queries + q] =
            total == 0.0 ? -std::numeric_limits<T>::infinity() : static_cast<T>((largest + std::log2(total)) * kLn2);
        const SoftmaxState<T> softmax = softmax_state<T>(r, b * n_.heads + h);
        if (softmax.largest != nullptr) {
          softmax.largest[q] = static_cast<T>(largest);
          softmax.total[q] = static_cast<T>(total);
        }
        const T factor = total == 0.0 ? T(0) : static_cast<T>(kept / total);
        KernelsOf<T>::unpack(sums.data(), n_.value_width, factor, mutable_rows_of(out, b, h, q));
      }
    }
  }

 private:
  int64_t pairs() const { return n_.batch * n_.groups; }
  int64_t sums_row() const { return whole_vectors<T>(n_.value_width); }

  /// What a part has found: by row the largest score, then the sums of exponentials, then those of values.
  T* state(int64_t pair, int64_t part) const {
    return states_.mutable_data_ptr<T>() + (pair * states_.size(1) + part) * states_.size(2);
  }

  /// stop: null, or the part walks the band and writes where it begins.
  void run_part(int64_t pair, int64_t part, int64_t first_key, int64_t last_key, int64_t* stop) const {
    const int64_t b = pair / n_.groups, g = pair % n_.groups;
    std::vector<Heads<T>> heads;
    std::vector<Dropout> dropouts;
    for (int64_t h = g * n_.heads_per_group; h < (g + 1) * n_.heads_per_group; ++h) {
      heads.push_back(call_.terms().heads(b, h));
      dropouts.push_back(dropout_of(c_, seed_, b * n_.heads + h));
    }
    DecodeJob<T> job{};
    job.width = n_.width;
    job.value_width = n_.value_width;
    job.visible = call_.visibility(b);
    job.head_terms = heads.data();
    job.dropouts = dropouts.data();
    job.heads = n_.heads_per_group;
    job.queries = n_.queries;
    job.first_key = first_key;
    job.last_key = last_key;
    job.stop = stop;
    job.largest = state(pair, part);
    job.total = job.largest + rows_;
    job.sums = job.total + rows_;
    job.sums_row = sums_row();
    const auto pack = [&](Input memory, const Tensor& x, double scale) { return pack_queries(memory, x, b, g, scale); };
    job.query = pack(kQuery, c_.query(), c_.score_scale());
    job.key = rows_of(c_.key(), b, g);
    job.value = rows_of(c_.value(), b, g);
    const auto keys_of = [&](Input input) { return rows_of(c_[input], b, g); };
    job.rows = call_.terms().decode_rows(pack, keys_of, /*stopped=*/walks_first_ && stop == nullptr);
    const int64_t size = KernelsOf<T>::decode_workspace(spec_, job.heads, job.queries);
    KernelsOf<T>::decode(job, thread_memory().workspace.get<T>(size));
  }

  /// The queries of a group times scale * log2 e, as scores are in base 2, in memory of this thread.
  PackedRows<T> pack_queries(Input memory, const Tensor& x, int64_t b, int64_t g, double scale) const {
    const int64_t width = x.size(3), row = whole_vectors<T>(width), of_head = n_.queries * row, size = rows_ * row;
    T* to = thread_memory().inputs[memory].get<T>(size);
    for (int64_t i = 0; i < n_.heads_per_group; ++i) {
      KernelsOf<T>::pack(rows_of(x, b, g * n_.heads_per_group + i), n_.queries, width, row, to + i * of_head);
    }
    const T factor = static_cast<T>(scale * kLog2E);
    std::transform(to, to + size, to, [factor](T q) { return q * factor; });
    return {to, row};
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
  PreparedCall<T> call_;
  int64_t seed_;
  WorkspaceSpec<T> spec_;
  int64_t rows_, grain_, parts_;
  /// Whether a part of its own walks keys from the last on; the others begin where it stopped.
  bool walks_first_;
  Tensor states_;
};

}  // namespace

bool decodes(const Call& c) {
  const Sizes n(c);
  const auto adjacent = [&](Input x) { return !c.has(x) || c[x].stride(3) == 1 || c[x].size(3) == 1; };
  return n.queries <= 8 && n.heads_per_group * n.queries <= 32 && adjacent(kKey) && adjacent(kValue) &&
         adjacent(kFarKey) && adjacent(kGateKey);
}

template <typename T>
void run_decode(const Call& c, int64_t seed, const Tensor& out, const Residuals& r) {
  DecodeJobs<T> jobs(c, seed);
  jobs.run();
  jobs.write(out, r);
}

template void run_decode<float>(const Call&, int64_t, const Tensor&, const Residuals&);
template void run_decode<double>(const Call&, int64_t, const Tensor&, const Residuals&);

}  // namespace posenc::attention_ops
