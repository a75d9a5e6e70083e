#pragma once

/// What the attention tests compute: calls with score terms of every kind, and which keys queries see.

#include "module_values.h"

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace {

using at::Tensor;
using reference::Call;
using reference::Inputs;

inline Tensor numbers(at::IntArrayRef sizes, double factor = 1.0) { return at::randn(sizes, kWide).mul(factor); }

struct Sizes {
  int64_t batch, heads, groups, queries, keys, width, value_width;
};

/// Which keys queries see.
struct Sight {
  bool is_causal = true;
  std::optional<int64_t> window = std::nullopt;
  bool key_mask = false, segments = false, positions = false;
  std::optional<int64_t> window_left = std::nullopt, window_right = std::nullopt;
  bool blocks = false, q_segments = false, start = false;
};

struct Setting : Sizes, Sight {
  std::string name;
};

std::ostream& operator<<(std::ostream& stream, const Setting& s) { return stream << s.name; }

/// What acts on scores.
struct Term {
  std::string name;
  std::function<void(const Setting&, Call&)> add;
  /// Counts by index: causal, and without positions.
  bool by_index = false;
};

std::ostream& operator<<(std::ostream& stream, const Term& t) { return stream << t.name; }

// The terms. Tables are wider than the distances of a tile and narrower.

/// That of the first head is 0, as of a head that distance does not concern.
void add_slopes(const Setting& s, Call& c) {
  c.inputs.slopes = at::rand({s.heads}, kWide).mul(0.1) * at::arange(s.heads).sign();
}

void add_slopes_of_rows(const Setting& s, Call& c) { c.inputs.slopes = at::rand({s.batch, s.heads}, kWide).mul(0.1); }

void add_table(const Setting& s, Call& c) { c.inputs.distance_bias = numbers({s.heads, 2 * 120 + 1}); }

void add_bias(const Setting& s, Call& c) { c.inputs.bias = numbers({s.batch, s.heads, s.queries, s.keys}); }

/// Shared by rows and heads, with keys that it hides.
void add_hiding_bias(const Setting& s, Call& c) {
  const Tensor bias = numbers({1, 1, s.queries, s.keys});
  c.inputs.bias = bias.masked_fill(at::rand({1, 1, s.queries, s.keys}) < 0.2, -reference::kInfinity);
}

void add_decay(const Setting& s, Call& c) {
  c.inputs.log_decay = at::rand({s.batch, s.heads, s.keys}, kWide).mul(-0.1);
}

void add_sinks(const Setting& s, Call& c) { c.inputs.sinks = numbers({s.heads}); }

/// Of a batch row, or of all: some tiles hide all of their keys, some none.
void add_mask(const Setting& s, Call& c, bool per_head) {
  const Tensor seen = at::rand({per_head ? s.batch : 1, per_head ? s.heads : 1, s.queries, s.keys}) > 0.3;
  const Tensor places = at::arange(s.keys);
  c.attn_mask = seen.logical_or(places < 30).logical_and((places < 100).logical_or(places >= 196));
}

void add_softcap(Call& c, double cap, bool on_sum) {
  c.softcap = cap;
  c.caps_sum = on_sum;
}

/// Tables that reach further to one side, of the keys and of the values.
void add_uneven_tables(const Setting& s, Call& c, int64_t left, int64_t right, bool zero_beyond) {
  c.inputs.rel_k = numbers({s.heads, left + right + 1, s.width});
  c.inputs.rel_v = numbers({left + right + 1, s.value_width});
  c.max_distance = {left, right};
  c.zero_beyond = zero_beyond;
}

void add_tables_of_keys(const Setting& s, Call& c, int64_t radius, bool per_head, bool values) {
  const auto table = [&](int64_t width) {
    return per_head ? numbers({s.heads, 2 * radius + 1, width}) : numbers({2 * radius + 1, width});
  };
  c.inputs.rel_k = table(s.width);
  c.inputs.rel_v = values ? table(s.value_width) : Tensor();
}

void add_table_of_queries(const Setting& s, Call& c, int64_t radius, bool per_head) {
  c.inputs.rel_q = per_head ? numbers({s.heads, 2 * radius + 1, s.width}) : numbers({2 * radius + 1, s.width});
}

void add_far(const Setting& s, Call& c, int64_t threshold) {
  c.inputs.q_far = numbers({s.batch, s.heads, s.queries, s.width});
  c.inputs.k_far = numbers({s.batch, s.groups, s.keys, s.width});
  c.threshold = threshold;
}

void add_cope(const Setting& s, Call& c, int64_t positions, bool per_head) {
  c.inputs.pos_emb = numbers({per_head ? s.heads : 1, s.width, positions}, 0.5);
}

/// A picture `row` tokens wide, in the order of its rows; `apart`: tokens far from each other, that share places, and
/// with queries elsewhere, in each batch row. Nothing else goes by position.
void place_on_grid(const Setting& s, Call& c, int64_t row, bool apart) {
  const Tensor token = at::arange(s.keys);
  c.k_grid = at::stack({token.div(row, "floor"), token.remainder(row)}).unsqueeze(1);
  if (apart) {
    const Tensor jumps = token.div(11, "floor").remainder(3).mul(int64_t{1} << 40);
    c.k_grid = at::stack({c.k_grid.select(1, 0) + jumps, c.k_grid.select(1, 0).flip(1) * 3}, 1).narrow(1, 0, s.batch);
    c.q_grid = c.k_grid.index_select(2, at::arange(s.queries).mul(5).remainder(s.keys)).add(1);
  } else if (s.queries > s.keys) {
    c.q_grid = at::stack({at::arange(s.queries), at::arange(s.queries).neg()}).unsqueeze(1);
  }
  c.q_positions = c.k_positions = Tensor();
}

void add_grid_bias(const Setting& s, Call& c, int64_t row, int64_t y, int64_t x, bool apart = false) {
  place_on_grid(s, c, row, apart);
  c.inputs.grid_bias = numbers({s.heads, 2 * y + 1, 2 * x + 1});
}

void add_axes(const Setting& s, Call& c, int64_t row, int64_t y, int64_t x, bool apart = false) {
  place_on_grid(s, c, row, apart);
  c.inputs.grid_rel_y = numbers({2 * y + 1, s.width});
  c.inputs.grid_rel_x = numbers({s.heads, 2 * x + 1, s.width});
}

const std::vector<Term>& terms() {
  static const std::vector<Term> all = {
      {"Plain", [](const Setting&, Call&) {}},
      {"Scaled", [](const Setting&, Call& c) { c.scale = 0.4; }},
      {"Slopes", add_slopes},
      {"SlopesOfRows", add_slopes_of_rows},
      {"Table", add_table},
      {"Bias", add_bias},
      {"HidingBias", add_hiding_bias},
      {"Decay", add_decay, true},
      {"SlopesTableAndBias",
       [](const Setting& s, Call& c) {
         add_slopes(s, c);
         add_table(s, c);
         add_bias(s, c);
       }},
      {"SlopesAndDecay",
       [](const Setting& s, Call& c) {
         add_slopes(s, c);
         add_decay(s, c);
       },
       true},
      {"Sinks", add_sinks},
      {"SinksOfQueries",
       [](const Setting& s, Call& c) { c.inputs.sinks = numbers({s.batch, s.heads, s.queries}, 3.0); }},
      {"Softcap", [](const Setting&, Call& c) { add_softcap(c, 0.8, false); }},
      {"SoftcapThatHardlyCaps", [](const Setting&, Call& c) { add_softcap(c, 30.0, false); }},
      {"SoftcapOnSum",
       [](const Setting& s, Call& c) {
         add_bias(s, c);
         add_softcap(c, 1.5, true);
       }},
      {"SoftcapOnSumOfHidingBias",
       [](const Setting& s, Call& c) {
         add_hiding_bias(s, c);
         add_softcap(c, 0.7, true);
         add_sinks(s, c);
       }},
      {"Mask", [](const Setting& s, Call& c) { add_mask(s, c, false); }},
      {"MaskOfHeadsAndSinks",
       [](const Setting& s, Call& c) {
         add_mask(s, c, true);
         add_sinks(s, c);
       }},
      {"MaskOfKeys", [](const Setting& s, Call& c) { c.attn_mask = at::rand({s.keys}) > 0.3; }},
      {"MaskOfQueries", [](const Setting& s, Call& c) { c.attn_mask = at::rand({s.heads, s.queries, 1}) > 0.3; }},
      {"MaskOfStrides",
       [](const Setting& s, Call& c) {
         c.attn_mask = (at::rand({s.keys, s.batch, 1, s.queries}) > 0.3).permute({1, 2, 3, 0});
       }},
      {"Shaw", [](const Setting& s, Call& c) { add_tables_of_keys(s, c, 16, false, true); }},
      {"ShawOfNarrowQueries",
       [](const Setting& s, Call& c) {
         c.inputs.rel_query = numbers({s.batch, s.heads, s.queries, 5});
         c.inputs.rel_k = numbers({s.heads, 2 * 130 + 1, 5});
       }},
      {"ShawOfWideQueriesAndValues",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 16, false, true);
         c.inputs.rel_query = numbers({s.batch, s.heads, s.queries, 19});
         c.inputs.rel_k = numbers({33, 19});
         add_slopes(s, c);
       }},
      {"ShawMaskedCappedAndSinks",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 16, true, true);
         add_mask(s, c, false);
         add_softcap(c, 2.0, true);
         add_sinks(s, c);
       }},
      {"ShawUneven", [](const Setting& s, Call& c) { add_uneven_tables(s, c, 40, 7, false); }},
      {"ShawUnevenOfNarrowQueries",
       [](const Setting& s, Call& c) {
         add_uneven_tables(s, c, 2, 30, true);
         c.inputs.rel_query = numbers({s.batch, s.heads, s.queries, 3});
         c.inputs.rel_k = numbers({33, 3});
         add_softcap(c, 2.0, false);
       }},
      {"ShawZeroBeyond",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 16, false, true);
         c.zero_beyond = true;
       }},
      {"ShawKeysOnly", [](const Setting& s, Call& c) { add_tables_of_keys(s, c, 3, true, false); }},
      {"ShawFar", [](const Setting& s, Call& c) { add_tables_of_keys(s, c, 150, true, true); }},
      {"DeBERTaOfKeys", [](const Setting& s, Call& c) { add_table_of_queries(s, c, 16, false); }},
      {"DeBERTaOfKeysFar", [](const Setting& s, Call& c) { add_table_of_queries(s, c, 150, true); }},
      {"DeBERTa",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 40, true, false);
         add_table_of_queries(s, c, 40, true);
         add_mask(s, c, false);
         c.scale = 0.2;
       }},
      {"DeBERTaBiasCappedAndSinks",
       [](const Setting& s, Call& c) {
         add_table_of_queries(s, c, 3, true);
         add_bias(s, c);
         add_softcap(c, 2.0, true);
         add_sinks(s, c);
       }},
      {"DeBERTaAndPiecewise",
       [](const Setting& s, Call& c) {
         add_table_of_queries(s, c, 5, false);
         add_far(s, c, 40);
       }},
      {"DeBERTaAndCoPE",
       [](const Setting& s, Call& c) {
         add_table_of_queries(s, c, 12, false);
         add_cope(s, c, 30, false);
       },
       true},
      {"Grid", [](const Setting& s, Call& c) { add_grid_bias(s, c, 16, 20, 15); }},
      {"GridThatEnds", [](const Setting& s, Call& c) { add_grid_bias(s, c, 32, 2, 9); }},
      {"GridOfUnevenRows", [](const Setting& s, Call& c) { add_grid_bias(s, c, 7, 40, 6); }},
      {"GridApartMaskedAndSlopes",
       [](const Setting& s, Call& c) {
         add_grid_bias(s, c, 13, 5, 30, true);
         add_mask(s, c, false);
         add_slopes(s, c);
       }},
      {"Axes",
       [](const Setting& s, Call& c) {
         add_axes(s, c, 16, 20, 15);
         c.grid_rel_scale = 1.0;
       }},
      {"AxesWiderThanATile", [](const Setting& s, Call& c) { add_axes(s, c, 150, 3, 149); }},
      {"AxesApartCappedAndSinks",
       [](const Setting& s, Call& c) {
         add_axes(s, c, 10, 9, 20, true);
         add_softcap(c, 2.0, true);
         add_sinks(s, c);
       }},
      {"AxesGridAndShaw",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 12, false, true);
         add_axes(s, c, 24, 8, 5);
         c.inputs.grid_bias = numbers({s.heads, 9, 47});
       }},
      {"AxesAndCoPE",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 30, false);
         add_axes(s, c, 16, 20, 15);
       },
       true},
      {"Piecewise", [](const Setting& s, Call& c) { add_far(s, c, 40); }},
      {"PiecewiseBeyondATile", [](const Setting& s, Call& c) { add_far(s, c, 110); }},
      {"PiecewiseCapped",
       [](const Setting& s, Call& c) {
         add_far(s, c, 40);
         add_slopes(s, c);
         add_softcap(c, 0.8, false);
       }},
      {"CoPE", [](const Setting& s, Call& c) { add_cope(s, c, 24, false); }, true},
      {"CoPECapped",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 24, false);
         add_softcap(c, 0.8, false);
         add_sinks(s, c);
       },
       true},
      {"CoPECappedOnSum",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 24, true);
         add_softcap(c, 1.5, true);
         add_sinks(s, c);
       },
       true},
      {"CoPEMaskedOfGateKeysCapped",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 40, true);
         c.inputs.gate_key = numbers({s.batch, s.groups, s.keys, s.width});
         add_mask(s, c, true);
         add_softcap(c, 0.8, false);
       },
       true},
      {"CoPEThatNeverSaturates",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 170, true);
         c.scale_position_logits = true;
       },
       true},
      {"CoPEOfTwoPositions", [](const Setting& s, Call& c) { add_cope(s, c, 2, false); }, true},
      {"CoPEOfGateKeys",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 40, true);
         c.inputs.gate_key = numbers({s.batch, s.groups, s.keys, s.width});
         c.inputs.gate_bias = numbers({s.heads});
       },
       true},
      {"ShawSlopesAndDecay",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 20, true, true);
         add_slopes(s, c);
         add_decay(s, c);
       },
       true},
      {"PiecewiseSlopesAndBias",
       [](const Setting& s, Call& c) {
         add_far(s, c, 50);
         add_slopes(s, c);
         add_bias(s, c);
       }},
      // Gates follow from query . key alone.
      {"CoPESlopesTableAndDecay",
       [](const Setting& s, Call& c) {
         add_cope(s, c, 30, true);
         add_slopes(s, c);
         add_table(s, c);
         add_decay(s, c);
       },
       true},
      {"ShawAndCoPE",
       [](const Setting& s, Call& c) {
         add_tables_of_keys(s, c, 12, false, true);
         add_cope(s, c, 30, false);
       },
       true},
  };
  return all;
}

