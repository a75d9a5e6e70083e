#include "attention/checks.h"

#include "common/checks.h"

#include <cmath>

namespace posenc::attention_ops {

const char* name_of(const Call& c, Slot slot) {
  const bool piecewise = c.inputs[kFarQuery].has_value();
  switch (slot) {
    case kQuery:
      return piecewise ? "q_near" : "query";
    case kKey:
      return piecewise ? "k_near" : "key";
    case kValue:
      return "value";
    case kFarQuery:
      return "q_far";
    case kFarKey:
      return "k_far";
    case kRelK:
      return "rel_k";
    case kRelV:
      return "rel_v";
    case kPosEmb:
      return "pos_emb";
    case kGateKey:
      return "gate_key";
    case kGateBias:
      return "gate_bias";
    case kSlopes:
      return "alibi_slopes";
    case kDistanceBias:
      return "distance_bias";
    case kLogDecay:
      return "log_decay";
    default:
      return "bias";
  }
}

namespace {

bool equal(const c10::SymInt& a, const c10::SymInt& b) { return holds(a.sym_eq(b)); }

/// query, key, value and their kin: (batch, heads, length, width), one dtype, one device.
void check_operands(const Call& c) {
  const Tensor& query = c.query();
  for (const Slot slot : {kQuery, kKey, kValue, kFarQuery, kFarKey, kGateKey}) {
    if (!c.has(slot)) {
      continue;
    }
    const Tensor& x = c[slot];
    const char *name = name_of(c, slot), *first = name_of(c, kQuery);
    TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), c.op, ": expected ", name,
                     " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
    TORCH_CHECK_TYPE(x.scalar_type() == query.scalar_type(), c.op, ": expected ", name, " to have the dtype of ", first,
                     ", ", query.scalar_type(), ", but got ", x.scalar_type());
    TORCH_CHECK_VALUE(x.layout() == at::kStrided, c.op, ": expected ", name,
                      " to be a dense tensor, but got the layout ", x.layout());
    TORCH_CHECK_VALUE(x.device() == query.device(), c.op, ": expected ", name, " on ", query.device(), " like ", first,
                      ", but it is on ", x.device());
    TORCH_CHECK_VALUE(x.dim() == 4, c.op, ": expected ", name, " of shape (batch, heads, length, ",
                      slot == kValue ? "value width" : "head width", "), but got ", x.dim(),
                      " dimensions: ", x.sym_sizes());
    TORCH_CHECK_VALUE(equal(x.sym_size(0), query.sym_size(0)), c.op, ": expected ", name, " to have the batch of ",
                      first, ", ", query.sym_size(0), ", but got shape ", x.sym_sizes());
  }
  const Tensor& key = c.key();
  TORCH_CHECK_VALUE(holds(query.sym_size(3).sym_ge(1)), c.op, ": expected a head width of at least 1, but got ",
                    name_of(c, kQuery), " of shape ", query.sym_sizes());
  TORCH_CHECK_VALUE(equal(key.sym_size(3), query.sym_size(3)), c.op, ": expected ", name_of(c, kKey),
                    " to have the head width of ", name_of(c, kQuery), ", ", query.sym_size(3), ", but got shape ",
                    key.sym_sizes());
  TORCH_CHECK_VALUE(holds(key.sym_size(1).sym_ge(1)) && holds((query.sym_size(1) % key.sym_size(1)).sym_eq(0)), c.op,
                    ": expected the heads of ", name_of(c, kQuery), " to be a multiple of those of ", name_of(c, kKey),
                    ", but got ", query.sym_size(1), " and ", key.sym_size(1));
  for (const Slot slot : {kValue, kFarKey, kGateKey}) {
    if (!c.has(slot)) {
      continue;
    }
    const Tensor& x = c[slot];
    TORCH_CHECK_VALUE(equal(x.sym_size(1), key.sym_size(1)) && equal(x.sym_size(2), key.sym_size(2)), c.op,
                      ": expected ", name_of(c, slot), " to have the heads and the length of ", name_of(c, kKey), ", ",
                      key.sym_size(1), " and ", key.sym_size(2), ", but got shape ", x.sym_sizes());
    TORCH_CHECK_VALUE(slot == kValue || equal(x.sym_size(3), query.sym_size(3)), c.op, ": expected ", name_of(c, slot),
                      " to have the head width of ", name_of(c, kQuery), ", ", query.sym_size(3), ", but got shape ",
                      x.sym_sizes());
  }
  TORCH_CHECK_VALUE(!c.has(kValue) || holds(c.value().sym_size(3).sym_ge(1)), c.op,
                    ": expected a value width of at least 1, but got value of shape ",
                    c.has(kValue) ? c.value().sym_sizes() : query.sym_sizes());
  if (c.has(kFarQuery)) {
    const Tensor& far = c[kFarQuery];
    TORCH_CHECK_VALUE(equal(far.sym_size(1), query.sym_size(1)) && equal(far.sym_size(2), query.sym_size(2)) &&
                          equal(far.sym_size(3), query.sym_size(3)),
                      c.op, ": expected q_far to have the shape of q_near, ", query.sym_sizes(), ", but got ",
                      far.sym_sizes());
  }
}

void check_device(const Call& c, const char* name, const Tensor& x) {
  TORCH_CHECK_VALUE(x.device() == c.query().device(), c.op, ": expected ", name, " on ", c.query().device(), " like ",
                    name_of(c, kQuery), ", but it is on ", x.device());
}

/// True where a score is a function of the distance itself.
bool needs_distance(const Call& c) {
  return c.has(kSlopes) || c.has(kDistanceBias) || c.has(kRelK) || c.has(kFarQuery);
}

void check_positions(const Call& c, const char* name, const OptionalTensor& positions, const c10::SymInt& length) {
  if (!positions) {
    return;
  }
  const Tensor& p = *positions;
  check_device(c, name, p);
  const bool integer = at::isIntegralType(p.scalar_type(), false);
  TORCH_CHECK_TYPE(integer || at::isFloatingType(p.scalar_type()), c.op, ": expected ", name,
                   " to be an integer or floating type, but got ", p.scalar_type());
  TORCH_CHECK_TYPE(integer || !needs_distance(c), c.op, ": expected integer ", name,
                   ", as the scores depend on the distance, but got ", p.scalar_type());
  const c10::SymInt batch = c.query().sym_size(0);
  TORCH_CHECK_VALUE((p.dim() == 1 || (p.dim() == 2 && one_or(p.sym_size(0), batch))) && equal(p.sym_size(-1), length),
                    c.op, ": expected ", name, " of shape (", length, ") or (", batch, ", ", length, "), but got ",
                    p.sym_sizes());
}

void check_visibility(const Call& c) {
  const c10::SymInt batch = c.query().sym_size(0), queries = c.query().sym_size(2), keys = c.key().sym_size(2);
  TORCH_CHECK_VALUE(!c.scale || std::isfinite(*c.scale), c.op, ": expected a finite scale, but got ", *c.scale);
  TORCH_CHECK_VALUE(!c.window || *c.window >= 1, c.op, ": expected window to be at least 1, but got ", *c.window);
  TORCH_CHECK_VALUE(c.dropout_p >= 0.0 && c.dropout_p <= 1.0, c.op, ": expected dropout_p from 0 to 1, but got ",
                    c.dropout_p);
  if (c.key_mask) {
    const Tensor& mask = *c.key_mask;
    check_device(c, "key_mask", mask);
    TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, c.op,
                     ": expected key_mask to be bool, true where a key may be attended, but got ", mask.scalar_type());
    TORCH_CHECK_VALUE(mask.dim() == 2 && one_or(mask.sym_size(0), batch) && equal(mask.sym_size(1), keys), c.op,
                      ": expected key_mask of shape (", batch, ", ", keys, "), but got ", mask.sym_sizes());
  }
  if (c.segment_ids) {
    const Tensor& ids = *c.segment_ids;
    check_device(c, "segment_ids", ids);
    TORCH_CHECK_TYPE(at::isIntegralType(ids.scalar_type(), false), c.op,
                     ": expected segment_ids to be an integer type, but got ", ids.scalar_type());
    TORCH_CHECK_VALUE(ids.dim() == 2 && one_or(ids.sym_size(0), batch) && equal(ids.sym_size(1), keys), c.op,
                      ": expected segment_ids of shape (", batch, ", ", keys, "), but got ", ids.sym_sizes());
    TORCH_CHECK_VALUE(holds(queries.sym_le(keys)), c.op,
                      ": expected at most as many queries as keys beside segment_ids, which name the segments of keys, "
                      "the last of them the queries', but got ",
                      queries, " queries and ", keys, " keys");
  }
  check_positions(c, "q_positions", c.q_positions, queries);
  check_positions(c, "k_positions", c.k_positions, keys);
}

