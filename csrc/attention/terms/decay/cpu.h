#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/decay/head.h"
#include "attention/terms/decay/sums.h"

namespace posenc::attention_ops {

template <typename T>
class DecayCpu : public CpuTerm<T> {
 public:
  DecayCpu(const Call& c, const Geometry& /*g*/) {
    if (c.has(kLogDecay)) {
      decays_ = sum_decays_on_cpu(c);
    }
  }

  DecayHead<T> head(int64_t batch, int64_t head) const {
    if (!decays_.sums.defined()) {
      return {};
    }
    const Tensor& sums = decays_.sums;
    const int64_t first = ((sums.size(0) == 1 ? 0 : batch) * sums.size(1) + head) * sums.size(2);
    return {sums.const_data_ptr<double>() + first,
            decays_.undefined.defined() ? decays_.undefined.const_data_ptr<int64_t>() + first : nullptr};
  }

 private:
  DecaySums decays_;
};

template <typename T>
class DecayCpuGradients {
 public:
  DecayCpuGradients(const Call& c, const DecayCpu<T>& /*term*/, const GradientLayout& layout, const Wanted& wanted)
      : c_(c), sums_(wanted[kLogDecay] ? HeadSums(layout, layout.keys) : HeadSums()) {}

  DecayGradient<T> at(const GradientPlace& place) const { return {sums_.at(place)}; }

  void results(Gradients& to) const {
    if (sums_.sums().defined()) {
      to[kLogDecay] = like_input(c_[kLogDecay], gradient_of_decays_on_cpu(c_, sums_.sums().sum(1)));
    }
  }

 private:
  const Call& c_;
  HeadSums sums_;
};

}  // namespace posenc::attention_ops
