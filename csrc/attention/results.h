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

/// The dtype of what CoPE counts.
inline at::ScalarType counts_dtype(const Call& c) { return computing_dtype(c) == at::kDouble ? at::kLong : at::kInt; }

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
inline Tensor empty_lse(const Call& c) {
  const Tensor& query = c.query();
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)},
                          query.options().dtype(computing_dtype(c)));
}

/// What CoPE's forward pass counted for each query, (B, H, 3, Tq): the first key whose position lies below the last
/// entry of the table, and that position as an integer and a fraction in fixed point. No elements in calls without
/// CoPE.
inline Tensor empty_counts(const Call& c) {
  const Tensor& query = c.query();
  const auto options = query.options().dtype(counts_dtype(c));
  return c.has(kPosEmb) ? at::empty_symint({query.sym_size(0), query.sym_size(1), 3, query.sym_size(2)}, options)
                        : at::empty({0}, options);
}

}  // namespace posenc::attention_ops
