#pragma once

/// The shapes that are measured, under the names that the Python benchmarks use too (../shapes.csv).

#include <ATen/ATen.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace posenc::benchmarks {

/// Queries (batch, heads, tokens, head_dim) and keys (batch, key_heads, tokens, head_dim) of one model.
struct Shape {
  const char* name;
  int64_t batch, heads, key_heads, tokens, head_dim, rotary_dim;
  double base;
};

inline constexpr Shape kShapes[] = {
#include "shapes.inc"
};

inline const Shape& shape(const std::string& name) {
  for (const Shape& s : kShapes) {
    if (s.name == name) {
      return s;
    }
  }
  throw std::invalid_argument("no shape is named " + name);
}

/// Where the heads lie: before the tokens, as transformers' attention has them, or after, as projections make them.
enum class Layout { kBHTD, kBTHD };

/// Random q and k: contiguous, or transposed views of (B, T, H, D) memory.
inline std::pair<at::Tensor, at::Tensor> queries_and_keys(const Shape& s, at::ScalarType dtype, Layout layout) {
  const auto make = [&](int64_t heads) {
    return layout == Layout::kBHTD ? at::randn({s.batch, heads, s.tokens, s.head_dim}, dtype)
                                   : at::randn({s.batch, s.tokens, heads, s.head_dim}, dtype).transpose(1, 2);
  };
  return {make(s.heads), make(s.key_heads)};
}

}  // namespace posenc::benchmarks
