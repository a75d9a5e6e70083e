#include <posenc/ops_attention.h>
#include <posenc/sdpa.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>

namespace posenc::sdpa {
namespace {

using at::Tensor;

bool is_floating(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

/// Whether attention() takes such a tensor: dense, on the CPU, and not the subject of forward-mode derivatives.
bool is_plain(const Tensor& x) {
  return x.device().is_cpu() && x.layout() == at::kStrided && !x._fw_grad(/*level=*/0).defined();
}

struct Call {
  const Tensor& query;
  const Tensor& key;
  const Tensor& value;
  const std::optional<Tensor>& attn_mask;
  double dropout_p;
  bool is_causal;
  bool enable_gqa;
};

/// The sizes of x before its last `kept` dimensions equal those of y.
bool same_batch(const Tensor& x, const Tensor& y, int64_t kept) {
  const auto a = x.sym_sizes(), b = y.sym_sizes();
  return std::equal(a.begin(), a.end() - kept, b.begin(), b.end() - kept);
}

/// Queries' heads are as many as those of keys, or with enable_gqa a multiple.
bool heads_fit(const Call& c) {
  const auto heads = c.query.sym_size(-3), groups = c.key.sym_size(-3);
  return heads == groups || (c.enable_gqa && groups > 0 && heads % groups == 0);
}

bool shapes_fit(const Call& c) {
  const int64_t dims = c.query.dim();
  if (dims < 3 || c.key.dim() != dims || c.value.dim() != dims) {
    return false;
  }
  const auto filled = [](const Tensor& x) { return x.sym_numel() > 0; };
  return filled(c.query) && filled(c.key) && filled(c.value) && same_batch(c.query, c.key, 3) &&
         same_batch(c.key, c.value, 2) && c.key.sym_size(-2) == c.value.sym_size(-2) &&
         c.query.sym_size(-1) == c.key.sym_size(-1) && heads_fit(c);
}

/// A mask that torch takes, and that still broadcasts when leading dimensions are merged into one.
bool mask_fits(const Call& c) {
  if (!c.attn_mask) {
    return true;
  }
  const Tensor& mask = *c.attn_mask;
  if (!is_plain(mask) || (mask.scalar_type() != at::kBool && mask.scalar_type() != c.query.scalar_type())) {
    return false;
  }
  const int64_t dims = c.query.dim();
  if (mask.dim() < 2 || mask.dim() > dims || (dims > 4 && mask.dim() > 3)) {
    return false;
  }
  for (int64_t dim = 1; dim <= mask.dim(); ++dim) {
    const auto all = dim == 1 ? c.key.sym_size(-2) : c.query.sym_size(-dim);
    if (mask.sym_size(-dim) != 1 && mask.sym_size(-dim) != all) {
      return false;
    }
  }
  return true;
}

bool is_served(const Call& c) {
  const auto type = c.query.scalar_type();
  return is_plain(c.query) && is_plain(c.key) && is_plain(c.value) && is_floating(type) &&
         c.key.scalar_type() == type && c.value.scalar_type() == type && !(c.is_causal && c.attn_mask) &&
         c.dropout_p >= 0 && c.dropout_p < 1 && shapes_fit(c) && mask_fits(c);
}

/// (.., H, T, D) as (B, H, T, D).
Tensor batched(const Tensor& x) {
  if (x.dim() == 4) {
    return x;
  }
  return x.dim() == 3 ? x.unsqueeze(0) : x.flatten(0, x.dim() - 4);
}

Tensor attend(const Call& c, std::optional<double> scale) {
  AttentionFuncOptions options;
  options.is_causal(c.is_causal).scale(scale).dropout_p(c.dropout_p);
  if (c.attn_mask) {
    c.attn_mask->scalar_type() == at::kBool ? options.attn_mask(*c.attn_mask) : options.bias(*c.attn_mask);
  }
  if (c.is_causal && c.query.sym_size(-2) != c.key.sym_size(-2)) {  // torch counts queries and keys from 0
    const auto counted = [&](const Tensor& x) {
      return at::arange(c10::Scalar(x.sym_size(-2)), x.options().dtype(at::kLong));
    };
    options.q_positions(counted(c.query)).k_positions(counted(c.key));
  }
  const Tensor out = posenc::attention(batched(c.query), batched(c.key), batched(c.value), options);
  if (c.query.dim() == 4) {
    return out;
  }
  auto sizes = c.query.sym_sizes().vec();
  sizes.back() = c.value.sym_size(-1);
  return out.view_symint(sizes);
}

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                                    std::optional<double> scale, bool enable_gqa) {
  const Call call{query, key, value, attn_mask, dropout_p, is_causal, enable_gqa};
  return is_served(call) ? attend(call, scale)
                         : at::native::scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                                                    scale, enable_gqa);
}

/// Kernels in the dispatcher, while they live.
struct Override {
  Override()
      : cpu(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__),
        autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__) {
    cpu.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
    autograd.impl("scaled_dot_product_attention", &scaled_dot_product_attention);
  }
  torch::Library cpu, autograd;
};

std::mutex& guard() {
  static std::mutex mutex;
  return mutex;
}

/// Not freed at the end of the process, when the dispatcher may be gone.
std::unique_ptr<Override>& current() {
  static auto* active = new std::unique_ptr<Override>();
  return *active;
}

}  // namespace

void activate() {
  const std::lock_guard lock(guard());
  if (!current()) {
    current() = std::make_unique<Override>();
  }
}

void restore() {
  const std::lock_guard lock(guard());
  current().reset();
}

bool is_active() {
  const std::lock_guard lock(guard());
  return current() != nullptr;
}

}  // namespace posenc::sdpa
