#pragma once

/// Argument rules of the additive score encodings, on symbolic sizes.

#include "common/checks.h"
#include "encodings/bias/ops.h"

namespace posenc::bias_ops {

/// A call of `module`, which has `num_heads` heads and reads `parameter`.
inline void check_span(const char* module, const c10::SymInt& num_heads, const Tensor& parameter, const Span& span) {
  const Tensor &query = span.query, &key = span.key;
  check_dense(module, "query", query);
  check_dense(module, "key", key);
  check_dense(module, "q_positions", span.q_positions);
  check_dense(module, "k_positions", span.k_positions);
  TORCH_CHECK_VALUE(query.dim() == 4 && holds(query.sym_size(1).sym_eq(num_heads)), module,
                    ": expected query of shape (batch, heads, length, head_dim) with ", num_heads,
                    " heads, as num_heads is ", num_heads, ", but got ", query.sym_sizes());
  TORCH_CHECK_VALUE(key.dim() == 4, module, ": expected key of shape (batch, heads, length, head_dim), but got ",
                    key.sym_sizes());
  TORCH_CHECK_VALUE(parameter.device() == query.device(), module, ": expected query on ", parameter.device(),
                    " like the module, but it is on ", query.device());
}

/// A parameter with one entry for each head.
inline void check_per_head(const char* module, const char* name, const Tensor& parameter) {
  check_dense(module, name, parameter);
  TORCH_CHECK_VALUE(parameter.dim() == 1, module, ": expected ", name, " of shape (num_heads), but got ",
                    parameter.sym_sizes());
}

/// FIRE's parameters, and the positions that its terms are made from.
inline void check_fire(const FireParameters& p, double eps, const Span& span) {
  const char* module = "FIRE";
  TORCH_CHECK_VALUE(eps > 0 && std::isfinite(eps), module, ": expected eps to be positive and finite, but got ", eps);
  const auto one = [&](const char* name, const Tensor& x) {
    check_dense(module, name, x);
    TORCH_CHECK_VALUE(x.dim() == 1 && holds(x.sym_size(0).sym_eq(1)), module, ": expected ", name,
                      " of shape (1), but got ", x.sym_sizes());
  };
  one("c", p.c);
  one("threshold", p.threshold);
  check_dense(module, "the MLP's first bias", p.bias_in);
  check_dense(module, "the MLP's last bias", p.bias_out);
  TORCH_CHECK_VALUE(p.bias_out.dim() == 1 && p.bias_in.dim() == 1, module,
                    ": expected the biases of the MLP to have one dimension, but got shapes ", p.bias_in.sym_sizes(),
                    " and ", p.bias_out.sym_sizes());
  const c10::SymInt hidden = p.bias_in.sym_size(0), heads = p.bias_out.sym_size(0);
  const auto matrix = [&](const char* name, const Tensor& x, const c10::SymInt& rows, const c10::SymInt& columns) {
    check_dense(module, name, x);
    TORCH_CHECK_VALUE(x.dim() == 2 && holds(x.sym_size(0).sym_eq(rows)) && holds(x.sym_size(1).sym_eq(columns)), module,
                      ": expected ", name, " of shape (", rows, ", ", columns, "), but got ", x.sym_sizes());
  };
  matrix("the MLP's first weight", p.weight_in, hidden, 1);
  matrix("the MLP's last weight", p.weight_out, heads, hidden);
  check_span(module, heads, p.c, span);
  for (const auto& [name, positions] :
       {std::pair("q_positions", span.q_positions), std::pair("k_positions", span.k_positions)}) {
    TORCH_CHECK_TYPE(!positions || at::isIntegralType(positions->scalar_type(), false), module, ": expected integer ",
                     name, ", as the scores depend on the distance, but got ", positions->scalar_type());
  }
  const auto& q = span.q_positions;
  const c10::SymInt batch = span.query.sym_size(0), length = span.query.sym_size(2);
  TORCH_CHECK_VALUE(!q || ((q->dim() == 1 || (q->dim() == 2 && one_or(q->sym_size(0), batch))) &&
                           holds(q->sym_size(-1).sym_eq(length))),
                    module, ": expected q_positions of shape (", length, ") or (", batch, ", ", length, "), but got ",
                    q ? q->sym_sizes() : span.query.sym_sizes());
}

}  // namespace posenc::bias_ops
