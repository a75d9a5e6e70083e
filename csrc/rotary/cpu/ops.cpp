/// The rotary ops on CPU: checks, memory order, work sharing; the arithmetic is in kernel.cpp.

#include "common/registration.h"
#include "cpu/tensors.h"
#include "rotary/checks.h"
#include "rotary/cpu/kernel.h"
#include "rotary/cpu/tables.h"
#include "rotary/inplace.h"
#include "rotary/reference.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

namespace posenc::rotary_ops {
namespace {

using cpu::ceil_div;
using cpu::element_type;

const Kernels& kernels() {
  static const Kernels& table = POSENC_SELECT_KERNELS(rotary_kernels);
  return table;
}

/// A rotation of x into y; x and y may be the same tensor.
struct Turn {
  Tensor x, y;
};
using Turns = c10::SmallVector<Turn, 2>;

/// Elements below which one core finishes sooner than a second one wakes up.
constexpr int64_t kSerialElements = 65536;
/// Bytes of cosines and sines of a block of tokens: half of a first-level cache, so that they stay there for all heads.
constexpr int64_t kTableBytes = 16384;

/// Tokens of one work item: what the cache holds, less where threads would be left without work.
int64_t block_tokens(int64_t rows, int64_t tokens, int64_t row_bytes, int64_t elements) {
  int64_t block = std::clamp<int64_t>(kTableBytes / std::max<int64_t>(row_bytes, 1), 1, 64);
  if (elements > kSerialElements && at::get_num_threads() > 1) {
    block = std::min(block, std::max<int64_t>(1, rows * tokens / (2 * at::get_num_threads())));
  }
  return std::min(block, std::max<int64_t>(tokens, 1));
}

Rows rows_of(const Turn& turn, int64_t batch, int64_t head, int64_t heads, int64_t first, int64_t tokens) {
  const auto address = [&](const Tensor& t, char* base) {
    const int64_t element = batch * t.stride(0) + head * t.stride(1) + first * t.stride(2);
    return base + element * static_cast<int64_t>(t.element_size());
  };
  Rows rows{};
  rows.x = address(turn.x, const_cast<char*>(static_cast<const char*>(turn.x.const_data_ptr())));
  rows.y = address(turn.y, static_cast<char*>(turn.y.mutable_data_ptr()));
  rows.heads = heads;
  rows.tokens = tokens;
  rows.width = turn.x.size(3);
  rows.x_head = turn.x.stride(1);
  rows.x_token = turn.x.stride(2);
  rows.x_column = turn.x.stride(3);
  rows.y_head = turn.y.stride(1);
  rows.y_token = turn.y.stride(2);
  rows.y_column = turn.y.stride(3);
  rows.type = element_type(turn.x);
  return rows;
}

/// Rotates all turns (equal batch, length, width and dtype) by the tables' rows. Per head, where the tables differ.
template <typename T, typename Tables>
void rotate(const Turns& turns, const Tables& tables, const RowForm& form, bool interleaved, bool per_head) {
  const Tensor& first = turns[0].x;
  int64_t elements = 0;
  for (const Turn& turn : turns) {
    elements += turn.x.numel();
  }
  if (elements == 0) {
    return;
  }
  const int64_t batch = first.size(0), tokens = first.size(2), width = first.size(3);
  const int64_t groups = per_head ? first.size(1) : 1;
  const int64_t row_bytes = 2 * form.padded * static_cast<int64_t>(sizeof(T));
  const int64_t block = block_tokens(batch * groups, tokens, row_bytes, elements);
  const int64_t blocks = ceil_div(tokens, block), items = batch * groups * blocks;

  const auto work = [&](int64_t begin, int64_t end) {
    TableScratch<T> scratch(block, form);
    std::unique_ptr<T[]> strided_row;  // two rows of at most this element size
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / (groups * blocks), group = item / blocks % groups, start = item % blocks * block;
      const int64_t count = std::min(block, tokens - start);
      const TableRows<T> table = tables.rows(b, group, start, count, scratch);
      for (const Turn& turn : turns) {
        if (turn.x.size(1) == 0) {
          continue;
        }
        Rows rows = rows_of(turn, b, per_head ? group : 0, per_head ? 1 : turn.x.size(1), start, count);
        rows.pairs = form.pairs;
        rows.interleaved = interleaved;
        rows.cos = table.cos;
        rows.sin = table.sin;
        rows.table_stride = table.stride;
        if ((rows.x_column != 1 || rows.y_column != 1) && !strided_row) {
          strided_row.reset(new T[2 * width]);
        }
        rows.scratch = strided_row.get();
        kernels().rotate(rows);
      }
    }
  };
  if (elements <= kSerialElements) {
    work(0, items);
  } else {
    at::parallel_for(0, items, std::max<int64_t>(1, kSerialElements * items / elements), work);
  }
}

template <typename T>
void rotate_by_tables(const Turns& turns, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  const RowForm form(kernels(), cos.size(-1), element_type(turns[0].x), interleaved);
  const GivenTables<T> tables(kernels(), form, cos, sin, inverse);
  rotate<T>(turns, tables, form, interleaved, cos.dim() == 4 && cos.size(1) > 1);
}

void apply(const Turns& turns, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  if (turns[0].x.scalar_type() == at::kDouble) {
    rotate_by_tables<double>(turns, cos, sin, interleaved, inverse);
  } else {
    rotate_by_tables<float>(turns, cos, sin, interleaved, inverse);
  }
}

template <typename T>
void rotate_by_angles(const char* op, const Turns& turns, const OptionalTensor& positions, const Tensor& inv_freq,
                      const RotaryFuncOptions& o) {
  const RowForm form(kernels(), inv_freq.size(-1), element_type(turns[0].x), o.interleaved());
  const int64_t axes = count_axes(positions, inv_freq, o.axes());
  const Positions where(op, positions, o.offset(), o.offsets(), turns[0].x.size(2), axes,
                        o.axes().has_value() || inv_freq.dim() > 1);
  const AngleTables<T> tables(kernels(), form, where, inv_freq, o.axes(), axes, o.attention_scaling(), o.inverse());
  rotate<T>(turns, tables, form, o.interleaved(), inv_freq.dim() == 3);
}

void turn(const char* op, const Turns& turns, const OptionalTensor& positions, const Tensor& inv_freq,
          const RotaryFuncOptions& o) {
  if (!o.exact()) {
    // Parity with float32 tables of other libraries is bit for bit, so the tables are made as they make them.
    const auto [cos, sin] = reference::rotary_tables(positions, inv_freq, table_options(turns[0].x, o));
    apply(turns, cos, sin, o.interleaved(), o.inverse());
  } else if (turns[0].x.scalar_type() == at::kDouble) {
    rotate_by_angles<double>(op, turns, positions, inv_freq, o);
  } else {
    rotate_by_angles<float>(op, turns, positions, inv_freq, o);
  }
}

/// One pass over q and k where they share a dtype, else one over each.
template <typename Rotation>
void for_each_dtype(const Tensor& q, const Tensor& k, const Tensor& q_out, const Tensor& k_out,
                    const Rotation& rotation) {
  if (q.scalar_type() == k.scalar_type()) {
    rotation(Turns{{q, q_out}, {k, k_out}});
  } else {
    rotation(Turns{{q, q_out}});
    rotation(Turns{{k, k_out}});
  }
}

Tensor rotary_cpu(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                  const RotaryFuncOptions& o) {
  check_rotary("rotary", {{"x", x}}, positions, inv_freq, o);
  Tensor y = at::empty_like(x);
  turn("rotary", {{x, y}}, positions, inv_freq, o);
  return y;
}

std::tuple<Tensor, Tensor> rotary_qk_cpu(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                         const Tensor& inv_freq, const RotaryFuncOptions& o) {
  check_rotary("rotary_qk", {{"q", q}, {"k", k}}, positions, inv_freq, o);
  std::tuple<Tensor, Tensor> out{at::empty_like(q), at::empty_like(k)};
  for_each_dtype(q, k, std::get<0>(out), std::get<1>(out),
                 [&](const Turns& turns) { turn("rotary_qk", turns, positions, inv_freq, o); });
  return out;
}

void rotary_qk_inplace_cpu(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                           const RotaryFuncOptions& o) {
  check_rotary("rotary_qk_", {{"q", q}, {"k", k}}, positions, inv_freq, o);
  check_inplace("rotary_qk_", q, k);
  for_each_dtype(q, k, q, k, [&](const Turns& turns) { turn("rotary_qk_", turns, positions, inv_freq, o); });
}

Tensor apply_rotary_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  check_apply("apply_rotary", {{"x", x}}, cos, sin);
  Tensor y = at::empty_like(x);
  apply({{x, y}}, cos, sin, interleaved, inverse);
  return y;
}

