// Compiled once per instruction set.
#include "attention/exp2.h"
#include "attention/policies/all.h"

namespace posenc::attention_ops {
namespace {

/// Rows of queries that share each load of a key.
constexpr int kDecodeRows = 4;
/// Bytes ahead of a row at which memory is asked for: long rows of keys come from memory, and arrive late without.
constexpr int64_t kPrefetchBytes = 4096;

/// The first n elements, zeros behind.
template <typename T, typename Element>
inline Vec<T> load_some(const Element* p, int64_t n) {
  alignas(64) T lanes[Vec<T>::size()] = {};
  for (int64_t i = 0; i < n; ++i) {
    lanes[i] = widened<T>(p[i]);
  }
  return Vec<T>::loadu(lanes);
}

template <typename Element>
inline void prefetch(const Element* row, int64_t columns) {
  const char* p = reinterpret_cast<const char*>(row) + kPrefetchBytes;
  for (int64_t i = 0; i < columns * static_cast<int64_t>(sizeof(Element)); i += 64) {
    __builtin_prefetch(p + i, 0, 3);
  }
}

/// scores[row][key] = query . key for kRows rows.
template <int kRows, typename T, typename Element>
void score_rows(const PackedRows<T>& query, const Element* key, int64_t key_row, int64_t keys, int64_t width,
                T* scores) {
  constexpr int64_t kLanes = Vec<T>::size();
  const int64_t whole = width / kLanes * kLanes;
  int64_t k = 0;
  const auto some = [&]<int kKeys>() {
    Vec<T> sum[kKeys][kRows];
    for (auto& each : sum) {
      for (auto& s : each) {
        s = Vec<T>(T(0));
      }
    }
    const Element* row = key + k * key_row;
    for (int i = 0; i < kKeys; ++i) {
      prefetch(row + i * key_row, width);
    }
    const auto step = [&](int64_t d, const Vec<T>* x) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec<T> y = Vec<T>::loadu(query.data + r * query.row + d);
#pragma GCC unroll 2
        for (int i = 0; i < kKeys; ++i) {
          sum[i][r] = fmadd(x[i], y, sum[i][r]);
        }
      }
    };
    for (int64_t d = 0; d < whole; d += kLanes) {
      Vec<T> x[kKeys];
#pragma GCC unroll 2
      for (int i = 0; i < kKeys; ++i) {
        x[i] = load_vector<T>(row + i * key_row + d);
      }
      step(d, x);
    }
    if (whole < width) {
      Vec<T> x[kKeys];
      for (int i = 0; i < kKeys; ++i) {
        x[i] = load_some<T>(row + i * key_row + whole, width - whole);
      }
      step(whole, x);
    }
    for (int i = 0; i < kKeys; ++i) {
      for (int r = 0; r < kRows; ++r) {
        scores[r * kDecodeKeys + k + i] = cpu::sum_lanes(sum[i][r]);
      }
    }
  };
  for (; k + 2 <= keys; k += 2) {
    some.template operator()<2>();
  }
  if (k < keys) {
    some.template operator()<1>();
  }
}

