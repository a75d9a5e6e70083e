#pragma once

/// Memory of the attention ops' results.

#include "attention/call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace posenc::attention_ops {

/// The dtype that scores, sums and lse have.
inline at::ScalarType computing_dtype(const Call& c) {
  return c.query().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// out (B, H, Tq, Dv), in the order of query's strides.
inline Tensor empty_out(const Call& c, at::ScalarType dtype) {
  const Tensor& query = c.query();
  const c10::SymInt width = c.value().sym_size(3);
  const auto options = query.options().dtype(dtype);
  if (width == query.sym_size(3)) {
    return at::empty_like(query, options);
  }
  const c10::SymInt same = -1;
  return at::empty_like(query.slice(3, 0, 1).expand_symint({same, same, same, width}), options);
}
inline Tensor empty_out(const Call& c) { return empty_out(c, c.query().scalar_type()); }

/// (B, H, Tq).
inline Tensor empty_by_query(const Call& c, at::ScalarType dtype) {
  const Tensor& query = c.query();
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)}, query.options().dtype(dtype));
}
inline Tensor empty_lse(const Call& c) { return empty_by_query(c, computing_dtype(c)); }

/// Places in what the forward pass leaves for the backward pass alone, each (B, H, Tq): SoftmaxState; with contextual
/// positions also ContextualState (kernel.h).
enum StatePlace : size_t { kStateLargest, kStateTotal, kStateFirstKey, kStateWhole, kStateFraction, kStateSize };

inline size_t state_size(const Call& c) { return c.has(kPosEmb) ? kStateSize : kStateFirstKey; }

inline std::vector<Tensor> empty_state(const Call& c) {
  if (!c.has(kPosEmb)) {
    return {empty_lse(c), empty_lse(c)};
  }
  const auto counts = [&](at::ScalarType dtype) { return empty_by_query(c, dtype); };
  return {empty_lse(c), empty_lse(c), counts(at::kInt), counts(at::kInt),
          counts(computing_dtype(c) == at::kDouble ? at::kLong : at::kInt)};
}

}  // namespace posenc::attention_ops