/// The dtype and device of a table or bias.
void check_table(const Call& c, Slot slot) {
  const Tensor& x = c[slot];
  check_device(c, name_of(c, slot), x);
  TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), c.op, ": expected ", name_of(c, slot),
                   " to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
}

/// A table (2R+1, width) or (heads, 2R+1, width) over clipped distances.
void check_relative(const Call& c, Slot slot, const c10::SymInt& width) {
  check_table(c, slot);
  const Tensor& x = c[slot];
  const c10::SymInt heads = c.query().sym_size(1);
  TORCH_CHECK_VALUE((x.dim() == 2 || (x.dim() == 3 && equal(x.sym_size(0), heads))) && equal(x.sym_size(-1), width) &&
                        holds((x.sym_size(-2) % 2).sym_eq(1)),
                    c.op, ": expected ", name_of(c, slot), " of shape (2R + 1, ", width, ") or (", heads, ", 2R + 1, ",
                    width, "), but got ", x.sym_sizes());
}

/// What tokens add counts by index, from a query back to a key.
void check_log_decay(const Call& c) {
  check_table(c, kLogDecay);
  const Tensor& x = c[kLogDecay];
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1), keys = c.key().sym_size(2);
  TORCH_CHECK_VALUE(
      x.dim() == 3 && one_or(x.sym_size(0), batch) && equal(x.sym_size(1), heads) && equal(x.sym_size(2), keys), c.op,
      ": expected log_decay of shape (", batch, ", ", heads, ", ", keys, "), but got ", x.sym_sizes());
  TORCH_CHECK_VALUE(c.is_causal, c.op,
                    ": expected is_causal=True beside log_decay, which adds up from a query back to ",
                    "a key, but got False");
  TORCH_CHECK_VALUE(!c.q_positions && !c.k_positions, c.op,
                    ": expected neither q_positions nor k_positions beside log_decay, which goes by index");
  TORCH_CHECK_VALUE(holds(c.query().sym_size(2).sym_le(keys)), c.op,
                    ": expected at most as many queries as keys beside log_decay, but got ", c.query().sym_size(2),
                    " queries and ", keys, " keys");
}

