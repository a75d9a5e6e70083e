/// The scores of attention, materialised: a composite of ATen ops, for inspection.

#include "attention/checks.h"
#include "attention/reference.h"
#include "attention/registration.h"
#include "common/composite.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace posenc::attention_ops {
namespace {

/// A call without a value, as the checks and the scores allow. Dropout is left out.
Tensor logits(const Call& c) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check(c);
  TORCH_CHECK_VALUE(!c.has(kSinks), op_name(c), ": expected no sinks in logits, which have no softmax");
  return reference::logits(c);
}

POSENC_COMPOSITES(m) { m.impl("_attention_logits", &LogitsSignature::entry<logits>); }

}  // namespace
}  // namespace posenc::attention_ops
