#pragma once

/// Tables as rows that kernels read, and memory for gradients of what several jobs read.

#include "attention/cpu/head_rows.h"

namespace posenc::attention_ops {

template <typename T>
constexpr at::ScalarType kScalarType = c10::CppTypeToScalarType<T>::value;

/// A table (entries, width), or one for each head, as (1 or heads, entries, whole vectors) of T.
template <typename T>
Tensor packed_table(const Tensor& table) {
  const Tensor by_head = (table.dim() == 2 ? table.unsqueeze(0) : table).to(kScalarType<T>);
  const int64_t missing = whole_vectors<T>(by_head.size(2)) - by_head.size(2);
  return (missing == 0 ? by_head : at::constant_pad_nd(by_head, {0, missing})).contiguous();
}

template <typename T>
PackedRows<T> table_rows(const Tensor& table, int64_t head) {
  const int64_t rows = table.size(0) == 1 ? 0 : head * table.size(1);
  return {table.const_data_ptr<T>() + rows * table.size(2), table.size(2)};
}

/// The gradient of an input, with its dtype and strides.
inline Tensor like_input(const Tensor& input, const Tensor& gradient) { return at::empty_like(input).copy_(gradient); }

/// How the jobs of a backward pass share their work: by worker, or by batch row, part and head. Sums that several jobs
/// add to are kept apart so, and added up in a fixed order.
struct GradientLayout {
  int64_t batch, heads, queries, keys, parts, workers;
};

struct GradientPlace : JobPlace {
  int64_t part, worker;
};

/// Numbers for each head that jobs add to, by batch row and part.
class HeadSums {
 public:
  HeadSums() = default;
  HeadSums(const GradientLayout& layout, int64_t entries)
      : sums_(at::zeros({layout.batch, layout.parts, layout.heads, entries}, at::kDouble)) {}

  /// Null where none are wanted.
  double* at(const GradientPlace& place) const {
    return sums_.defined() ? sums_.mutable_data_ptr<double>() + place.batch * sums_.stride(0) +
                                 place.part * sums_.stride(1) + place.head * sums_.stride(2)
                           : nullptr;
  }
  /// (B, parts, H, entries)
  const Tensor& sums() const { return sums_; }

 private:
  Tensor sums_;
};

/// Numbers for each head that jobs add to, by worker: for what is as large as a table, and the same in all batch rows.
class WorkerSums {
 public:
  WorkerSums() = default;
  WorkerSums(const GradientLayout& layout, int64_t entries)
      : sums_(at::zeros({layout.workers, layout.heads, entries}, at::kDouble)) {}

  double* at(const GradientPlace& place) const {
    return sums_.defined()
               ? sums_.mutable_data_ptr<double>() + place.worker * sums_.stride(0) + place.head * sums_.stride(1)
               : nullptr;
  }
  /// (H, entries)
  Tensor total() const { return sums_.sum(0); }

 private:
  Tensor sums_;
};

/// The rows of keys (or values) that parts of the work add gradients to. A single part adds to the result itself where
/// that has rows as the kernels want them.
template <typename T>
class KeyGradients {
 public:
  KeyGradients(const Tensor& like, int64_t parts) {
    const int64_t width = like.size(3), row = whole_vectors<T>(width);
    if (parts == 1 && like.scalar_type() == kScalarType<T> && like.stride(3) == 1 && row == width) {
      result_ = at::zeros_like(like);
      if (result_.stride(3) == 1) {
        return;
      }
    }
    sums_ = at::zeros({like.size(0), like.size(1), parts, like.size(2), row}, like.options().dtype(kScalarType<T>));
    result_ = at::empty_like(like);
  }

  GradientRows<T> rows(const GradientPlace& place) const {
    const Tensor& x = sums_.defined() ? sums_ : result_;
    const int64_t of_part = sums_.defined() ? place.part * sums_.stride(2) : 0;
    return {x.mutable_data_ptr<T>() + place.batch * x.stride(0) + place.group * x.stride(1) + of_part,
            x.stride(x.dim() - 2)};
  }

  Tensor result() const {
    if (sums_.defined()) {
      const Tensor sum = sums_.size(2) == 1 ? sums_.select(2, 0) : sums_.sum(2);
      result_.copy_(sum.narrow(3, 0, result_.size(3)));
    }
    return result_;
  }

 private:
  /// sums_: undefined where the result takes the gradients itself.
  Tensor sums_, result_;
};

/// The rows of a table (entries, width), or of one for each head (heads, entries, width), that workers add gradients
/// to. Entries but `first` .. first + count - 1 have none.
template <typename T>
class TableGradients {
 public:
  TableGradients(const Tensor& table, int64_t first, int64_t count, int64_t workers)
      : like_(table), first_(first), by_head_(table.dim() == 3 && table.size(0) > 1) {
    sums_ = at::zeros({workers, by_head_ ? table.size(0) : 1, count, whole_vectors<T>(table.size(-1))},
                      at::TensorOptions().dtype(kScalarType<T>).device(at::kCPU));
  }

  GradientRows<T> rows(const GradientPlace& place) const {
    const int64_t index = place.worker * sums_.size(1) + (by_head_ ? place.head : 0);
    return {sums_.mutable_data_ptr<T>() + index * sums_.size(2) * sums_.size(3), sums_.size(3)};
  }

  /// Like the table.
  Tensor result() const {
    const Tensor sum = sums_.sum(0).narrow(-1, 0, like_.size(-1));
    Tensor gradient = at::zeros_like(like_);
    gradient.narrow(-2, first_, sums_.size(2)).copy_(like_.dim() == 3 ? sum : sum.squeeze(0));
    return gradient;
  }

 private:
  Tensor like_;
  int64_t first_;
  bool by_head_;
  Tensor sums_;
};

}  // namespace posenc::attention_ops
