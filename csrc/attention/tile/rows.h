#pragma once

/// Rows of any type as rows of T and back, for kernel files only.

#include "attention/tile/gemm.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace posenc::attention_ops {
namespace {

/// Calls body(typed pointer) for memory of a type.
template <typename Body>
void with_type(const void* data, ElementType type, const Body& body) {
  switch (type) {
    case ElementType::kFloat:
      return body(static_cast<const float*>(data));
    case ElementType::kDouble:
      return body(static_cast<const double*>(data));
    case ElementType::kBFloat16:
      return body(static_cast<const c10::BFloat16*>(data));
    default:
      return body(static_cast<const c10::Half*>(data));
  }
}

/// A number of one type as one of another; those of 16 bits know float alone.
template <typename To, typename From>
To converted(From x) {
  if constexpr (sizeof(To) == 2 || sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

/// One vector of T from memory of any type.
template <typename T, typename Element>
inline Vec<T> load_vector(const Element* p) {
  if constexpr (std::is_same_v<T, Element>) {
    return Vec<T>::loadu(p);
  } else if constexpr (std::is_same_v<T, float> && sizeof(Element) == 2) {
    Vec<float> x;
    at::vec::load_to_float<Element>(p, x);
    return x;
  } else {
    alignas(64) T lanes[Vec<T>::size()];
    for (int i = 0; i < Vec<T>::size(); ++i) {
      lanes[i] = converted<T>(p[i]);
    }
    return Vec<T>::loadu(lanes);
  }
}

/// Rows as T, row after row of `padded_width` elements, with zeros from `width` on.
template <typename T>
void pack_rows(const ConstRows& from, int64_t rows, int64_t width, int64_t padded_width, T* to) {
  with_type(from.data, from.type, [&](const auto* data) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto* row = data + i * from.row;
      T* out = to + i * padded_width;
      if (from.column == 1) {
        int64_t d = 0;
        for (; d + Vec<T>::size() <= width; d += Vec<T>::size()) {
          load_vector<T>(row + d).store(out + d);
        }
        for (; d < width; ++d) {
          out[d] = converted<T>(row[d]);
        }
      } else {
        for (int64_t d = 0; d < width; ++d) {
          out[d] = converted<T>(row[d * from.column]);
        }
      }
      std::fill(out + width, out + padded_width, T(0));
    }
  });
}

/// to[i] = factor[i] * rows[i], in the type and strides of `to`.
template <typename T>
void unpack_rows(const T* rows, int64_t row, int64_t count, int64_t width, const T* factor, const MutableRows& to) {
  with_type(to.data, to.type, [&](const auto* data) {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    for (int64_t i = 0; i < count; ++i) {
      const T* from = rows + i * row;
      Element* out = const_cast<Element*>(data) + i * to.row;
      if (to.column == 1) {
        for (int64_t d = 0; d < width; ++d) {
          out[d] = converted<Element>(factor[i] * from[d]);
        }
      } else {
        for (int64_t d = 0; d < width; ++d) {
          out[d * to.column] = converted<Element>(factor[i] * from[d]);
        }
      }
    }
  });
}

/// Writes scale * rows, rows of the padded width.
template <typename T>
void unpack_scaled(const T* rows, int64_t count, int64_t width, double scale, const MutableRows& to) {
  T factor[kTileQueries];
  std::fill(factor, factor + count, static_cast<T>(scale));
  unpack_rows(rows, padded<T>(width), count, width, factor, to);
}

template <typename T>
void scale_rows(T* rows, int64_t count, double scale) {
  std::transform(rows, rows + count, rows, [&](T x) { return x * static_cast<T>(scale); });
}

/// Tiles, or blocks, whose products with values are summed together: sums of such sums lose less on a long row.
constexpr int64_t kSumsTogether = 32;

/// Flushes `sums` into `flushed`, which is first multiplied by the factors collected since the last flush, and begins
/// sums and factors anew.
template <typename T>
void flush_sums(int64_t rows, int64_t width, T* sums, T* flushed, T* scale_since_flush) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * width; i < (r + 1) * width; ++i) {
      flushed[i] = flushed[i] * scale_since_flush[r] + sums[i];
      sums[i] = T(0);
    }
    scale_since_flush[r] = T(1);
  }
}

/// Whether any of rows x width elements is NaN or infinite.
template <typename T>
bool any_nonfinite(const T* rows, int64_t row, int64_t count, int64_t width) {
  Vec<T> sum(T(0));  // x * 0 is NaN for such x, and stays it
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < width; d += Vec<T>::size()) {
      sum = fmadd(Vec<T>::loadu(rows + i * row + d), Vec<T>(T(0)), sum);
    }
  }
  const T total = cpu::sum_lanes(sum);
  return total != total;
}

}  // namespace
}  // namespace posenc::attention_ops
