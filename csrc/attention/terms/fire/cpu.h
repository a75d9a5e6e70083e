#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/fire/head.h"

#include <cmath>

namespace posenc::attention_ops {

template <typename T>
class FireCpu : public CpuTerm<T> {
 public:
  FireCpu(const Call& c, const Geometry& g) {
    if (!c.has(kFireRate)) {
      return;
    }
    const auto type = kScalarType<T>;
    rate_ = c[kFireRate].item<double>();
    inverse_norm_ = c[kFireNorm].to(at::kDouble).reciprocal().to(type).squeeze(2).contiguous();
    knots_ = c.fire_knots->to(type).contiguous();
    const auto in_base_2 = [&](Input input) { return c[input].to(at::kDouble).mul(kLog2E).to(type).contiguous(); };
    offset_ = in_base_2(kFireOffset);
    slope_ = in_base_2(kFireSlope);
    // Positions that are given one by one, or far from each other, would need too long a table.
    if (g.by_index && g.longest() <= 4 * (g.queries + g.keys)) {
      warp_ = at::arange(g.longest() + 1, at::kDouble).mul_(rate_).abs_().log1p_().to(type);
    }
  }

  FireHead<T> head(int64_t batch, int64_t head) const {
    if (!slope_.defined()) {
      return {};
    }
    FireHead<T> h{};
    h.segments = slope_.size(1);
    h.offset = offset_.const_data_ptr<T>() + head * h.segments;
    h.slope = slope_.const_data_ptr<T>() + head * h.segments;
    h.knots = knots_.const_data_ptr<T>();
    h.warp = warp_.defined() ? warp_.const_data_ptr<T>() : nullptr;
    h.longest = warp_.defined() ? warp_.size(0) - 1 : 0;
    h.rate = rate_;
    h.inverse_norm =
        inverse_norm_.const_data_ptr<T>() + (inverse_norm_.size(0) == 1 ? 0 : batch) * inverse_norm_.size(1);
    return h;
  }

 private:
  double rate_ = 0.0;
  Tensor inverse_norm_, knots_, offset_, slope_, warp_;
};

template <typename T>
class FireCpuGradients {
 public:
  FireCpuGradients(const Call& c, const FireCpu<T>& /*term*/, const GradientLayout& layout, const Wanted& wanted)
      : c_(c), wanted_(wanted) {
    if (wanted[kFireOffset]) {
      offset_ = WorkerSums(layout, c[kFireOffset].size(1));
    }
    if (wanted[kFireSlope]) {
      slope_ = WorkerSums(layout, c[kFireSlope].size(1));
    }
    if (wanted[kFireNorm]) {
      norm_ = HeadSums(layout, layout.queries);
    }
    if (wanted[kFireRate]) {
      rate_ = HeadSums(layout, 1);
    }
  }

  FireGradient<T> at(const GradientPlace& place) const {
    return {offset_.at(place), slope_.at(place), norm_.at(place), rate_.at(place)};
  }

  void results(Gradients& to) const {
    if (wanted_[kFireOffset]) {
      to[kFireOffset] = like_input(c_[kFireOffset], offset_.total());
    }
    if (wanted_[kFireSlope]) {
      to[kFireSlope] = like_input(c_[kFireSlope], slope_.total());
    }
    if (wanted_[kFireNorm]) {
      const Tensor by_query = norm_.sums().sum({1, 2}).unsqueeze(2);  // (B, Tq, 1)
      const Tensor gradient = by_query.div(c_[kFireNorm].to(at::kDouble)).neg();
      to[kFireNorm] = like_input(c_[kFireNorm], gradient.sum_to_size(c_[kFireNorm].sizes()));
    }
    if (wanted_[kFireRate]) {
      to[kFireRate] = like_input(c_[kFireRate], rate_.sums().sum().reshape({1}));
    }
  }

 private:
  const Call& c_;
  Wanted wanted_;
  WorkerSums offset_, slope_;
  HeadSums norm_, rate_;
};

}  // namespace posenc::attention_ops
