#include "attention/terms/grid/term.h"

#include "attention/checks.h"
#include "common/checks.h"

#include <cmath>

namespace posenc::attention_ops {

using namespace reference;

namespace {

/// The table of an axis, 0 for y and 1 for x.
constexpr Input kTables[] = {kGridRelY, kGridRelX};

bool is_odd(const c10::SymInt& n) { return holds((n % 2).sym_eq(1)); }

void check_coordinates(const Call& c) {
  const c10::SymInt queries = c.query().sym_size(2), keys = c.key().sym_size(2);
  TORCH_CHECK_VALUE(c.k_positions, op_name(c), ": expected k_positions of shape (2, ", keys,
                    "), the keys' coordinates on two axes, with grid_bias, grid_rel_y and grid_rel_x, but got None");
  TORCH_CHECK_VALUE(c.q_positions || holds(queries.sym_le(keys)), op_name(c), ": expected q_positions of shape (2, ",
                    queries, ") where there are more queries than keys, ", keys, ", but got None");
}

/// key - query along an axis, broadcastable to (B, 1, length, Tk).
Tensor distance_along(const Operands& o, const Block& block, int64_t axis) {
  const auto rows = [axis](const Tensor& positions) {  // (1 or B, T)
    const Tensor x = positions.select(0, axis).to(at::kLong);
    return x.dim() == 1 ? x.unsqueeze(0) : x;
  };
  const Tensor k = rows(*o.call.k_positions);
  const Tensor q = o.call.q_positions ? rows(*o.call.q_positions).narrow_symint(1, block.rows.begin, block.rows.length)
                                      : k.narrow_symint(1, o.own_key(block.rows), block.rows.length);
  return difference(k.unsqueeze(1).unsqueeze(2), q.unsqueeze(1).unsqueeze(3));
}

/// Where an entry of a head's grid_bias stands, row after row, for each query and key.
Tensor cells_of(const Operands& o, const Block& block) {
  const Tensor& table = o[kGridBias];
  const c10::SymInt row = table.sym_size(2);
  return clipped(distance_along(o, block, 0), table.sym_size(1)) * row + clipped(distance_along(o, block, 1), row);
}

/// Where an entry of the table of an axis stands.
Tensor entries_of(const Operands& o, const Block& block, int64_t axis) {
  return clipped(distance_along(o, block, axis), o[kTables[axis]].sym_size(-2));
}

}  // namespace

void Grid::check(const Call& c) {
  TORCH_CHECK_VALUE(c.has(kGridRelY) == c.has(kGridRelX), op_name(c),
                    ": expected grid_rel_y and grid_rel_x together, but got one of them");
  TORCH_CHECK_VALUE(!c.grid_rel_scale || c.has(kGridRelY), op_name(c),
                    ": expected grid_rel_scale with grid_rel_y and grid_rel_x alone, but got ", *c.grid_rel_scale);
  TORCH_CHECK_VALUE(!c.grid_rel_scale || std::isfinite(*c.grid_rel_scale), op_name(c),
                    ": expected a finite grid_rel_scale, but got ", *c.grid_rel_scale);
  check_coordinates(c);
  const c10::SymInt heads = c.query().sym_size(1), width = c.query().sym_size(3);
  if (c.has(kGridBias)) {
    check_table(c, kGridBias);
    const Tensor& x = c[kGridBias];
    TORCH_CHECK_VALUE(x.dim() == 3 && equal(x.sym_size(0), heads) && is_odd(x.sym_size(1)) && is_odd(x.sym_size(2)),
                      op_name(c), ": expected grid_bias of shape (", heads, ", 2Ry + 1, 2Rx + 1), but got ",
                      x.sym_sizes());
  }
  for (const Input input : kTables) {
    if (!c.has(input)) {
      continue;
    }
    check_table(c, input);
    const Tensor& x = c[input];
    TORCH_CHECK_VALUE((x.dim() == 2 || (x.dim() == 3 && equal(x.sym_size(0), heads))) && equal(x.sym_size(-1), width) &&
                          is_odd(x.sym_size(-2)),
                      op_name(c), ": expected ", name_of(c, input), " of shape (2R + 1, ", width, ") or (", heads,
                      ", 2R + 1, ", width, "), but got ", x.sym_sizes());
  }
}

void Grid::add_scores(const Operands& o, const Block& block, Tensor& scores) {
  if (o.call.has(kGridBias)) {
    const Tensor cells = cells_of(o, block);  // (1 or B, 1, length, Tk)
    const Tensor found = o[kGridBias].flatten(1).index_select(1, cells.flatten());
    scores = scores + found.unflatten_symint(1, cells.sym_sizes()).squeeze(2).transpose(0, 1);
  }
  for (int64_t axis = 0; axis < 2 && o.call.has(kGridRelY); ++axis) {
    const Tensor by_entry = block.query.matmul(o[kTables[axis]].transpose(-1, -2));
    scores = scores + look_up(o, by_entry, entries_of(o, block, axis)) * o.call.grid_scale();
  }
}

void Grid::add_gradients(const Operands& o, const Block& block, const Tensor& grad, ProductGradient& /*product*/,
                         GradientSums& sums) {
  if (sums.wants(kGridBias)) {
    const Tensor& table = o[kGridBias];
    const Tensor cells = cells_of(o, block);
    const Tensor by_cell = cells.sym_size(0) == o.batch ? grad : grad.sum(0, /*keepdim=*/true);
    const Tensor flat = by_cell.transpose(0, 1).flatten(1);  // (H, cells)
    const Tensor sum = at::zeros_symint({o.heads, table.sym_size(1) * table.sym_size(2)}, grad.options())
                           .index_add(1, cells.flatten(), flat);
    sums.add(kGridBias, sum.reshape_symint(table.sym_sizes()));
  }
  for (int64_t axis = 0; axis < 2 && o.call.has(kGridRelY); ++axis) {
    const Input input = kTables[axis];
    if (!sums.wants(kQuery) && !sums.wants(input)) {
      continue;
    }
    const Tensor& table = o[input];
    const Tensor bins = sum_bins(o, grad * o.call.grid_scale(), entries_of(o, block, axis), table.sym_size(-2));
    if (sums.wants(kQuery)) {
      sums.add_rows(kQuery, bins.matmul(table));
    }
    if (sums.wants(input)) {
      sums.add(input, bins.transpose(-1, -2).matmul(block.query).sum_to_size_symint(table.sym_sizes()));
    }
  }
}

}  // namespace posenc::attention_ops
