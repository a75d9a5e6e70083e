/// What encodings on two axes add, in terms of ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "common/checks.h"
#include "encodings/grid/ops.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace posenc::grid_ops {
namespace {

constexpr const char* kModule = "GridRelativeBias";

at::TensorOptions table_options(const Tensor& query) {
  return query.options().dtype(query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

void check_heads(const Tensor& query, const c10::SymInt& heads, const Tensor& parameter) {
  check_dense(kModule, "query", query);
  TORCH_CHECK_VALUE(query.dim() == 4 && holds(query.sym_size(1).sym_eq(heads)), kModule,
                    ": expected query of shape (batch, heads, length, head_dim) with ", heads,
                    " heads, as num_heads is ", heads, ", but got ", query.sym_sizes());
  TORCH_CHECK_VALUE(parameter.device() == query.device(), kModule, ": expected query on ", parameter.device(),
                    " like the module, but it is on ", query.device());
}

/// (2, h w): row and column of each token.
Tensor coordinates(int64_t height, int64_t width, const at::TensorOptions& integers) {
  const Tensor token = at::arange(height * width, integers);
  return at::stack({token.div(width, "floor"), token.remainder(width)});
}

/// (2, 1).
Tensor place(int64_t y, int64_t x, const at::TensorOptions& integers) {
  return at::stack({at::full({1}, y, integers), at::full({1}, x, integers)});
}

std::tuple<Tensor, Tensor> grid_positions_composite(const Tensor& query, const Tensor& key, at::IntArrayRef size,
                                                    bool class_token, std::string_view module) {
  const std::string name(module);
  for (const auto& [what, x] : {std::pair("query", query), std::pair("key", key)}) {
    check_dense(name.c_str(), what, x);
    TORCH_CHECK_VALUE(x.dim() == 4, name, ": expected ", what, " of shape (batch, heads, length, head_dim), but got ",
                      x.sym_sizes());
  }
  const int64_t tokens = size[0] * size[1] + (class_token ? 1 : 0);
  const c10::SymInt queries = query.sym_size(2);
  TORCH_CHECK_VALUE(holds(key.sym_size(2).sym_eq(tokens)), name, ": expected ", tokens, " keys, those of a grid of ",
                    size[0], " x ", size[1], class_token ? " and a class token" : ", or k_positions, their coordinates",
                    ", but got key of shape ", key.sym_sizes());
  TORCH_CHECK_VALUE(holds(queries.sym_le(tokens)), name, ": expected at most as many queries as keys, ", tokens,
                    ", but got query of shape ", query.sym_sizes());
  const auto integers = query.options().dtype(at::kLong);
  Tensor k = coordinates(size[0], size[1], integers), q = k;
  if (class_token) {
    // As a key the token lies beyond the last row and column, as a query beyond those and, but for itself, too.
    constexpr int64_t kFar = int64_t{1} << 32;
    k = at::cat({place(kFar, 2 * kFar, integers), k}, 1);
    q = at::cat({place(3 * kFar, kFar, integers), q}, 1);
  }
  return {q.narrow_symint(1, tokens - queries, queries), k};
}

Tensor grid_table_composite(const Tensor& rows, const Tensor& query, at::IntArrayRef window, bool class_token) {
  const int64_t height = 2 * window[0] - 1, width = 2 * window[1] - 1;
  check_dense(kModule, "table", rows);
  TORCH_CHECK_VALUE(rows.dim() == 2 && holds(rows.sym_size(0).sym_eq(height * width + (class_token ? 3 : 0))), kModule,
                    ": expected table of shape (", height * width + (class_token ? 3 : 0), ", num_heads), but got ",
                    rows.sym_sizes());
  check_heads(query, rows.sym_size(1), rows);
  const Tensor by_head = rows.to(table_options(query)).t();
  if (!class_token) {
    return by_head.unflatten(1, {height, width}).flip({1, 2});
  }
  const auto integers = query.options().dtype(at::kLong);
  // Entries (y, x) of the larger table; its corners are those that the class token meets (grid_positions()).
  const Tensor y = at::arange(height + 2, integers).unsqueeze(1), x = at::arange(width + 2, integers);
  const Tensor within = (height - y).clamp(0, height - 1) * width + (width - x).clamp(0, width - 1);
  const int64_t own = height * width;
  const Tensor from_token = (y == 0).logical_and(x == 0), to_token = (y == height + 1).logical_and(x == width + 1),
               itself = (y == 0).logical_and(x == width + 1);
  const Tensor entry = at::where(from_token, own, at::where(to_token, own + 1, at::where(itself, own + 2, within)));
  return by_head.index_select(1, entry.flatten()).unflatten(1, {height + 2, width + 2});
}

/// sign(d) log2(1 + 8 |d| / (window - 1)) / 3 for d = -(window - 1) .. window - 1.
Tensor log_distances(int64_t window, const at::TensorOptions& options) {
  const double most = static_cast<double>(std::max<int64_t>(window - 1, 1));
  const Tensor d = at::arange(1 - window, window, options);
  return d.sign() * (d.abs() * (8.0 / most)).log1p() / (3.0 * std::log(2.0));
}

Tensor continuous_grid_rows_composite(const Tensor& weight_in, const Tensor& bias_in, const Tensor& weight_out,
                                      const Tensor& query, at::IntArrayRef window) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  for (const auto& [what, x] :
       {std::pair("the MLP's first weight", weight_in), std::pair("the MLP's first bias", bias_in),
        std::pair("the MLP's last weight", weight_out)}) {
    check_dense(kModule, what, x);
  }
  TORCH_CHECK_VALUE(bias_in.dim() == 1, kModule, ": expected the MLP's first bias to have one dimension, but got ",
                    bias_in.sym_sizes());
  const c10::SymInt hidden = bias_in.sym_size(0);
  TORCH_CHECK_VALUE(
      weight_in.dim() == 2 && holds(weight_in.sym_size(0).sym_eq(hidden)) && holds(weight_in.sym_size(1).sym_eq(2)),
      kModule, ": expected the MLP's first weight of shape (", hidden, ", 2), but got ", weight_in.sym_sizes());
  TORCH_CHECK_VALUE(weight_out.dim() == 2 && holds(weight_out.sym_size(1).sym_eq(hidden)), kModule,
                    ": expected the MLP's last weight of shape (num_heads, ", hidden, "), but got ",
                    weight_out.sym_sizes());
  check_heads(query, weight_out.sym_size(0), weight_in);
  const auto options = table_options(query);
  const int64_t height = 2 * window[0] - 1, width = 2 * window[1] - 1;
  const Tensor y = log_distances(window[0], options).unsqueeze(1).expand({height, width});
  const Tensor x = log_distances(window[1], options).unsqueeze(0).expand({height, width});
  const Tensor places = at::stack({y, x}, -1).flatten(0, 1);  // ((2h-1)(2w-1), 2)
  const Tensor hidden_layer = at::linear(places, weight_in.to(options), bias_in.to(options)).relu();
  return at::linear(hidden_layer, weight_out.to(options)).sigmoid() * 16.0;
}

POSENC_COMPOSITES(m) {
  m.impl("_grid_positions", &grid_positions_composite);
  m.impl("_grid_table", &grid_table_composite);
  m.impl("_continuous_grid_rows", &continuous_grid_rows_composite);
}

}  // namespace
}  // namespace posenc::grid_ops
