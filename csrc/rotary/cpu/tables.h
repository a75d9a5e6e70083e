#pragma once

/// Where the CPU ops take cosines and sines from: formed from positions and frequencies, or given as tables. Both hand
/// out the rows of a block of tokens in the order and with the padding that the kernel reads.

#include "rotary/checks.h"
#include "rotary/cpu/kernel.h"

#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

namespace posenc::rotary_ops {

/// How a kernel reads a table row.
struct RowForm {
  int64_t pairs;
  PairOrder order;
  /// Entries of a row, rounded up to whole steps of the kernel.
  int64_t padded;

  RowForm(const Kernels& kernels, int64_t pairs, ElementType type, bool interleaved);
  int64_t entries() const { return order == PairOrder::kDoubled ? 2 * pairs : pairs; }
};

/// Rows of cosines and sines for consecutive tokens; T is float or double.
template <typename T>
struct TableRows {
  const T* cos;
  const T* sin;
  int64_t stride;
};

/// Room for the rows of one block, kept by each thread's share of the work.
template <typename T>
class TableScratch {
 public:
  TableScratch(int64_t tokens, const RowForm& form)
      : size_(tokens * form.padded), data_(new T[2 * size_ + 2 * form.padded]) {}
  T* cos() { return data_.get(); }
  T* sin() { return data_.get() + size_; }
  /// One more row of each, for reordering.
  T* spare() { return data_.get() + 2 * size_; }
  /// Room for the positions of a block.
  double* positions(int64_t count) {
    positions_.resize(count);
    return positions_.data();
  }

 private:
  int64_t size_;
  std::unique_ptr<T[]> data_;
  std::vector<double> positions_;
};

/// Positions as float64, whatever they are given as.
class Positions {
 public:
  /// Of `length` tokens; `axes` is the number of position axes that `fill` writes for each. Reads `offsets` and refuses
  /// those whose positions would end beyond int64.
  Positions(const char* op, const OptionalTensor& positions, const c10::SymInt& offset, const OptionalTensor& offsets,
            int64_t length, int64_t axes, bool multi_axis);
  /// to[token * axes + axis] for tokens first .. first + count - 1 of a batch row.
  void fill(int64_t batch, int64_t first, int64_t count, double* to) const;

 private:
  Tensor positions_, offsets_;
  int64_t offset_, axes_, axis_stride_ = 0, batch_stride_ = 0, token_stride_ = 0;
};

/// Tables from positions and frequencies.
template <typename T>
class AngleTables {
 public:
  AngleTables(const Kernels& kernels, const RowForm& form, const Positions& positions, const Tensor& inv_freq,
              const std::optional<std::vector<int64_t>>& axes, int64_t num_axes, double scale, bool inverse);
  TableRows<T> rows(int64_t batch, int64_t head, int64_t first, int64_t count, TableScratch<T>& scratch) const;

 private:
  void write_exactly(const double* freq, const double* positions, T* cos, T* sin) const;

  const Kernels& kernels_;
  RowForm form_;
  const Positions& positions_;
  int64_t axes_, heads_;
  bool one_axis_each_;
  double scale_, sine_sign_, largest_ = 0;
  /// (heads, axes, padded), in the kernel's order.
  c10::SmallVector<double, 128> freq_;
};

/// Tables given by the caller.
template <typename T>
class GivenTables {
 public:
  GivenTables(const Kernels& kernels, const RowForm& form, const Tensor& cos, const Tensor& sin, bool inverse);
  TableRows<T> rows(int64_t batch, int64_t head, int64_t first, int64_t count, TableScratch<T>& scratch) const;

 private:
  /// Rows of a given table in the kernel's form. The first of each two entries of a doubled row is multiplied by
  /// `first`, every other entry by `sign`.
  void copy(const T* from, int64_t count, T sign, T first, T* to, TableScratch<T>& scratch) const;

  const Kernels& kernels_;
  RowForm form_;
  Tensor cos_, sin_;
  int64_t batch_stride_, head_stride_;
  bool inverse_;
};

/// Number of position axes that an op's arguments speak of.
int64_t count_axes(const OptionalTensor& positions, const Tensor& inv_freq,
                   const std::optional<std::vector<int64_t>>& axes);

}  // namespace posenc::rotary_ops
