#include "nn/rotary_call.h"

namespace posenc::nn {
namespace {

int64_t length_of(const at::Tensor& x, const RotaryForwardOptions& call) {
  if (call.positions()) {
    return call.positions()->numel() > 0 ? std::max<int64_t>(1, call.positions()->max().item<int64_t>() + 1) : 1;
  }
  const bool rows = call.offsets() && call.offsets()->numel() > 0;
  const int64_t offset = rows ? call.offsets()->max().item<int64_t>() : call.offset();
  return std::max<int64_t>(1, offset + x.size(2));
}

}  // namespace

at::Tensor frequencies_for_call(const char* module, const at::Tensor& initial, const scaling::Scaling& scaling,
                                int64_t width, double base, bool exact, std::optional<int64_t> seq_len,
                                const at::Tensor& x, const RotaryForwardOptions& call) {
  check_seq_len(module, call.seq_len());
  if (!scaling::depends_on_length(scaling)) {
    return initial.to(x.device());
  }
  const std::optional<int64_t> given = call.seq_len() ? call.seq_len() : seq_len;
  return scaling::scaled_inv_freq(initial, scaling, width, base, given ? *given : length_of(x, call), exact)
      .to(x.device());
}

at::Tensor at_least_float(const at::Tensor& parameter) {
  return c10::isReducedFloatingType(parameter.scalar_type()) ? parameter.to(at::kFloat) : parameter;
}

void check_rotary_width(const char* module, int64_t head_dim, const char* name, int64_t width) {
  TORCH_CHECK_VALUE(width >= 0 && width % 2 == 0, module, ": expected ", name, " to be even, but got ", width);
  TORCH_CHECK_VALUE(width <= head_dim, module, ": expected ", name, " to be at most head_dim ", head_dim, ", but got ",
                    width);
}

void check_call_shape(const char* module, int64_t head_dim, const at::Tensor& q) {
  TORCH_CHECK_VALUE(q.defined() && q.dim() == 4 && q.size(3) == head_dim, module,
                    ": expected q of shape (batch, heads, length, head_dim) with head_dim ", head_dim, ", but got ",
                    q.defined() ? c10::str(q.sizes()) : "an undefined tensor");
}

void check_same_tokens(const char* module, const at::Tensor& q, const at::Tensor& k) {
  const bool same = k.dim() == 4 && q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.size(3) == k.size(3);
  TORCH_CHECK_VALUE(same, module, ": expected q and k to have equal batch, length and head_dim, but got q of shape ",
                    q.sizes(), " and k of shape ", k.sizes());
}

void check_seq_len(const char* module, std::optional<int64_t> seq_len) {
  TORCH_CHECK_VALUE(!seq_len || *seq_len >= 1, module, ": expected seq_len to be at least 1, but got ",
                    seq_len.value_or(0));
}

}  // namespace posenc::nn
