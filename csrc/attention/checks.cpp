#include "attention/checks.h"

#include "attention/terms/list.h"
#include "common/checks.h"

#include <cmath>

namespace posenc::attention_ops {

const char* op_name(const Call& c) {
  const char* name = "attention";
  for_each_used_term(c, [&](auto term) {
    const char* op = term.op(c);
    name = op != nullptr ? op : name;
  });
  return name;
}

const char* name_of(const Call& c, Input input) {
  const bool piecewise = c.has(kFarQuery);
  return piecewise && input == kQuery ? "q_near" : piecewise && input == kKey ? "k_near" : kInputNames[input];
}

bool equal(const c10::SymInt& a, const c10::SymInt& b) { return holds(a.sym_eq(b)); }

void check_defined(const Call& c) {
  for (int64_t input = 0; input < kInputs; ++input) {
    const auto& x = c.inputs[input];
    TORCH_CHECK_TYPE(!x || x->defined(), op_name(c), ": expected ", name_of(c, static_cast<Input>(input)),
                     " to be a tensor, but got None");
  }
}

void check_beside_query(const Call& c, const char* name, const Tensor& x) {
  check_dense(op_name(c), name, x);
  TORCH_CHECK_VALUE(x.device() == c.query().device(), op_name(c), ": expected ", name, " on ", c.query().device(),
                    " like ", name_of(c, kQuery), ", but it is on ", x.device());
}

void check_table(const Call& c, Input input) {
  const Tensor& x = c[input];
  check_beside_query(c, name_of(c, input), x);
  TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), op_name(c), ": expected ", name_of(c, input),
                   " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
}

void check_rows_of_distances(const Call& c, Input input, const c10::SymInt& width) {
  check_table(c, input);
  const Tensor& x = c[input];
  const c10::SymInt heads = c.query().sym_size(1);
  TORCH_CHECK_VALUE((x.dim() == 2 || (x.dim() == 3 && equal(x.sym_size(0), heads))) && equal(x.sym_size(-1), width) &&
                        holds((x.sym_size(-2) % 2).sym_eq(1)),
                    op_name(c), ": expected ", name_of(c, input), " of shape (2R + 1, ", width, ") or (", heads,
                    ", 2R + 1, ", width, "), but got ", x.sym_sizes());
}

void check_counts_tokens(const Call& c, const char* term) {
  const c10::SymInt queries = c.query().sym_size(2), keys = c.key().sym_size(2);
  TORCH_CHECK_VALUE(c.is_causal, op_name(c), ": expected is_causal=True with ", term,
                    ", which counts tokens from a key to a query, but got False");
  TORCH_CHECK_VALUE(!c.q_places() && !c.k_places(), op_name(c), ": expected neither q_positions nor k_positions with ",
                    term, ", which goes by index");
  TORCH_CHECK_VALUE(!c.q_start, op_name(c), ": expected no q_start with ", term, ", whose queries are the last tokens");
  TORCH_CHECK_VALUE(!c.block_ids, op_name(c), ": expected no block_ids with ", term,
                    ", which counts tokens up to a query and says nothing of later keys");
}

void check_broadcastable_to_scores(const Call& c, const char* name, const Tensor& x) {
  const c10::SymInt full[] = {c.query().sym_size(0), c.query().sym_size(1), c.query().sym_size(2), c.key().sym_size(2)};
  bool fits = x.dim() <= 4;
  for (int64_t dim = 1; fits && dim <= x.dim(); ++dim) {
    fits = one_or(x.sym_size(-dim), full[4 - dim]);
  }
  TORCH_CHECK_VALUE(fits, op_name(c), ": expected ", name, " to be broadcastable to (", full[0], ", ", full[1], ", ",
                    full[2], ", ", full[3], "), but got ", x.sym_sizes());
}

