#include "nn/rotary_call.h"

#include "common/checks.h"

#include <ATen/ops/full.h>

namespace posenc::nn {
namespace {

int64_t length_of(const char* module, const at::Tensor& x, const RotaryForwardOptions& call) {
  if (call.positions()) {
    if (call.positions()->numel() == 0) {
      return 1;
    }
    const int64_t last = call.positions()->max().item<int64_t>();
    TORCH_CHECK_VALUE(last < std::numeric_limits<int64_t>::max(), module,
                      ": expected positions below 2^63 - 1 with a scaling that depends on the length, but got ", last);
    return std::max<int64_t>(1, last + 1);
  }
  const bool rows = call.offsets() && call.offsets()->numel() > 0;
  const int64_t offset = rows ? call.offsets()->max().item<int64_t>() : call.offset();
  check_last_position(module, offset, x.size(2));
  return std::max<int64_t>(1, offset + x.size(2));
}

}  // namespace

at::Tensor RotaryEncoding::shift(const at::Tensor& /*key*/, int64_t /*by*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, name_of(*this),
                              ": keys that it has rotated cannot be shifted: it has no shift(key, by) of its own");
}

std::string name_of(const RotaryEncoding& encoding) {
  const auto* module = dynamic_cast<const torch::nn::Module*>(&encoding);
  return module == nullptr ? "RotaryEncoding" : module->name();
}

at::Tensor frequencies_for_call(const char* module, const at::Tensor& initial, const scaling::Scaling& scaling,
                                int64_t width, double base, bool exact, std::optional<int64_t> seq_len,
                                const at::Tensor& x, const RotaryForwardOptions& call) {
  check_seq_len(module, call.seq_len());
  if (!scaling::depends_on_length(scaling)) {
    return initial.to(x.device());
  }
  const std::optional<int64_t> given = call.seq_len() ? call.seq_len() : seq_len;
  return scaling::scaled_inv_freq(initial, scaling, width, base, given ? *given : length_of(module, x, call), exact)
      .to(x.device());
}

at::Tensor at_least_float(const at::Tensor& parameter) {
  return c10::isReducedFloatingType(parameter.scalar_type()) ? parameter.to(at::kFloat) : parameter;
}

void check_rotary_width(const char* module, int64_t head_dim, const char* name, int64_t width) {
  check_entries(module, "head_dim", head_dim);
  TORCH_CHECK_VALUE(width >= 0 && width % 2 == 0, module, ": expected ", name, " to be even, but got ", width);
  TORCH_CHECK_VALUE(width <= head_dim, module, ": expected ", name, " to be at most head_dim ", head_dim, ", but got ",
                    width);
}

void check_call_shape(const char* module, int64_t head_dim, const at::Tensor& q, const char* name) {
  if (q.defined()) {
    check_dense(module, name, q);
  }
  TORCH_CHECK_VALUE(q.defined() && q.dim() == 4 && q.size(3) == head_dim, module, ": expected ", name,
                    " of shape (batch, heads, length, head_dim) with head_dim ", head_dim, ", but got ",
                    q.defined() ? c10::str(q.sizes()) : "an undefined tensor");
}

at::Tensor shifts_of(const char* module, int64_t head_dim, const at::Tensor& key, int64_t by) {
  check_call_shape(module, head_dim, key, "key");
  return at::full({key.size(2)}, by, at::TensorOptions(at::kLong).device(key.device()));
}

void check_same_tokens(const char* module, const at::Tensor& q, const at::Tensor& k) {
  check_dense(module, "k", k);
  const bool same = k.dim() == 4 && q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.size(3) == k.size(3);
  TORCH_CHECK_VALUE(same, module, ": expected q and k to have equal batch, length and head_dim, but got q of shape ",
                    q.sizes(), " and k of shape ", k.sizes());
}

void check_seq_len(const char* module, std::optional<int64_t> seq_len) {
  TORCH_CHECK_VALUE(!seq_len || *seq_len >= 1, module, ": expected seq_len to be at least 1, but got ",
                    seq_len.value_or(0));
}

}  // namespace posenc::nn
