#pragma once

/// Memory of a job in parts, for kernel files only. A workspace has pointers and lay_out(), which names each part with
/// its size once.

#include "attention/tile/gemm.h"

#include <utility>

namespace posenc::attention_ops {
namespace {

/// Elements of T in a part of `count` elements of Number.
template <typename T, typename Number>
constexpr int64_t elements_of(int64_t count) {
  return count * static_cast<int64_t>(sizeof(Number)) / static_cast<int64_t>(sizeof(T));
}

/// Elements of T that a workspace holds, and a vector more for the terms' part to be readable beyond its end.
template <typename Workspace, typename T>
int64_t size_of(int64_t width, int64_t value_width) {
  Workspace w{};
  int64_t size = Vec<T>::size();
  w.lay_out(width, value_width, [&](const auto* part, int64_t count) {
    size += elements_of<T, std::remove_cvref_t<decltype(*part)>>(count);
  });
  return size;
}

/// Sets a workspace's pointers. Returns where its memory ends.
template <typename Workspace, typename T>
T* take_parts(Workspace& w, int64_t width, int64_t value_width, T* at) {
  w.lay_out(width, value_width, [&](auto*& part, int64_t count) {
    using Number = std::remove_reference_t<decltype(*part)>;
    part = reinterpret_cast<Number*>(std::exchange(at, at + elements_of<T, Number>(count)));
  });
  return at;
}

}  // namespace
}  // namespace posenc::attention_ops
