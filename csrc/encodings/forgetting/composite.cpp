/// Decays of tokens in plain ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "common/checks.h"
#include "encodings/forgetting/ops.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace posenc::forgetting_ops {
namespace {

constexpr const char* kModule = "ForgettingBias";

void check_input(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  check_dense(kModule, "x", x);
  check_dense(kModule, "weight", weight);
  check_dense(kModule, "bias", bias);
  TORCH_CHECK_VALUE(weight.dim() == 2, kModule, ": expected weight of shape (num_heads, embed_dim), but got ",
                    weight.sym_sizes());
  const c10::SymInt heads = weight.sym_size(0), width = weight.sym_size(1);
  TORCH_CHECK_VALUE(!bias || (bias->dim() == 1 && holds(bias->sym_size(0).sym_eq(heads))), kModule,
                    ": expected bias of shape (", heads, "), but got ",
                    bias ? bias->sym_sizes() : c10::SymIntArrayRef());
  TORCH_CHECK_TYPE(is_supported_float(x.scalar_type()), kModule,
                   ": expected x to be float32, float64, bfloat16 or float16, but got ", x.scalar_type());
  TORCH_CHECK_VALUE(x.dim() == 3 && holds(x.sym_size(2).sym_eq(width)), kModule,
                    ": expected x of shape (batch, length, embed_dim) with embed_dim ", width, ", but got ",
                    x.sym_sizes());
  check_same_device(kModule, "x", x, weight.device());
}

/// arXiv 2503.02130, section 3 (log sigmoid), and arXiv 2503.08067 (-softplus).
Tensor log_decay_composite(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool complement) {
  check_input(x, weight, bias);
  // Rounded to 16 bits, sums over thousands of tokens would drift.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor z = at::linear(x.to(type), weight.to(type), bias ? OptionalTensor(bias->to(type)) : std::nullopt);
  // Not softplus, which is linear beyond 20 and so exact in float32 alone.
  return at::log_sigmoid(complement ? z.neg() : z).transpose(1, 2);
}

/// A mask that attention refuses is left to it.
bool fits(const OptionalTensor& key_mask, const Tensor& query, const Tensor& key) {
  return key_mask && key_mask->scalar_type() == at::kBool && key_mask->device() == query.device() &&
         key_mask->dim() == 2 && one_or(key_mask->sym_size(0), query.sym_size(0)) &&
         holds(key_mask->sym_size(1).sym_eq(key.sym_size(2)));
}

Tensor decay_terms_composite(const OptionalTensor& log_decay, const Tensor& query, const Tensor& key, int64_t num_heads,
                             const OptionalTensor& key_mask) {
  check_dense(kModule, "query", query);
  check_dense(kModule, "key", key);
  check_dense(kModule, "log_decay", log_decay);
  TORCH_CHECK_VALUE(query.dim() == 4 && holds(query.sym_size(1).sym_eq(num_heads)), kModule,
                    ": expected query of shape (batch, heads, length, head_dim) with num_heads ", num_heads,
                    ", but got ", query.sym_sizes());
  TORCH_CHECK_VALUE(key.dim() == 4, kModule, ": expected key of shape (batch, heads, length, head_dim), but got ",
                    key.sym_sizes());
  const c10::SymInt batch = query.sym_size(0), keys = key.sym_size(2);
  TORCH_CHECK_VALUE(log_decay && log_decay->defined(), kModule, ": expected log_decay of shape (", batch, ", ",
                    num_heads, ", ", keys, "), what forward() makes of the layer's input, but got None");
  const Tensor& decay = *log_decay;
  TORCH_CHECK_VALUE(decay.dim() == 3 && one_or(decay.sym_size(0), batch) &&
                        holds(decay.sym_size(1).sym_eq(num_heads)) && holds(decay.sym_size(2).sym_eq(keys)),
                    kModule, ": expected log_decay of shape (", batch, ", ", num_heads, ", ", keys, "), but got ",
                    decay.sym_sizes());
  check_same_device(kModule, "log_decay", decay, query.device());
  return fits(key_mask, query, key) ? decay.masked_fill(key_mask->logical_not().unsqueeze(1), 0) : decay;
}

POSENC_COMPOSITES(m) {
  m.impl("_log_decay", &log_decay_composite);
  m.impl("_decay_terms", &decay_terms_composite);
}

}  // namespace
}  // namespace posenc::forgetting_ops
