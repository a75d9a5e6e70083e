/// The schema of CoPE's position logits, and its C++ function: a call through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/cope/ops.h"

namespace posenc::cope_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  m.def(
      "_cope_position_logits(Tensor query, Tensor attn_logits, Tensor pos_emb, *, Tensor? gate_bias=None, "
      "bool scale_position_logits=False) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace

Tensor position_logits(const Tensor& query, const Tensor& attn_logits, const Tensor& pos_emb,
                       const std::optional<Tensor>& gate_bias, bool scale_position_logits) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, bool)>(
          "posenc::_cope_position_logits");
  return op.call(query, attn_logits, pos_emb, gate_bias, scale_position_logits);
}

}  // namespace posenc::cope_ops