std::tuple<Tensor, Tensor> apply_rotary_qk_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                               bool interleaved, bool inverse) {
  check_apply("apply_rotary_qk", {{"q", q}, {"k", k}}, cos, sin);
  std::tuple<Tensor, Tensor> out{at::empty_like(q), at::empty_like(k)};
  for_each_dtype(q, k, std::get<0>(out), std::get<1>(out),
                 [&](const Turns& turns) { apply(turns, cos, sin, interleaved, inverse); });
  return out;
}

void apply_rotary_qk_inplace_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                 bool interleaved, bool inverse) {
  check_apply("apply_rotary_qk_", {{"q", q}, {"k", k}}, cos, sin);
  check_inplace("apply_rotary_qk_", q, k);
  for_each_dtype(q, k, q, k, [&](const Turns& turns) { apply(turns, cos, sin, interleaved, inverse); });
}

/// Writes tables of dtype T, shaped as table_sizes() says.
template <typename T>
void write_tables(const OptionalTensor& positions, const Tensor& inv_freq, const RotaryTablesFuncOptions& o,
                  const Tensor& cos, const Tensor& sin) {
  const int64_t pairs = inv_freq.size(-1), tokens = cos.size(-2);
  const ElementType type = std::is_same_v<T, double> ? ElementType::kDouble : ElementType::kFloat;
  const RowForm form(kernels(), pairs, type, /*interleaved=*/false);
  const int64_t axes = count_axes(positions, inv_freq, o.axes());
  const Positions where("rotary_tables", positions, o.offset(), o.offsets(), tokens, axes,
                        o.axes().has_value() || inv_freq.dim() > 1);
  const AngleTables<T> tables(kernels(), form, where, inv_freq, o.axes(), axes, o.attention_scaling(), false);
  const int64_t groups = inv_freq.dim() == 3 ? inv_freq.size(1) : 1;
  const int64_t batch = cos.numel() / std::max<int64_t>(1, groups * tokens * pairs);
  const int64_t block =
      block_tokens(batch * groups, tokens, 2 * form.padded * static_cast<int64_t>(sizeof(T)), 2 * cos.numel());
  const int64_t blocks = ceil_div(tokens, block);
  T* cos_out = cos.mutable_data_ptr<T>();
  T* sin_out = sin.mutable_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kSerialElements / std::max<int64_t>(1, 2 * block * pairs));
  at::parallel_for(0, batch * groups * blocks, grain, [&](int64_t begin, int64_t end) {
    TableScratch<T> scratch(block, form);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / (groups * blocks), group = item / blocks % groups, start = item % blocks * block;
      const int64_t count = std::min(block, tokens - start);
      const TableRows<T> rows = tables.rows(b, group, start, count, scratch);
      const int64_t to = ((b * groups + group) * tokens + start) * pairs;
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(cos_out + to + i * pairs, rows.cos + i * rows.stride, pairs * sizeof(T));
        std::memcpy(sin_out + to + i * pairs, rows.sin + i * rows.stride, pairs * sizeof(T));
      }
    }
  });
}

