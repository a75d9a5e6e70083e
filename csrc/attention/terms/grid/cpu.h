#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/grid/coordinates.h"
#include "attention/terms/grid/head.h"

namespace posenc::attention_ops {

template <typename T>
class GridCpu : public CpuTerm<T> {
 public:
  GridCpu(const Call& c, const Geometry& g) : c_(c) {
    if (!c.on_grid()) {
      return;
    }
    for (int64_t axis = 0; axis < 2; ++axis) {
      axes_[axis] = GridCoordinates(c, axis, g);
    }
    if (c.has(kGridRelY)) {
      tables_[0] = packed_table<T>(c[kGridRelY]);
      tables_[1] = packed_table<T>(c[kGridRelX]);
    }
    if (c.has(kGridBias)) {
      bias_ = c[kGridBias].to(at::kDouble).mul(kLog2E).flip(2).to(kScalarType<T>).contiguous();
    }
  }

  GridHead<T> head(int64_t batch, int64_t head) const {
    if (!c_.on_grid()) {
      return {};
    }
    GridHead<T> h{};
    h.y = axis(0, batch, head);
    h.x = axis(1, batch, head);
    h.scale = c_.grid_scale();
    h.is_score_scale = h.scale == c_.score_scale();
    h.bias = bias_.defined() ? bias_.const_data_ptr<T>() + head * bias_.stride(0) : nullptr;
    return h;
  }

  template <typename Pack, typename KeysOf>
  void enter_decode_rows(DecodeRows<T>& rows, const Pack& pack, const KeysOf& /*keys_of*/, bool /*stopped*/) const {
    if (c_.has(kGridRelY)) {
      std::get<GridRows<T>>(rows).query = pack(kGridRelY, c_.query(), c_.grid_scale());
    }
  }

  /// The entries of an axis' table that occur.
  GridReach reach(int64_t axis) const { return axes_[axis].reach(tables_[axis].size(1)); }

 private:
  GridAxis<T> axis(int64_t axis, int64_t batch, int64_t head) const {
    GridAxis<T> a{};
    axes_[axis].enter(a, batch);
    if (tables_[axis].defined()) {
      const GridReach entries = reach(axis);
      a.table = table_rows<T>(tables_[axis], head).from(entries.first);
      a.radius = (tables_[axis].size(1) - 1) / 2;
      a.first = entries.first;
      a.entries = entries.count;
    }
    a.bias_radius = bias_.defined() ? (bias_.size(1 + axis) - 1) / 2 : 0;
    return a;
  }

  const Call& c_;
  GridCoordinates axes_[2];
  Tensor tables_[2], bias_;
};

template <typename T>
class GridCpuGradients {
 public:
  GridCpuGradients(const Call& c, const GridCpu<T>& term, const GradientLayout& layout, const Wanted& wanted)
      : c_(c), wants_bias_(wanted[kGridBias]) {
    for (int64_t axis = 0; axis < 2; ++axis) {
      if (wanted[kTables[axis]]) {
        const GridReach entries = term.reach(axis);
        tables_[axis].emplace(c[kTables[axis]], entries.first, entries.count, layout.workers);
      }
    }
    if (wants_bias_) {
      bias_ = WorkerSums(layout, c[kGridBias].size(1) * c[kGridBias].size(2));
    }
  }

  GridGradient<T> at(const GradientPlace& place) const {
    const auto rows = [&](int64_t axis) { return tables_[axis] ? tables_[axis]->rows(place) : GradientRows<T>{}; };
    return {rows(0), rows(1), bias_.at(place)};
  }

  void results(Gradients& to) const {
    for (int64_t axis = 0; axis < 2; ++axis) {
      if (tables_[axis]) {
        to[kTables[axis]] = like_input(c_[kTables[axis]], tables_[axis]->result());
      }
    }
    if (wants_bias_) {
      to[kGridBias] = like_input(c_[kGridBias], bias_.total().view(c_[kGridBias].sizes()).flip(2));
    }
  }

 private:
  static constexpr Input kTables[] = {kGridRelY, kGridRelX};

  const Call& c_;
  std::optional<TableGradients<T>> tables_[2];
  bool wants_bias_;
  WorkerSums bias_;
};

}  // namespace posenc::attention_ops
