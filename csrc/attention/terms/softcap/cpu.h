#pragma once

#include "attention/cpu/term.h"
#include "attention/terms/softcap/head.h"

namespace posenc::attention_ops {

template <typename T>
class SoftcapCpu : public CpuTerm<T> {
 public:
  SoftcapCpu(const Call& c, const Geometry& /*g*/) : head_{c.softcap ? bounded_cap(*c.softcap) : 0.0, c.caps_sum()} {}
  SoftcapHead<T> head(int64_t /*batch*/, int64_t /*head*/) const { return head_; }

 private:
  SoftcapHead<T> head_;
};

template <typename T>
using SoftcapCpuGradients = NoGradients<SoftcapCpu<T>, SoftcapGradient<T>>;

}  // namespace posenc::attention_ops
