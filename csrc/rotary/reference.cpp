#include "rotary/reference.h"

#include "common/registration.h"
#include "rotary/checks.h"

#include <ATen/ATen.h>

namespace posenc::rotary_ops {
namespace reference {
namespace {

at::ScalarType angle_type(const Tensor& inv_freq, bool exact) {
  return exact && !inv_freq.is_mps() ? at::kDouble : at::kFloat;  // MPS has no float64
}

at::ScalarType compute_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// positions with a last dimension of one, in the angles' dtype: (.., T, 1), with leading axes where there are several.
Tensor position_column(const OptionalTensor& positions, at::TensorOptions type, const RotaryTablesFuncOptions& o) {
  if (positions) {
    return positions->to(type.dtype()).unsqueeze(-1);
  }
  Tensor p = at::arange(c10::Scalar(*o.length()), type);
  p = o.offsets() ? o.offsets()->to(type.dtype()).unsqueeze(-1) + p : p + c10::Scalar(o.offset());
  return p.unsqueeze(-1);
}

/// theta[.., t, k] = position * inv_freq[k], summed over axes where there are several (RoFormer eq. 15; RoPE-ViT,
/// arXiv 2403.13298, eq. 14 for mixed axes).
Tensor angles(const OptionalTensor& positions, const Tensor& inv_freq, const RotaryTablesFuncOptions& o) {
  const auto type = inv_freq.options().dtype(angle_type(inv_freq, o.exact()));
  const Tensor f = inv_freq.to(type.dtype());
  const Tensor p = position_column(positions, type, o);
  if (f.dim() == 1 && (!o.axes() || !positions || o.axes()->empty())) {
    return (o.axes() && positions ? p.select(0, 0) : p) * f;
  }
  if (f.dim() == 1) {
    std::vector<Tensor> parts;  // one for each run of pairs that turn by the same axis
    const auto& axes = *o.axes();
    const int64_t pairs = static_cast<int64_t>(axes.size());
    for (int64_t begin = 0, end = 0; begin < pairs; begin = end) {
      while (end < pairs && axes[end] == axes[begin]) {
        ++end;
      }
      parts.push_back(p.select(0, axes[begin]) * f.narrow(0, begin, end - begin));
    }
    return at::cat(parts, -1);
  }
  Tensor sum;
  for (int64_t axis = 0; axis < f.size(0); ++axis) {
    Tensor column = positions ? p.select(0, axis) : p;
    Tensor weights = f.select(0, axis);
    if (f.dim() == 3) {
      column = (column.dim() == 2 ? column.unsqueeze(0) : column).unsqueeze(1);  // (B|1, 1, T, 1)
      weights = weights.unsqueeze(1);                                            // (H, 1, R/2)
    }
    const Tensor term = column * weights;
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

/// A table as (.., 1 or H, T, R/2) for (B, H, T, D).
Tensor with_heads(const Tensor& table) { return table.dim() == 3 ? table.unsqueeze(1) : table; }

/// The elements a and b of the first `pairs` pairs of x, in x's arithmetic type.
std::tuple<Tensor, Tensor> split_pairs(const Tensor& x, const c10::SymInt& pairs, bool interleaved) {
  const Tensor turning = x.slice_symint(-1, 0, pairs * 2).to(compute_type(x));
  if (interleaved) {
    return {turning.slice_symint(-1, 0, pairs * 2, 2), turning.slice_symint(-1, 1, pairs * 2, 2)};
  }
  return {turning.slice_symint(-1, 0, pairs), turning.slice_symint(-1, pairs, pairs * 2)};
}

Tensor join_pairs(const Tensor& a, const Tensor& b, bool interleaved) {
  return interleaved ? at::stack({a, b}, -1).flatten(-2) : at::cat({a, b}, -1);
}

}  // namespace

std::tuple<Tensor, Tensor> rotary_tables(const OptionalTensor& positions, const Tensor& inv_freq,
                                         const RotaryTablesFuncOptions& o) {
  check_tables(positions, inv_freq, o);
  const Tensor theta = angles(positions, inv_freq, o);
  Tensor cos = theta.cos() * o.attention_scaling(), sin = theta.sin() * o.attention_scaling();
  if (o.decay()) {
    const Tensor factor = decay_factor(positions, inv_freq, o);
    cos = cos * factor;
    sin = sin * factor;
  }
  return {cos.to(o.dtype()), sin.to(o.dtype())};
}

Tensor decay_factor(const OptionalTensor& positions, const Tensor& inv_freq, const RotaryTablesFuncOptions& o) {
  const auto type = inv_freq.options().dtype(angle_type(inv_freq, /*exact=*/true));
  return ((position_column(positions, type, o) - o.centre()) * o.decay()->to(type.dtype())).exp();
}

Tensor apply_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  check_apply("apply_rotary", {{"x", x}}, cos, sin);
  const c10::SymInt pairs = cos.sym_size(-1);
  const auto [a, b] = split_pairs(x, pairs, interleaved);
  const Tensor c = with_heads(cos).to(compute_type(x));
  const Tensor s = inverse ? -with_heads(sin).to(compute_type(x)) : with_heads(sin).to(compute_type(x));
  const Tensor turned = join_pairs(a * c - b * s, b * c + a * s, interleaved).to(x.scalar_type());
  return at::cat({turned, x.slice_symint(-1, pairs * 2)}, -1);
}

std::tuple<Tensor, Tensor> apply_rotary_qk(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                           bool interleaved, bool inverse) {
  check_apply("apply_rotary_qk", {{"q", q}, {"k", k}}, cos, sin);
  return {reference::apply_rotary(q, cos, sin, interleaved, inverse),
          reference::apply_rotary(k, cos, sin, interleaved, inverse)};
}

Tensor rotary(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, const RotaryFuncOptions& o) {
  check_rotary("rotary", {{"x", x}}, positions, inv_freq, o);
  const auto [cos, sin] = reference::rotary_tables(positions, inv_freq, table_options(x, o));
  return reference::apply_rotary(x, cos, sin, o.interleaved(), o.inverse());
}

std::tuple<Tensor, Tensor> rotary_qk(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                     const Tensor& inv_freq, const RotaryFuncOptions& o) {
  check_rotary("rotary_qk", {{"q", q}, {"k", k}}, positions, inv_freq, o);
  return {reference::rotary(q, positions, inv_freq, o), reference::rotary(k, positions, inv_freq, o)};
}

std::tuple<Tensor, Tensor> table_gradients(const Tensor& grad, const Tensor& x, const Tensor& cos, const Tensor& sin,
                                           bool interleaved, bool inverse) {
  const c10::SymInt pairs = cos.sym_size(-1);
  const auto [ga, gb] = split_pairs(grad, pairs, interleaved);
  const auto [a, b] = split_pairs(x, pairs, interleaved);
  const auto reduce = [](const Tensor& full, const Tensor& table) {
    return full.sum_to_size_symint(with_heads(table).sym_sizes()).reshape_symint(table.sym_sizes()).to(table.dtype());
  };
  const Tensor turn = gb * a - ga * b;
  return {reduce(ga * a + gb * b, cos), reduce(inverse ? -turn : turn, sin)};
}

void rotary_qk_(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                const RotaryFuncOptions& o) {
  check_rotary("rotary_qk_", {{"q", q}, {"k", k}}, positions, inv_freq, o);
  const auto [q_turned, k_turned] = reference::rotary_qk(q, k, positions, inv_freq, o);
  q.copy_(q_turned);
  k.copy_(k_turned);
}

void apply_rotary_qk_(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool interleaved,
                      bool inverse) {
  check_apply("apply_rotary_qk_", {{"q", q}, {"k", k}}, cos, sin);
  const auto [q_turned, k_turned] = reference::apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
  q.copy_(q_turned);
  k.copy_(k_turned);
}

}  // namespace reference

namespace {

Tensor permute_weight(const Tensor& weight, int64_t num_heads, c10::string_view to, std::optional<int64_t> rotary_dim) {
  const char* op = "permute_rotary_weight";
  TORCH_CHECK_VALUE(to == "half" || to == "interleaved", op, ": expected to to be 'half' or 'interleaved', but got '",
                    to, "'");
  check_dense(op, "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() >= 1, op, ": expected weight of shape (num_heads * head_dim, ..), but got a scalar");
  TORCH_CHECK_VALUE(num_heads >= 1 && weight.size(0) % num_heads == 0, op,
                    ": expected num_heads to divide the rows of weight, but got ", num_heads, " heads for ",
                    weight.sizes());
  const int64_t head_dim = weight.size(0) / num_heads, turning = rotary_dim.value_or(head_dim);
  TORCH_CHECK_VALUE(turning >= 0 && turning % 2 == 0 && turning <= head_dim, op, ": expected ",
                    rotary_dim ? "rotary_dim" : "head_dim (rotary_dim, where only part of a head turns)",
                    " to be even and at most head_dim ", head_dim, ", but got ", turning);
  const Tensor heads = weight.unflatten(0, {num_heads, head_dim});
  const bool to_half = to == "half";
  const Tensor pairs = heads.narrow(1, 0, turning)
                           .unflatten(1, to_half ? at::IntArrayRef{turning / 2, 2} : at::IntArrayRef{2, turning / 2});
  return at::cat({pairs.transpose(1, 2).flatten(1, 2), heads.narrow(1, turning, head_dim - turning)}, 1).flatten(0, 1);
}

POSENC_LIBRARY_IMPL(CompositeImplicitAutograd, m) { m.impl("permute_rotary_weight", &permute_weight); }

/// Outputs of other devices have the strides that the meta kernels promise.
Tensor like(const Tensor& x, const Tensor& y) { return at::empty_like(x).copy_(y); }

Tensor rotary_other(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq,
                    const RotaryFuncOptions& o) {
  return like(x, reference::rotary(x, positions, inv_freq, o));
}

std::tuple<Tensor, Tensor> rotary_qk_other(const Tensor& q, const Tensor& k, const OptionalTensor& positions,
                                           const Tensor& inv_freq, const RotaryFuncOptions& o) {
  const auto [q_turned, k_turned] = reference::rotary_qk(q, k, positions, inv_freq, o);
  return {like(q, q_turned), like(k, k_turned)};
}

Tensor apply_rotary_other(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse) {
  return like(x, reference::apply_rotary(x, cos, sin, interleaved, inverse));
}

std::tuple<Tensor, Tensor> apply_rotary_qk_other(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                                 bool interleaved, bool inverse) {
  const auto [q_turned, k_turned] = reference::apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
  return {like(q, q_turned), like(k, k_turned)};
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("rotary", &flat_rotary<rotary_other>);
  m.impl("rotary_qk", &flat_rotary_qk<rotary_qk_other>);
  m.impl("rotary_qk_", &flat_rotary_qk<reference::rotary_qk_>);
  m.impl("rotary_tables", &flat_rotary_tables<reference::rotary_tables>);
  m.impl("apply_rotary", &apply_rotary_other);
  m.impl("apply_rotary_qk", &apply_rotary_qk_other);
  m.impl("apply_rotary_qk_", &reference::apply_rotary_qk_);
}

/// In-place ops as functional ones and copies. (torch's own functionalisation of custom ops loses writes to two slices
/// of one tensor where sizes are symbolic.)
void rotary_qk_functional(const Tensor& q, const Tensor& k, const OptionalTensor& positions, const Tensor& inv_freq,
                          const RotaryFuncOptions& o) {
  const auto [q_turned, k_turned] = posenc::rotary_qk(q, k, positions, inv_freq, o);
  q.copy_(q_turned);
  k.copy_(k_turned);
}

void apply_rotary_qk_functional(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                bool interleaved, bool inverse) {
  const auto [q_turned, k_turned] = posenc::apply_rotary_qk(q, k, cos, sin, interleaved, inverse);
  q.copy_(q_turned);
  k.copy_(k_turned);
}

POSENC_LIBRARY_IMPL(Functionalize, m) {
  m.impl("rotary_qk_", &flat_rotary_qk<rotary_qk_functional>);
  m.impl("apply_rotary_qk_", &apply_rotary_qk_functional);
}

POSENC_LIBRARY_IMPL(FuncTorchBatched, m) {
  m.impl("rotary", &flat_rotary<reference::rotary>);
  m.impl("rotary_qk", &flat_rotary_qk<reference::rotary_qk>);
  m.impl("rotary_qk_", &flat_rotary_qk<reference::rotary_qk_>);
  m.impl("rotary_tables", &flat_rotary_tables<reference::rotary_tables>);
  m.impl("apply_rotary", &reference::apply_rotary);
  m.impl("apply_rotary_qk", &reference::apply_rotary_qk);
  m.impl("apply_rotary_qk_", &reference::apply_rotary_qk_);
}

}  // namespace
}  // namespace posenc::rotary_ops
