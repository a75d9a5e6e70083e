/// Jobs of the decode kernel: ranges of keys, merged by their sums of exponentials.

#include "attention/cpu.h"
#include "attention/cpu_jobs.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::attention_ops {

/// Few queries over keys that are read where they lie.
bool decodes(const Call& c) {
  const Sizes n(c);
  const auto adjacent = [](const Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1; };
  return n.queries <= 8 && n.share * n.queries <= 32 && adjacent(c.key()) && adjacent(c.value());
}

/// Keys that a part of the work reads at least.
constexpr int64_t kSplitKeys = 256;

template <typename T>
void run_decode(const Call& c, int64_t seed, const Tensor& out, const Tensor& lse) {
  const Sizes n(c);
  const Rules<T> rules(c);
  const int64_t rows = n.share * n.queries, pairs = n.batch * n.groups;
  const int64_t query_row = whole_vectors<T>(n.width), sums_row = whole_vectors<T>(n.value_width);
  const int64_t threads = n.products() < kSerialProducts ? 1 : at::get_num_threads();
  const int64_t parts = std::clamp<int64_t>(ceil_div(threads, pairs), 1, ceil_div(n.keys, kSplitKeys));
  const auto numbers = lse.options();
  const Tensor states = at::empty({pairs, parts, rows, 2 + sums_row}, numbers);
  const double scale = c.score_scale() * kLog2E;  // scores are in base 2

  const auto state = [&](int64_t pair, int64_t part, int64_t offset) {
    return states.mutable_data_ptr<T>() + (pair * parts + part) * rows * (2 + sums_row) + offset;
  };
  at::parallel_for(0, pairs * parts, threads == 1 ? pairs * parts : 1, [&](int64_t begin, int64_t end) {
    Memory& memory = thread_memory();
    T* workspace = memory.workspace.get<T>(KernelsOf<T>::decode_workspace(rows));
    T* query = memory.key.get<T>(rows * query_row);
    std::vector<ScoreBias<T>> biases(n.share);
    std::vector<Dropout> dropouts(n.share);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t pair = item / parts, part = item % parts, b = pair / n.groups, g = pair % n.groups;
      for (int64_t i = 0; i < n.share; ++i) {
        const int64_t h = g * n.share + i;
        KernelsOf<T>::pack(rows_of(c.query(), b, h), n.queries, n.width, query_row, query + i * n.queries * query_row);
        biases[i] = rules.bias(b, h);
        dropouts[i] = dropout_of(c, seed, b * n.heads + h);
      }
      std::transform(query, query + rows * query_row, query, [&](T x) { return x * static_cast<T>(scale); });
      DecodeJob<T> job{};
      job.visible = rules.visibility(b);
      job.biases = biases.data();
      job.dropouts = dropouts.data();
      job.heads = n.share;
      job.queries = n.queries;
      job.width = n.width;
      job.value_width = n.value_width;
      job.first_key = n.keys * part / parts;
      job.last_key = n.keys * (part + 1) / parts;
      job.query = {query, query_row};
      job.key = rows_of(c.key(), b, g);
      job.value = rows_of(c.value(), b, g);
      job.largest = state(pair, part, 0);
      job.total = state(pair, part, rows);
      job.sums = state(pair, part, 2 * rows);
      job.sums_row = sums_row;
      KernelsOf<T>::decode(job, workspace);
    }
  });

  std::vector<T> merged(sums_row);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t b = pair / n.groups, g = pair % n.groups;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t h = g * n.share + row / n.queries, q = row % n.queries;
      T largest = *state(pair, 0, row);
      for (int64_t part = 1; part < parts; ++part) {
        const T x = *state(pair, part, row);
        largest = x > largest || x != x ? x : largest;
      }
      T total(0);
      std::fill(merged.begin(), merged.end(), T(0));
      for (int64_t part = 0; part < parts; ++part) {
        const T factor = std::exp2(*state(pair, part, row) - largest);
        const T* sums = state(pair, part, 2 * rows + row * sums_row);
        total += factor * *state(pair, part, rows + row);
        for (int64_t d = 0; d < n.value_width; ++d) {
          merged[d] += factor * sums[d];
        }
      }
      lse.mutable_data_ptr<T>()[(b * n.heads + h) * n.queries + q] =
          total == T(0) ? -std::numeric_limits<T>::infinity()
                        : static_cast<T>((largest + std::log2(static_cast<double>(total))) * kLn2);
      const T factor = total == T(0) ? T(0) : T(1) / total;
      KernelsOf<T>::unpack(merged.data(), n.value_width, factor, mutable_rows_of(out, b, h, q));
    }
  }
}

template void run_decode<float>(const Call&, int64_t, const Tensor&, const Tensor&);
template void run_decode<double>(const Call&, int64_t, const Tensor&, const Tensor&);

}  // namespace posenc::attention_ops
