#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/distance/head.h"

namespace posenc::attention_ops {

template <typename T>
class DistanceCpu : public CpuTerm<T> {
 public:
  DistanceCpu(const Call& c, const Geometry& /*g*/) {
    if (c.has(kSlopes)) {
      slopes_ = c[kSlopes].to(at::kDouble).expand({c.query().size(0), c.query().size(1)}).contiguous();
    }
    if (c.has(kDistanceBias)) {
      table_ = c[kDistanceBias].to(kScalarType<T>).contiguous();
    }
  }

  DistanceHead<T> head(int64_t batch, int64_t head) const {
    DistanceHead<T> h{};
    if (slopes_.defined()) {
      h.has_slope = true;
      h.slope = slopes_.const_data_ptr<double>()[batch * slopes_.size(1) + head];
    }
    if (table_.defined()) {
      h.radius = (table_.size(1) - 1) / 2;
      h.table = table_.const_data_ptr<T>() + head * table_.size(1);
    }
    return h;
  }

 private:
  Tensor slopes_, table_;
};

template <typename T>
class DistanceCpuGradients {
 public:
  DistanceCpuGradients(const Call& c, const DistanceCpu<T>& /*term*/, const GradientLayout& layout,
                       const Wanted& wanted)
      : c_(c) {
    if (wanted[kSlopes]) {
      slopes_ = HeadSums(layout, 1);
    }
    if (wanted[kDistanceBias]) {
      table_ = WorkerSums(layout, c[kDistanceBias].size(1));
    }
    wanted_ = wanted;
  }

  DistanceGradient<T> at(const GradientPlace& place) const { return {table_.at(place), slopes_.at(place)}; }

  void results(Gradients& to) const {
    if (wanted_[kSlopes]) {
      const Tensor sums = slopes_.sums().squeeze(3);
      to[kSlopes] = like_input(c_[kSlopes], c_[kSlopes].dim() == 1 ? sums.sum({0, 1}) : sums.sum(1));
    }
    if (wanted_[kDistanceBias]) {
      to[kDistanceBias] = like_input(c_[kDistanceBias], table_.total());
    }
  }

 private:
  const Call& c_;
  Wanted wanted_;
  HeadSums slopes_;
  WorkerSums table_;
};

}  // namespace posenc::attention_ops
