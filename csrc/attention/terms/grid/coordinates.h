#pragma once

/// Coordinates of a call along one of its two axes, as kernels read them.

#include "attention/cpu/term.h"
#include "attention/terms/grid/head.h"

namespace posenc::attention_ops {

/// Entries first .. first + count - 1 of a table.
struct GridReach {
  int64_t first, count;
};

class GridCoordinates {
 public:
  GridCoordinates() = default;
  GridCoordinates(const Call& c, int64_t axis, const Geometry& g);

  template <typename T>
  void enter(GridAxis<T>& a, int64_t batch) const {
    const auto row = [batch](const Tensor& x) { return x.size(0) == 1 ? 0 : batch * x.size(1); };
    a.query = q_.const_data_ptr<int64_t>() + row(q_);
    a.key = k_.const_data_ptr<int64_t>() + row(k_);
    a.value = values_.const_data_ptr<int64_t>() + row(values_);
    a.place = places_.const_data_ptr<int32_t>() + row(places_);
    a.room = values_.size(1);
  }

  /// What some query and key need of a table of so many entries over clipped distances.
  GridReach reach(int64_t entries) const;

 private:
  /// (1 or B, T) int64; of keys their distinct numbers (1 or B, room), rising, and int32 places among these.
  Tensor q_, k_, values_, places_;
  int64_t smallest_ = 0, largest_ = 0;
};

}  // namespace posenc::attention_ops
