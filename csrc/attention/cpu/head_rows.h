#pragma once

/// Tensors as rows that kernels read: the heads' keys and values, where they lie or in a copy.

#include "attention/call.h"
#include "attention/cpu/loops/kernel.h"
#include "attention/cpu/thread_memory.h"
#include "cpu/tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>

namespace posenc::attention_ops {

using cpu::ceil_div;
using cpu::element_type;

inline const ForwardKernels& forward_kernels() {
  static const ForwardKernels& table = POSENC_SELECT_KERNELS(attention_forward_kernels);
  return table;
}
inline const BackwardKernels& backward_kernels() {
  static const BackwardKernels& table = POSENC_SELECT_KERNELS(attention_backward_kernels);
  return table;
}

inline const DecodeKernels& decode_kernels() {
  static const DecodeKernels& table = POSENC_SELECT_KERNELS(attention_decode_kernels);
  return table;
}

/// The kernels for one computing type.
template <typename T>
struct KernelsOf;
template <>
struct KernelsOf<float> {
  static int64_t lanes() { return forward_kernels().float_lanes; }
  static constexpr auto pack = [](auto&&... a) { forward_kernels().pack_float(a...); };
  static constexpr auto unpack = [](auto&&... a) { forward_kernels().unpack_float(a...); };
  static constexpr auto forward = [](auto&&... a) { forward_kernels().forward_float(a...); };
  static constexpr auto forward_workspace = [](const auto&... a) { return forward_kernels().workspace_float(a...); };
  static constexpr auto decode = [](auto&&... a) { decode_kernels().decode_float(a...); };
  static constexpr auto decode_workspace = [](const auto&... a) { return decode_kernels().workspace_float(a...); };
  static constexpr auto backward = [](auto&&... a) { backward_kernels().backward_float(a...); };
  static constexpr auto backward_workspace = [](const auto&... a) { return backward_kernels().workspace_float(a...); };
};
template <>
struct KernelsOf<double> {
  static int64_t lanes() { return forward_kernels().double_lanes; }
  static constexpr auto pack = [](auto&&... a) { forward_kernels().pack_double(a...); };
  static constexpr auto unpack = [](auto&&... a) { forward_kernels().unpack_double(a...); };
  static constexpr auto forward = [](auto&&... a) { forward_kernels().forward_double(a...); };
  static constexpr auto forward_workspace = [](const auto&... a) { return forward_kernels().workspace_double(a...); };
  static constexpr auto decode = [](auto&&... a) { decode_kernels().decode_double(a...); };
  static constexpr auto decode_workspace = [](const auto&... a) { return decode_kernels().workspace_double(a...); };
  static constexpr auto backward = [](auto&&... a) { backward_kernels().backward_double(a...); };
  static constexpr auto backward_workspace = [](const auto&... a) { return backward_kernels().workspace_double(a...); };
};

/// A row's width with its last vector filled up.
template <typename T>
int64_t whole_vectors(int64_t width) {
  return ceil_div(width, KernelsOf<T>::lanes()) * KernelsOf<T>::lanes();
}

inline const void* address(const Tensor& x, int64_t element) {
  return static_cast<const char*>(x.const_data_ptr()) + element * static_cast<int64_t>(x.element_size());
}
inline void* mutable_address(const Tensor& x, int64_t element) {
  return static_cast<char*>(x.mutable_data_ptr()) + element * static_cast<int64_t>(x.element_size());
}

/// Rows of one head of x (B, heads, T, width), from row `first` on.
inline ConstRows rows_of(const Tensor& x, int64_t batch, int64_t head, int64_t first = 0) {
  return {address(x, batch * x.stride(0) + head * x.stride(1) + first * x.stride(2)), x.stride(2), x.stride(3),
          element_type(x)};
}
inline MutableRows mutable_rows_of(const Tensor& x, int64_t batch, int64_t head, int64_t first = 0) {
  return {mutable_address(x, batch * x.stride(0) + head * x.stride(1) + first * x.stride(2)), x.stride(2), x.stride(3),
          element_type(x)};
}

/// Keys or values of one head after another as packed rows. Reads a head in place if its layout fits, else packs it
/// into memory of the thread.
template <typename T>
class HeadRows {
 public:
  /// as_pairs: x is bfloat16, and an element of T holds two of its numbers.
  HeadRows(const Tensor& x, bool walked_often, bool as_pairs = false)
      : x_(x), numbers_(as_pairs ? 2 : 1), row_(as_pairs ? ceil_div(x.size(3), 2) : whole_vectors<T>(x.size(3))) {
    const bool readable = (as_pairs || x.scalar_type() == c10::CppTypeToScalarType<T>::value) && x.stride(3) == 1 &&
                          x.size(3) == row_ * numbers_ && x.stride(2) % numbers_ == 0;
    in_place_ = readable && (x.stride(2) == x.size(3) || !walked_often);
  }