void check_biases(const Call& c) {
  const c10::SymInt batch = c.query().sym_size(0), heads = c.query().sym_size(1);
  if (c.has(kSlopes)) {
    check_table(c, kSlopes);
    const Tensor& x = c[kSlopes];
    TORCH_CHECK_VALUE((x.dim() == 1 || (x.dim() == 2 && equal(x.sym_size(0), batch))) && equal(x.sym_size(-1), heads),
                      c.op, ": expected alibi_slopes of shape (", heads, ") or (", batch, ", ", heads, "), but got ",
                      x.sym_sizes());
  }
  if (c.has(kDistanceBias)) {
    check_table(c, kDistanceBias);
    const Tensor& x = c[kDistanceBias];
    TORCH_CHECK_VALUE(x.dim() == 2 && equal(x.sym_size(0), heads) && holds((x.sym_size(1) % 2).sym_eq(1)), c.op,
                      ": expected distance_bias of shape (", heads, ", 2R + 1), but got ", x.sym_sizes());
  }
  if (c.has(kBias)) {
    check_table(c, kBias);
    const Tensor& x = c[kBias];
    const c10::SymInt full[] = {batch, heads, c.query().sym_size(2), c.key().sym_size(2)};
    bool fits = x.dim() <= 4;
    for (int64_t dim = 1; fits && dim <= x.dim(); ++dim) {
      fits = one_or(x.sym_size(-dim), full[4 - dim]);
    }
    TORCH_CHECK_VALUE(fits, c.op, ": expected bias to be broadcastable to (", full[0], ", ", full[1], ", ", full[2],
                      ", ", full[3], "), but got ", x.sym_sizes());
  }
  if (c.has(kLogDecay)) {
    check_log_decay(c);
  }
  if (c.has(kRelK)) {
    check_relative(c, kRelK, c.query().sym_size(3));
  }
  if (c.has(kRelV)) {
    check_relative(c, kRelV, c.value().sym_size(3));
    TORCH_CHECK_VALUE(equal(c[kRelV].sym_size(-2), c[kRelK].sym_size(-2)), c.op,
                      ": expected rel_k and rel_v to cover the same distances, but got ", c[kRelK].sym_sizes(), " and ",
                      c[kRelV].sym_sizes());
  }
  if (c.has(kPosEmb)) {
    check_table(c, kPosEmb);
    const Tensor& x = c[kPosEmb];
    const c10::SymInt width = c.query().sym_size(3);
    TORCH_CHECK_VALUE(
        x.dim() == 3 && one_or(x.sym_size(0), heads) && equal(x.sym_size(1), width) && holds(x.sym_size(2).sym_ge(1)),
        c.op, ": expected pos_emb of shape (1, ", width, ", positions) or (", heads, ", ", width,
        ", positions), but got ", x.sym_sizes());
  }
  if (c.has(kGateBias)) {
    check_table(c, kGateBias);
    const Tensor& x = c[kGateBias];
    TORCH_CHECK_VALUE(x.dim() == 1 && equal(x.sym_size(0), heads), c.op, ": expected gate_bias of shape (", heads,
                      "), but got ", x.sym_sizes());
  }
}

}  // namespace

void check(const Call& c) {
  check_operands(c);
  check_visibility(c);
  check_biases(c);
}

}  // namespace posenc::attention_ops