/// sums[row] += weights[row][key] value[key] for kRows rows.
template <int kRows, typename T, typename Element>
void sum_rows(const T* weights, const Element* value, int64_t value_row, int64_t keys, int64_t width, T* sums,
              int64_t sums_row) {
  constexpr int64_t kLanes = Vec<T>::size(), kChunk = 8;
  for (int64_t first = 0; first < keys; first += kChunk) {
    const int64_t last = std::min(keys, first + kChunk);
    for (int64_t k = first; k < last; ++k) {
      prefetch(value + k * value_row, width);
    }
    for (int64_t d = 0; d < width; d += kLanes) {
      const int64_t n = width - d;
      Vec<T> sum[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum[r] = Vec<T>::loadu(sums + r * sums_row + d);
      }
      for (int64_t k = first; k < last; ++k) {
        const Element* at = value + k * value_row + d;
        const Vec<T> x = n >= kLanes ? load_vector<T>(at) : load_some<T>(at, n);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sum[r] = fmadd(Vec<T>(weights[r * kDecodeKeys + k]), x, sum[r]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum[r].store(sums + r * sums_row + d);
      }
    }
  }
}

/// Calls body<rows>(first) over `count` rows, kDecodeRows at a time and then fewer.
template <int kRows = kDecodeRows, typename Body>
void for_each_rows(int64_t count, const Body& body, int64_t first = 0) {
  for (; first + kRows <= count; first += kRows) {
    body.template operator()<kRows>(first);
  }
  if constexpr (kRows > 1) {
    if (first < count) {
      for_each_rows<kRows / 2>(count, body, first);
    }
  }
}

/// Whether query q sees a key.
inline bool sees(const Visibility& v, int64_t q, int64_t key) {
  if (v.key_mask != nullptr && !v.key_mask[key]) {
    return false;
  }
  if (v.segments != nullptr && v.segments[key] != v.segments[v.keys - v.queries + q]) {
    return false;
  }
  const double distance =
      v.q_positions != nullptr ? v.q_positions[q] - v.k_positions[key] : static_cast<double>(q + v.offset - key);
  return sees_distance(v, distance);
}

/// Adds biases to one row of scores and writes which keys it sees. Returns whether it sees all of them.
template <typename T>
bool finish_scores(const DecodeJob<T>& job, const ScoreBias<T>& bias, int64_t q, int64_t first_key, int64_t keys,
                   T* scores, bool* seen) {
  const Visibility& v = job.visible;
  Tile t{};
  t.first_query = q;
  t.queries = 1;
  t.first_key = first_key;
  t.keys = keys;
  find_cover(v, t);
  bool all = t.cover == Cover::kAll;
  for (int64_t k = 0; k < keys; ++k) {
    seen[k] = all || (t.cover != Cover::kHidden && sees(v, q, first_key + k));
  }
  if (depends_on_distance(bias)) {
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t distance = v.q_positions != nullptr ? distance_of<T>(v, t, k, 0) : first_key + k - q - v.offset;
      scores[k] += at_distance(bias, distance);
    }
  }
  if (bias.bias.data != nullptr) {
    with_type(bias.bias.data, bias.bias.type, [&](const auto* data) {
      using Element = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      const T bound = static_cast<T>(lowest<Element>());
      for (int64_t k = 0; k < keys; ++k) {
        const T x = widened<T>(data[q * bias.bias.row + (first_key + k) * bias.bias.column]);
        scores[k] += x * static_cast<T>(kLog2E);
        if (x <= bound) {
          seen[k] = all = false;
        }
      }
    });
  }
  return all;
}

/// Scores of one row become weights; its sums are rescaled.
template <typename T>
void weigh_row(const bool* seen, int64_t keys, T* scores, T& largest, T& total, T* sums, int64_t width) {
  constexpr int64_t kLanes = Vec<T>::size();
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  T now = largest;
  for (int64_t k = 0; k < keys; ++k) {
    scores[k] = seen[k] ? scores[k] : kHidden;
    now = scores[k] > now || scores[k] != scores[k] ? scores[k] : now;
  }
  std::fill(scores + keys, scores + kDecodeKeys, kHidden);
  const Vec<T> shift(now);
  Vec<T> sum(T(0));
  for (int64_t k = 0; k < kDecodeKeys; k += kLanes) {
    const Vec<T> x = exp2<true>(Vec<T>::loadu(scores + k) - shift);
    sum = sum + x;
    x.store(scores + k);
  }
  alignas(64) T lanes[Vec<T>::size()];
  exp2<true>(Vec<T>(largest) - shift).store(lanes);
  const T factor = lanes[0];
  total = total * factor + cpu::sum_lanes(sum);
  largest = now;
  if (factor != T(1)) {
    for (int64_t d = 0; d < width; ++d) {
      sums[d] *= factor;
    }
  }
}

template <typename T>
void drop_row(const Dropout& dropout, int64_t q, int64_t first_key, int64_t keys, T* weights, T* scratch) {
  Tile t{};
  t.first_query = q;
  t.queries = 1;
  t.lanes = 1;
  t.first_key = first_key;
  t.keys = keys;
  for (int64_t k = 0; k < keys; ++k) {
    scratch[k * kTileQueries] = weights[k];
  }
  drop(dropout, t, scratch);
  for (int64_t k = 0; k < keys; ++k) {
    weights[k] = scratch[k * kTileQueries];
  }
}