std::tuple<Tensor, Tensor> rotary_tables_cpu(const OptionalTensor& positions, const Tensor& inv_freq,
                                             const RotaryTablesFuncOptions& o) {
  const auto shape = check_tables(positions, inv_freq, o);
  if (!o.exact()) {
    return reference::rotary_tables(positions, inv_freq, o);
  }
  const auto symbolic_sizes = table_sizes(shape, positions, o);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic_sizes);
  const at::ScalarType made = o.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor cos = at::empty(sizes, inv_freq.options().dtype(made));
  const Tensor sin = at::empty(sizes, inv_freq.options().dtype(made));
  if (cos.numel() > 0 && made == at::kDouble) {
    write_tables<double>(positions, inv_freq, o, cos, sin);
  } else if (cos.numel() > 0) {
    write_tables<float>(positions, inv_freq, o, cos, sin);
  }
  if (o.decay()) {
    const Tensor factor = reference::decay_factor(positions, inv_freq, o);
    cos.mul_(factor);
    sin.mul_(factor);
  }
  return {cos.to(o.dtype()), sin.to(o.dtype())};
}

void register_ops(torch::Library& m) {
  m.impl("rotary", &flat_rotary<rotary_cpu>);
  m.impl("rotary_qk", &flat_rotary_qk<rotary_qk_cpu>);
  m.impl("rotary_qk_", &flat_rotary_qk<rotary_qk_inplace_cpu>);
  m.impl("rotary_tables", &flat_rotary_tables<rotary_tables_cpu>);
  m.impl("apply_rotary", &apply_rotary_cpu);
  m.impl("apply_rotary_qk", &apply_rotary_qk_cpu);
  m.impl("apply_rotary_qk_", &apply_rotary_qk_inplace_cpu);
}

POSENC_LIBRARY_IMPL(CPU, m) { register_ops(m); }

// Nested tensors come to these keys; check_dense() refuses them by name.
POSENC_LIBRARY_IMPL(NestedTensorCPU, m) { register_ops(m); }
POSENC_LIBRARY_IMPL(AutogradNestedTensor, m) { register_ops(m); }

}  // namespace
}  // namespace posenc::rotary_ops
