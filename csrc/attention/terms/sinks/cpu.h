#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/sinks/head.h"

namespace posenc::attention_ops {

template <typename T>
class SinksCpu : public CpuTerm<T> {
 public:
  SinksCpu(const Call& c, const Geometry& g) : heads_(c.query().size(1)), queries_(g.queries) {
    if (c.has(kSinks)) {
      logits_ = c[kSinks].to(at::kDouble).contiguous();
    }
  }

  SinksHead<T> head(int64_t batch, int64_t head) const {
    if (!logits_.defined()) {
      return {};
    }
    const double* logits = logits_.const_data_ptr<double>();
    return logits_.dim() == 1 ? SinksHead<T>{logits + head, 0}
                              : SinksHead<T>{logits + (batch * heads_ + head) * queries_, 1};
  }

  double sink(int64_t batch, int64_t head, int64_t query) const {
    return logits_.defined() ? this->head(batch, head).at(query) : kNoSink;
  }

 private:
  int64_t heads_, queries_;
  Tensor logits_;
};

template <typename T>
class SinksCpuGradients {
 public:
  SinksCpuGradients(const Call& c, const SinksCpu<T>& /*term*/, const GradientLayout& layout, const Wanted& wanted)
      : c_(c) {
    if (wanted[kSinks]) {
      by_query_ = c[kSinks].dim() == 3;
      sums_ = HeadSums(layout, by_query_ ? layout.queries : 1);
    }
  }

  SinksGradient<T> at(const GradientPlace& place) const { return {sums_.at(place), by_query_ ? 1 : 0}; }

  void results(Gradients& to) const {
    if (sums_.sums().defined()) {
      const Tensor by_row = sums_.sums().sum(1);
      to[kSinks] = like_input(c_[kSinks], by_query_ ? by_row : by_row.sum(0).squeeze(-1));
    }
  }

 private:
  const Call& c_;
  bool by_query_ = false;
  HeadSums sums_;
};

}  // namespace posenc::attention_ops
