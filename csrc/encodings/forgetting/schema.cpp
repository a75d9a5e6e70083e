/// The schemas of ForgettingBias' ops, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/forgetting/ops.h"

namespace posenc::forgetting_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("_log_decay(Tensor x, Tensor weight, Tensor? bias=None, *, bool complement=False) -> Tensor", tags);
  m.def("_decay_terms(Tensor? log_decay, Tensor query, Tensor key, int num_heads, Tensor? key_mask=None) -> Tensor",
        tags);
}

}  // namespace

Tensor log_decay(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool complement) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, bool)>("posenc::_log_decay");
  return op.call(x, weight, bias, complement);
}

Tensor decay_terms(const OptionalTensor& log_decay, const Tensor& query, const Tensor& key, int64_t num_heads,
                   const OptionalTensor& key_mask) {
  static const auto op =
      find_op<Tensor(const OptionalTensor&, const Tensor&, const Tensor&, int64_t, const OptionalTensor&)>(
          "posenc::_decay_terms");
  return op.call(log_decay, query, key, num_heads, key_mask);
}

}  // namespace posenc::forgetting_ops