Call make_call(const Setting& s, const Term& term) {
  at::manual_seed(5);
  Call c;
  c.inputs.q = numbers({s.batch, s.heads, s.queries, s.width});
  c.inputs.k = numbers({s.batch, s.groups, s.keys, s.width});
  c.inputs.v = numbers({s.batch, s.groups, s.keys, s.value_width});
  c.is_causal = s.is_causal;
  c.window = s.window;
  c.window_left = s.window_left;
  c.window_right = s.window_right;
  if (s.blocks) {  // within tiles and across them; a token between two in none
    const Tensor places = at::arange(s.keys), blocks = places.div(73, "floor");
    c.block_ids = blocks.masked_fill(places.remainder(73) >= 60, -1).expand({s.batch, s.keys}).clone();
    c.block_ids.select(0, s.batch - 1).masked_fill_(places < 40, 9);
  }
  if (s.start) {  // a buffer of keys that is not full
    c.q_start = at::arange(s.batch).mul(-20).add(s.keys - s.queries - 13);
  }
  if (s.key_mask) {  // left padding, and holes
    c.key_mask = (at::rand({s.batch, s.keys}) > 0.3).logical_and(at::arange(s.keys) >= 20);
  }
  if (s.segments) {  // each row cut at places of its own, within tiles
    const Tensor cuts = at::tensor({50, 121, 40, 100}, at::kLong).view({2, 2}).narrow(0, 0, s.batch);
    c.segment_ids = at::arange(s.keys).view({1, 1, -1}).ge(cuts.unsqueeze(-1)).sum(1);
    c.segment_ids.select(0, s.batch - 1).add_(at::arange(s.keys).div(7, "floor").remainder(2).mul(5));  // interleaved
  }
  if (s.q_segments) {  // the queries of a row begin with those of its last segment
    const Tensor last = at::arange(s.queries).remainder(s.keys).neg().add(s.keys - 1);
    c.q_segment_ids = c.segment_ids.index_select(1, last);
  }
  if (s.positions) {  // gaps, a different start for each row, and a few tokens that change places
    const Tensor start = at::arange(s.batch).mul(1000).unsqueeze(1);
    Tensor k = at::arange(s.keys).add(at::arange(s.keys).div(50, "floor").mul(7)).unsqueeze(0) + start;
    k = at::cat({k.narrow(1, 40, 10), k.narrow(1, 0, 40), k.narrow(1, 50, s.keys - 50)}, 1);
    c.q_positions = k.narrow(1, s.keys - s.queries, s.queries).clone();
    c.k_positions = k;
  }
  term.add(s, c);
  return c;
}

}  // namespace
