#include "rotary/cpu/tables.h"

#include <algorithm>
#include <cmath>

namespace posenc::rotary_ops {
namespace {

template <typename Source>
void copy_positions(const Tensor& from, int64_t start, int64_t stride, int64_t count, double* to, int64_t to_stride) {
  const Source* p = from.const_data_ptr<Source>() + start;
  for (int64_t i = 0; i < count; ++i) {
    to[i * to_stride] = static_cast<double>(p[i * stride]);
  }
}

/// Place in a kernel's row of pair k: steps of 2 * lanes hold the even pairs, then the odd ones.
int64_t even_odd_place(int64_t k, int64_t lanes) {
  const int64_t step = 2 * lanes, within = k % step;
  return k - within + within / 2 + (within % 2) * lanes;
}

}  // namespace

RowForm::RowForm(const Kernels& kernels, int64_t pairs, ElementType type, bool interleaved)
    : pairs(pairs), order(pair_order(type, interleaved)) {
  // Angles are formed by whole float vectors too, which may be wider than a step of the double kernel.
  const int64_t step = std::max(kernels.lanes, kernels.chunk(type, interleaved));
  padded = (entries() + step - 1) / step * step;
}

Positions::Positions(const char* op, const OptionalTensor& positions, const c10::SymInt& offset,
                     const OptionalTensor& offsets, int64_t length, int64_t axes, bool multi_axis)
    : offset_(offset.guard_int(__FILE__, __LINE__)), axes_(axes) {
  if (offsets) {
    offsets_ = offsets->to(at::kLong);
    for (int64_t row = 0; row < offsets_.size(0); ++row) {
      check_last_position(op, offsets_.const_data_ptr<int64_t>()[row * offsets_.stride(0)], length);
    }
  }
  if (!positions) {
    return;
  }
  const at::ScalarType type = positions->scalar_type();
  const bool read_as_is = type == at::kLong || type == at::kInt || type == at::kFloat || type == at::kDouble;
  positions_ = read_as_is ? *positions : positions->to(at::kDouble);
  const int64_t leading = multi_axis ? 1 : 0;
  axis_stride_ = multi_axis ? positions_.stride(0) : 0;
  batch_stride_ = positions_.dim() == leading + 2 && positions_.size(leading) > 1 ? positions_.stride(leading) : 0;
  token_stride_ = positions_.stride(-1);
}

void Positions::fill(int64_t batch, int64_t first, int64_t count, double* to) const {
  if (!positions_.defined()) {
    const int64_t start = offsets_.defined() ? offsets_.const_data_ptr<int64_t>()[batch * offsets_.stride(0)] : offset_;
    for (int64_t i = 0; i < count; ++i) {
      std::fill_n(to + i * axes_, axes_, static_cast<double>(start + first + i));
    }
    return;
  }
  for (int64_t axis = 0; axis < axes_; ++axis) {
    const int64_t start = axis * axis_stride_ + batch * batch_stride_ + first * token_stride_;
    const auto copy = [&](auto source) {
      copy_positions<decltype(source)>(positions_, start, token_stride_, count, to + axis, axes_);
    };
    switch (positions_.scalar_type()) {
      case at::kLong:
        copy(int64_t{});
        break;
      case at::kInt:
        copy(int32_t{});
        break;
      case at::kFloat:
        copy(float{});
        break;
      default:
        copy(double{});
    }
  }
}

template <typename T>
AngleTables<T>::AngleTables(const Kernels& kernels, const RowForm& form, const Positions& positions,
                            const Tensor& inv_freq, const std::optional<std::vector<int64_t>>& axes, int64_t num_axes,
                            double scale, bool inverse)
    : kernels_(kernels),
      form_(form),
      positions_(positions),
      axes_(num_axes),
      heads_(inv_freq.dim() == 3 ? inv_freq.size(1) : 1),
      one_axis_each_(num_axes > 1 && inv_freq.dim() == 1),
      scale_(scale),
      sine_sign_(inverse ? -1.0 : 1.0) {
  freq_.assign(heads_ * axes_ * form_.padded, 0.0);
  const Tensor f = inv_freq.scalar_type() == at::kDouble ? inv_freq : inv_freq.to(at::kDouble);
  const double* from = f.const_data_ptr<double>();
  const auto put = [&](int64_t head, int64_t axis, int64_t k, double value) {
    double* row = freq_.data() + (head * axes_ + axis) * form_.padded;
    switch (form_.order) {
      case PairOrder::kPlain:
        row[k] = value;
        break;
      case PairOrder::kEvenOdd:
        row[even_odd_place(k, kernels_.lanes)] = value;
        break;
      case PairOrder::kDoubled:  // a negated angle has the same cosine and the negated sine
        row[2 * k] = -value;
        row[2 * k + 1] = value;
        break;
    }
    largest_ = std::max(largest_, std::abs(value));
  };
  if (f.dim() == 1) {
    // One axis a pair: the frequency stands in that axis' row, the others hold zero and add nothing.
    for (int64_t k = 0; k < form_.pairs; ++k) {
      put(0, axes_ > 1 ? (*axes)[k] : 0, k, from[k * f.stride(0)]);
    }
    return;
  }
  for (int64_t axis = 0; axis < axes_; ++axis) {
    for (int64_t head = 0; head < heads_; ++head) {
      const double* row = from + axis * f.stride(0) + (f.dim() == 3 ? head * f.stride(1) : 0);
      for (int64_t k = 0; k < form_.pairs; ++k) {
        put(head, axis, k, row[k * f.stride(-1)]);
      }
    }
  }
}

/// Angles of any size by the C library, whose argument reduction is exact.
template <typename T>
void AngleTables<T>::write_exactly(const double* freq, const double* positions, T* cos, T* sin) const {
  for (int64_t k = 0; k < form_.padded; ++k) {
    double angle = 0;
    for (int64_t axis = 0; axis < axes_; ++axis) {
      const double w = freq[axis * form_.padded + k];
      angle += one_axis_each_ && w == 0 ? 0 : positions[axis] * w;
    }
    cos[k] = static_cast<T>(std::cos(angle) * scale_);
    sin[k] = static_cast<T>(std::sin(angle) * scale_ * sine_sign_);
  }
}

template <typename T>
TableRows<T> AngleTables<T>::rows(int64_t batch, int64_t head, int64_t first, int64_t count,
                                  TableScratch<T>& scratch) const {
  const double* freq = freq_.data() + (heads_ > 1 ? head : 0) * axes_ * form_.padded;
  const Frequencies f{freq, axes_, form_.padded, form_.padded, one_axis_each_};
  double* positions = scratch.positions(count * axes_);
  positions_.fill(batch, first, count, positions);
  for (int64_t i = 0; i < count; ++i) {
    const double* p = positions + i * axes_;
    T* cos = scratch.cos() + i * form_.padded;
    T* sin = scratch.sin() + i * form_.padded;
    double bound = 0;
    for (int64_t axis = 0; axis < axes_; ++axis) {
      bound += std::abs(p[axis]) * largest_;
    }
    if constexpr (std::is_same_v<T, double>) {
      kernels_.angles_double(f, p, scale_, sine_sign_, cos, sin);
    } else if (bound < kMaxVectorAngle) {
      kernels_.angles_float(f, p, scale_, sine_sign_, cos, sin);
    } else {
      write_exactly(freq, p, cos, sin);
    }
  }
  return {scratch.cos(), scratch.sin(), form_.padded};
}

template <typename T>
GivenTables<T>::GivenTables(const Kernels& kernels, const RowForm& form, const Tensor& cos, const Tensor& sin,
                            bool inverse)
    : kernels_(kernels),
      form_(form),
      cos_(cos.to(c10::CppTypeToScalarType<T>::value).contiguous()),
      sin_(sin.to(c10::CppTypeToScalarType<T>::value).contiguous()),
      batch_stride_(cos.dim() > 2 && cos.size(0) > 1 ? cos_.stride(0) : 0),
      head_stride_(cos.dim() == 4 && cos.size(1) > 1 ? cos_.stride(1) : 0),
      inverse_(inverse) {}

template <typename T>
void GivenTables<T>::copy(const T* from, int64_t count, T sign, T first, T* to, TableScratch<T>& scratch) const {
  for (int64_t i = 0; i < count; ++i, from += form_.pairs, to += form_.padded) {
    T* row = form_.order == PairOrder::kEvenOdd ? scratch.spare() : to;
    if (form_.order == PairOrder::kDoubled) {
      for (int64_t k = 0; k < form_.pairs; ++k) {
        row[2 * k] = first * from[k];
        row[2 * k + 1] = sign * from[k];
      }
    } else {
      std::transform(from, from + form_.pairs, row, [sign](T value) { return sign * value; });
    }
    std::fill(row + form_.entries(), row + form_.padded, T(0));
    if constexpr (std::is_same_v<T, float>) {
      if (form_.order == PairOrder::kEvenOdd) {
        kernels_.split_even_odd(row, to, form_.padded);
      }
    }
  }
}

template <typename T>
TableRows<T> GivenTables<T>::rows(int64_t batch, int64_t head, int64_t first, int64_t count,
                                  TableScratch<T>& scratch) const {
  const int64_t start = batch * batch_stride_ + head * head_stride_ + first * form_.pairs;
  const T* cos = cos_.const_data_ptr<T>() + start;
  const T* sin = sin_.const_data_ptr<T>() + start;
  const bool as_is = form_.pairs == form_.padded && form_.order == PairOrder::kPlain;
  const T sign = inverse_ ? T(-1) : T(1);
  if (!as_is) {
    copy(cos, count, T(1), T(1), scratch.cos(), scratch);
  }
  if (!as_is || inverse_) {
    copy(sin, count, sign, -sign, scratch.sin(), scratch);
  }
  return {as_is ? cos : scratch.cos(), as_is && !inverse_ ? sin : scratch.sin(), form_.padded};
}

int64_t count_axes(const OptionalTensor& positions, const Tensor& inv_freq,
                   const std::optional<std::vector<int64_t>>& axes) {
  if (inv_freq.dim() > 1) {
    return inv_freq.size(0);
  }
  // Without positions all axes agree.
  return positions && axes ? std::max<int64_t>(positions->size(0), 1) : 1;
}

template class AngleTables<float>;
template class AngleTables<double>;
template class GivenTables<float>;
template class GivenTables<double>;

}  // namespace posenc::rotary_ops