/// The values of a block summed over the keys that a row sees alone.
template <typename T, typename Element>
void sum_seen(const bool* seen, const T* weights, const Element* value, int64_t value_row, int64_t keys, int64_t width,
              T* sums) {
  for (int64_t k = 0; k < keys; ++k) {
    if (seen[k]) {
      for (int64_t d = 0; d < width; ++d) {
        sums[d] += weights[k] * widened<T>(value[k * value_row + d]);
      }
    }
  }
}

template <typename T, typename Element>
bool any_infinite_element(const Element* value, int64_t value_row, int64_t keys, int64_t width) {
  T sum(0);
  for (int64_t k = 0; k < keys; ++k) {
    for (int64_t d = 0; d < width; ++d) {
      sum += widened<T>(value[k * value_row + d]) * T(0);
    }
  }
  return sum != sum;
}

template <typename T, typename Element>
void decode_typed(const DecodeJob<T>& job, T* workspace) {
  const int64_t rows = job.heads * job.queries;
  T* scores = workspace;                                                       // rows x kDecodeKeys
  T* scratch = scores + rows * kDecodeKeys;                                    // kDecodeKeys x kTileQueries
  bool* seen = reinterpret_cast<bool*>(scratch + kDecodeKeys * kTileQueries);  // rows x kDecodeKeys
  for (int64_t r = 0; r < rows; ++r) {
    job.largest[r] = std::numeric_limits<T>::lowest();
    job.total[r] = T(0);
    std::fill(job.sums + r * job.sums_row, job.sums + (r + 1) * job.sums_row, T(0));
  }
  for (int64_t first = job.first_key; first < job.last_key; first += kDecodeKeys) {
    const int64_t keys = std::min(kDecodeKeys, job.last_key - first);
    const Element* key = static_cast<const Element*>(job.key.data) + first * job.key.row;
    const Element* value = static_cast<const Element*>(job.value.data) + first * job.value.row;
    for_each_rows(rows, [&]<int kRows>(int64_t r) {
      const PackedRows<T> query{job.query.data + r * job.query.row, job.query.row};
      score_rows<kRows>(query, key, job.key.row, keys, job.width, scores + r * kDecodeKeys);
    });
    bool all = true;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t head = r / job.queries, q = r % job.queries;
      T* row = scores + r * kDecodeKeys;
      bool* row_seen = seen + r * kDecodeKeys;
      all = finish_scores(job, job.biases[head], q, first, keys, row, row_seen) && all;
      weigh_row(row_seen, keys, row, job.largest[r], job.total[r], job.sums + r * job.sums_row, job.value_width);
      if (job.dropouts[head].probability > 0.0) {
        drop_row(job.dropouts[head], q, first, keys, row, scratch);
      }
    }
    if (!all && any_infinite_element<T>(value, job.value.row, keys, job.value_width)) {
      for (int64_t r = 0; r < rows; ++r) {
        sum_seen(seen + r * kDecodeKeys, scores + r * kDecodeKeys, value, job.value.row, keys, job.value_width,
                 job.sums + r * job.sums_row);
      }
      continue;
    }
    for_each_rows(rows, [&]<int kRows>(int64_t r) {
      sum_rows<kRows>(scores + r * kDecodeKeys, value, job.value.row, keys, job.value_width,
                      job.sums + r * job.sums_row, job.sums_row);
    });
  }
}

void decode_float(const DecodeJob<float>& job, float* workspace) {
  switch (job.key.type) {
    case ElementType::kBFloat16:
      return decode_typed<float, c10::BFloat16>(job, workspace);
    case ElementType::kHalf:
      return decode_typed<float, c10::Half>(job, workspace);
    default:
      return decode_typed<float, float>(job, workspace);
  }
}

void decode_double(const DecodeJob<double>& job, double* workspace) { decode_typed<double, double>(job, workspace); }

/// Elements of at least one byte for each score of `seen`.
int64_t workspace_size(int64_t rows) { return 2 * rows * kDecodeKeys + kDecodeKeys * kTileQueries; }

constexpr DecodeKernels kKernels{
    .workspace_float = &workspace_size,
    .workspace_double = &workspace_size,
    .decode_float = &decode_float,
    .decode_double = &decode_double,
};

}  // namespace

POSENC_DEFINE_KERNELS(DecodeKernels, attention_decode_kernels, kKernels)

}  // namespace posenc::attention_ops
