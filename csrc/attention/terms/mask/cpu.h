#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/mask/head.h"

namespace posenc::attention_ops {

template <typename T>
class MaskCpu : public CpuTerm<T> {
 public:
  MaskCpu(const Call& c, const Geometry& g) {
    if (c.attn_mask) {
      mask_ = c.attn_mask->expand({c.query().size(0), c.query().size(1), g.queries, g.keys});
    }
  }

  MaskHead<T> head(int64_t batch, int64_t head) const {
    if (!mask_.defined()) {
      return {};
    }
    return {mask_.const_data_ptr<bool>() + batch * mask_.stride(0) + head * mask_.stride(1), mask_.stride(2),
            mask_.stride(3)};
  }

 private:
  Tensor mask_;
};

template <typename T>
using MaskCpuGradients = NoGradients<MaskCpu<T>, MaskGradient<T>>;

}  // namespace posenc::attention_ops