  PackedRows<T> head(int64_t batch, int64_t head, ThreadMemory& memory) {
    const ConstRows rows = rows_of(x_, batch, head);
    if (in_place_) {
      return {static_cast<const T*>(rows.data), rows.row / numbers_};
    }
    T* copy = memory.get<T>(std::max<int64_t>(1, x_.size(2) * row_));
    if (batch != batch_ || head != head_) {
      if (numbers_ == 2) {
        copy_pairs(rows, reinterpret_cast<c10::BFloat16*>(copy));
      } else {
        KernelsOf<T>::pack(rows, x_.size(2), x_.size(3), row_, copy);
      }
      batch_ = batch;
      head_ = head;
    }
    return {copy, row_};
  }

 private:
  void copy_pairs(const ConstRows& rows, c10::BFloat16* to) const {
    const auto* from = static_cast<const c10::BFloat16*>(rows.data);
    for (int64_t i = 0; i < x_.size(2); ++i, from += rows.row, to += 2 * row_) {
      for (int64_t d = 0; d < x_.size(3); ++d) {
        to[d] = from[d * rows.column];
      }
      std::fill(to + x_.size(3), to + 2 * row_, c10::BFloat16(0.0F));
    }
  }

  const Tensor& x_;
  /// Numbers in an element of T; elements in a row.
  int64_t numbers_, row_;
  bool in_place_;
  int64_t batch_ = -1, head_ = -1;
};

/// Whether queries and keys, and gradients and values, are multiplied as pairs of bfloat16: exact products, as those of
/// floats are, two at a time.
template <typename T>
bool multiplies_pairs(const Call& c) {
  return std::is_same_v<T, float> && c.query().scalar_type() == at::kBFloat16 && !c.has(kFarKey) && cpu::has_bf16x2();
}

/// Memory that a thread keeps from call to call.
struct Memory {
  ThreadMemory workspace, key_pairs, value_pairs;
  /// Copies of an input's rows.
  std::array<ThreadMemory, kInputs> inputs;
};
inline Memory& thread_memory() {
  thread_local Memory memory;
  return memory;
}

/// What a job is about: a batch row, a head, and the group of heads that share keys.
struct JobPlace {
  int64_t batch, head, group, first_query;
};

/// Rows of an input that has keys, for one head after another. Null where the call lacks it.
template <typename T>
class KeyRowsOf {
 public:
  KeyRowsOf(const Call& c, Input input, bool walked_often) : input_(input) {
    if (c.has(input)) {
      rows_.emplace(c[input], walked_often);
    }
  }
  PackedRows<T> head(const JobPlace& place) {
    return rows_ ? rows_->head(place.batch, place.group, thread_memory().inputs[input_]) : PackedRows<T>{};
  }

 private:
  Input input_;
  std::optional<HeadRows<T>> rows_;
};

/// The rows of a call's keys and values.
template <typename T>
struct KeyRows {
  KeyRows(const Call& c, bool walked_often) : key(c, kKey, walked_often), value(c, kValue, walked_often) {
    if (multiplies_pairs<T>(c)) {
      key_pairs.emplace(c.key(), walked_often, /*as_pairs=*/true);
      value_pairs.emplace(c.value(), walked_often, /*as_pairs=*/true);
    }
  }

  /// What a job of either pass needs of them.
  template <typename Job>
  void enter(Job& job, const JobPlace& place) {
    constexpr bool kForward = std::is_same_v<Job, ForwardJob<T>>;
    Memory& memory = thread_memory();
    if (key_pairs) {
      job.key_pairs = key_pairs->head(place.batch, place.group, memory.key_pairs);
    }
    if constexpr (!kForward) {
      if (value_pairs) {
        job.value_pairs = value_pairs->head(place.batch, place.group, memory.value_pairs);
      }
    }
    if (!kForward || !key_pairs) {
      job.key = key.head(place);
    }
    job.value = value.head(place);
  }

  KeyRowsOf<T> key, value;
  std::optional<HeadRows<T>> key_pairs, value_pairs;
};

}  // namespace posenc::attention_ops
