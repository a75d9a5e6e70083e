#include "attention/terms/mask/term.h"

#include "attention/checks.h"

namespace posenc::attention_ops {

void Mask::check(const Call& c) {
  const Tensor& mask = *c.attn_mask;
  check_beside_query(c, "attn_mask", mask);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op_name(c),
                   ": expected attn_mask to be bool, true where a query may attend to a key, but got ",
                   mask.scalar_type(), ": pass numbers that are added to scores as bias");
  check_broadcastable_to_scores(c, "attn_mask", mask);
}

void Mask::hide(const reference::Operands& o, const reference::Rows& rows, Tensor& visible) {
  visible = visible.logical_and(reference::block_rows(*o.call.attn_mask, rows));
}

}  // namespace posenc::attention_ops