namespace {

/// query, key, value and their kin: (batch, heads, length, width), one dtype, one device.
void check_operands(const Call& c) {
  const Tensor& query = c.query();
  const char* op = op_name(c);
  for (const Input input : {kQuery, kKey, kValue, kFarQuery, kFarKey, kGateKey, kRelQuery}) {
    if (!c.has(input)) {
      continue;
    }
    const Tensor& x = c[input];
    const char *name = name_of(c, input), *first = name_of(c, kQuery);
    TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), op, ": expected ", name,
                     " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
    TORCH_CHECK_TYPE(x.scalar_type() == query.scalar_type(), op, ": expected ", name, " to have the dtype of ", first,
                     ", ", query.scalar_type(), ", but got ", x.scalar_type());
    check_beside_query(c, name, x);
    TORCH_CHECK_VALUE(x.dim() == 4, op, ": expected ", name, " of shape (batch, heads, length, ",
                      input == kValue ? "value width" : "head width", "), but got ", x.dim(),
                      " dimensions: ", x.sym_sizes());
    TORCH_CHECK_VALUE(equal(x.sym_size(0), query.sym_size(0)), op, ": expected ", name, " to have the batch of ", first,
                      ", ", query.sym_size(0), ", but got shape ", x.sym_sizes());
  }
  const Tensor& key = c.key();
  TORCH_CHECK_VALUE(holds(query.sym_size(3).sym_ge(1)), op, ": expected a head width of at least 1, but got ",
                    name_of(c, kQuery), " of shape ", query.sym_sizes());
  TORCH_CHECK_VALUE(equal(key.sym_size(3), query.sym_size(3)), op, ": expected ", name_of(c, kKey),
                    " to have the head width of ", name_of(c, kQuery), ", ", query.sym_size(3), ", but got shape ",
                    key.sym_sizes());
  TORCH_CHECK_VALUE(holds(key.sym_size(1).sym_ge(1)) && holds((query.sym_size(1) % key.sym_size(1)).sym_eq(0)), op,
                    ": expected the heads of ", name_of(c, kQuery), " to be a multiple of those of ", name_of(c, kKey),
                    ", but got ", query.sym_size(1), " and ", key.sym_size(1));
  for (const Input input : {kValue, kFarKey, kGateKey}) {
    if (!c.has(input)) {
      continue;
    }
    const Tensor& x = c[input];
    TORCH_CHECK_VALUE(equal(x.sym_size(1), key.sym_size(1)) && equal(x.sym_size(2), key.sym_size(2)), op, ": expected ",
                      name_of(c, input), " to have the heads and the length of ", name_of(c, kKey), ", ",
                      key.sym_size(1), " and ", key.sym_size(2), ", but got shape ", x.sym_sizes());
    TORCH_CHECK_VALUE(input == kValue || equal(x.sym_size(3), query.sym_size(3)), op, ": expected ", name_of(c, input),
                      " to have the head width of ", name_of(c, kQuery), ", ", query.sym_size(3), ", but got shape ",
                      x.sym_sizes());
  }
  TORCH_CHECK_VALUE(!c.has(kValue) || holds(c.value().sym_size(3).sym_ge(1)), op,
                    ": expected a value width of at least 1, but got value of shape ",
                    c.has(kValue) ? c.value().sym_sizes() : query.sym_sizes());
}

/// True where a score is a function of the distance itself.
bool needs_distance(const Call& c) {
  bool needs = false;
  for_each_used_term(c, [&](auto term) { needs = needs || term.kNeedsDistance; });
  return needs;
}

void check_positions(const Call& c, const char* name, const OptionalTensor& positions, const c10::SymInt& length) {
  if (!positions) {
    return;
  }
  const Tensor& p = *positions;
  check_beside_query(c, name, p);
  const bool integer = at::isIntegralType(p.scalar_type(), false);
  TORCH_CHECK_TYPE(integer || at::isFloatingType(p.scalar_type()), op_name(c), ": expected ", name,
                   " to be an integer or floating type, but got ", p.scalar_type());
  const c10::SymInt batch = c.query().sym_size(0);
  if (c.on_grid()) {
    TORCH_CHECK_TYPE(integer, op_name(c), ": expected integer ", name,
                     ", coordinates on two axes, with grid_bias, grid_rel_y and grid_rel_x, but got ", p.scalar_type());
    TORCH_CHECK_VALUE((p.dim() == 2 || (p.dim() == 3 && one_or(p.sym_size(1), batch))) && equal(p.sym_size(0), 2) &&
                          equal(p.sym_size(-1), length),
                      op_name(c), ": expected ", name, " of shape (2, ", length, ") or (2, ", batch, ", ", length,
                      "), coordinates on two axes, with grid_bias, grid_rel_y and grid_rel_x, but got ", p.sym_sizes());
    return;
  }
  TORCH_CHECK_TYPE(integer || !needs_distance(c), op_name(c), ": expected integer ", name,
                   ", as the scores depend on the distance, but got ", p.scalar_type());
  TORCH_CHECK_VALUE(
      (p.dim() == 1 || (p.dim() == 2 && one_or(p.sym_size(0), batch))) && equal(p.sym_size(-1), length), op_name(c),
      ": expected ", name, " of shape (", length, ") or (", batch, ", ", length, "), but got ", p.sym_sizes(),
      p.dim() > 1 && equal(p.sym_size(0), 2) ? ": positions of two axes need grid_bias or grid_rel_y" : "");
}

