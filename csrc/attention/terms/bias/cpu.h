#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/bias/head.h"

namespace posenc::attention_ops {

template <typename T>
class BiasCpu : public CpuTerm<T> {
 public:
  BiasCpu(const Call& c, const Geometry& g) {
    if (c.has(kBias)) {
      bias_ = c[kBias].expand({c.query().size(0), c.query().size(1), g.queries, g.keys});
    }
  }

  BiasHead<T> head(int64_t batch, int64_t head) const {
    return bias_.defined() ? BiasHead<T>{rows_of(bias_, batch, head)} : BiasHead<T>{};
  }

 private:
  Tensor bias_;
};

template <typename T>
class BiasCpuGradients {
 public:
  BiasCpuGradients(const Call& c, const BiasCpu<T>& /*term*/, const GradientLayout& layout, const Wanted& wanted)
      : c_(c) {
    if (wanted[kBias]) {
      sums_ = at::zeros(c[kBias].sizes(), at::TensorOptions().dtype(kScalarType<T>));
      expanded_ = sums_.expand({layout.batch, layout.heads, layout.queries, layout.keys});
    }
  }

  BiasGradient<T> at(const GradientPlace& place) const {
    return expanded_.defined() ? BiasGradient<T>{mutable_rows_of(expanded_, place.batch, place.head)}
                               : BiasGradient<T>{};
  }

  void results(Gradients& to) const {
    if (sums_.defined()) {
      to[kBias] = like_input(c_[kBias], sums_);
    }
  }

 private:
  const Call& c_;
  Tensor sums_, expanded_;
};

}  // namespace posenc::attention_ops