/// A number for each of `length` tokens.
void check_ids(const Call& c, const char* name, const OptionalTensor& ids, const c10::SymInt& length) {
  if (!ids) {
    return;
  }
  check_beside_query(c, name, *ids);
  TORCH_CHECK_TYPE(at::isIntegralType(ids->scalar_type(), false), op_name(c), ": expected ", name,
                   " to be an integer type, but got ", ids->scalar_type());
  const c10::SymInt batch = c.query().sym_size(0);
  TORCH_CHECK_VALUE(ids->dim() == 2 && one_or(ids->sym_size(0), batch) && equal(ids->sym_size(1), length), op_name(c),
                    ": expected ", name, " of shape (", batch, ", ", length, "), but got ", ids->sym_sizes());
}

void check_visibility(const Call& c) {
  const c10::SymInt batch = c.query().sym_size(0), queries = c.query().sym_size(2), keys = c.key().sym_size(2);
  const char* op = op_name(c);
  TORCH_CHECK_VALUE(!c.scale || std::isfinite(*c.scale), op, ": expected a finite scale, but got ", *c.scale);
  TORCH_CHECK_VALUE(!c.window || *c.window >= 1, op, ": expected window to be at least 1, but got ", *c.window);
  TORCH_CHECK_VALUE(!c.window || (!c.window_left && !c.window_right), op,
                    ": expected either window or window_left and window_right, but got both");
  for (const auto& [name, reach] : {std::pair{"window_left", c.window_left}, {"window_right", c.window_right}}) {
    TORCH_CHECK_VALUE(!reach || *reach >= 0, op, ": expected ", name, " to be at least 0, but got ", *reach);
  }
  TORCH_CHECK_VALUE(c.dropout_p >= 0.0 && c.dropout_p <= 1.0, op, ": expected dropout_p from 0 to 1, but got ",
                    c.dropout_p);
  if (c.key_mask) {
    const Tensor& mask = *c.key_mask;
    check_beside_query(c, "key_mask", mask);
    TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op,
                     ": expected key_mask to be bool, true where a key may be attended, but got ", mask.scalar_type());
    TORCH_CHECK_VALUE(mask.dim() == 2 && one_or(mask.sym_size(0), batch) && equal(mask.sym_size(1), keys), op,
                      ": expected key_mask of shape (", batch, ", ", keys, "), but got ", mask.sym_sizes());
  }
  const bool queries_are_keys = (c.segment_ids && !c.q_segment_ids) || c.block_ids;
  check_ids(c, "segment_ids", c.segment_ids, keys);
  check_ids(c, "q_segment_ids", c.q_segment_ids, queries);
  check_ids(c, "block_ids", c.block_ids, keys);
  TORCH_CHECK_VALUE(!c.q_segment_ids || c.segment_ids, op,
                    ": expected segment_ids, the segments of keys, with q_segment_ids");
  TORCH_CHECK_VALUE(!queries_are_keys || holds(queries.sym_le(keys)), op,
                    ": expected at most as many queries as keys with ", c.block_ids ? "block_ids" : "segment_ids",
                    ", which ", c.block_ids ? "name the blocks" : "name the segments",
                    " of keys, the last of them the queries', but got ", queries, " queries and ", keys, " keys",
                    c.block_ids ? "" : ": give those of the queries as q_segment_ids");
  if (c.q_start) {
    check_beside_query(c, "q_start", *c.q_start);
    TORCH_CHECK_TYPE(c.q_start->scalar_type() == at::kLong, op, ": expected q_start to be int64, but got ",
                     c.q_start->scalar_type());
    TORCH_CHECK_VALUE(c.q_start->dim() == 0 || (c.q_start->dim() == 1 && one_or(c.q_start->sym_size(0), batch)), op,
                      ": expected q_start of shape () or (", batch, "), but got ", c.q_start->sym_sizes());
    TORCH_CHECK_VALUE(!c.q_places(), op, ": expected either q_positions or q_start, but got both");
  }
  check_positions(c, "q_positions", c.q_positions, queries);
  check_positions(c, "k_positions", c.k_positions, keys);
}

}  // namespace

void check(const Call& c) {
  check_defined(c);
  check_operands(c);
  check_visibility(c);
  for_each_used_term(c, [&](auto term) { term.check(c); });
}

}  // namespace posenc::attention_ops
