/// The absolute encodings in terms of rotary_tables and ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "encodings/absolute/checks.h"

#include <posenc/ops.h>

#include <ATen/ATen.h>

namespace posenc::absolute_ops {
namespace {

/// The sum in the wider of both dtypes (float32 for 16-bit x with a float32 encoding), rounded once to that of x.
Tensor plus(const Tensor& x, const Tensor& encoding) { return x.add(encoding).to(x.scalar_type()); }

/// 0, 1, .., T-1 from where the call starts, as `options` say: (T) or (B, T).
Tensor counted(const Place& place, const c10::SymInt& length, const at::TensorOptions& options) {
  const Tensor p = at::arange(c10::Scalar(length), options);
  return place.offsets ? place.offsets->to(options.dtype()).unsqueeze(-1) + p : p + c10::Scalar(place.offset);
}

/// Attention Is All You Need (arXiv 1706.03762), section 3.5: sin and cos of position * inv_freq[k], (.., T, dim).
Tensor sinusoids(const char* module, const Tensor& x, const Place& place, const Tensor& inv_freq, int64_t dim,
                 const Columns& order = {}) {
  check_dense(module, "inv_freq", inv_freq);
  TORCH_CHECK_VALUE(inv_freq.dim() == 1, module, ": expected inv_freq of shape (pairs), but got ",
                    inv_freq.sym_sizes());
  const int64_t pairs = inv_freq.sym_size(0).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(2 * pairs >= dim - 1 && 2 * pairs <= dim + 1, module,
                    ": expected half as many frequencies as the dim ", dim, ", but got ", pairs);
  const auto [cos, sin] = posenc::rotary_tables(place.positions, inv_freq,
                                                RotaryTablesFuncOptions()
                                                    .length(x.sym_size(-2))
                                                    .offset(place.offset)
                                                    .offsets(place.offsets)
                                                    .dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const Tensor columns = order.interleaved
                             ? at::stack({sin, cos}, -1).flatten(-2).narrow(-1, 0, std::min(2 * pairs, dim))
                         : order.cosines_first ? at::cat({cos, sin}, -1)
                                               : at::cat({sin, cos.narrow(-1, 0, std::min(pairs, dim - pairs))}, -1);
  return 2 * pairs < dim ? at::constant_pad_nd(columns, {0, dim - 2 * pairs}) : columns;
}

/// sinusoids() of each axis of positions (A, ..), one after the other, each dim/A wide.
Tensor sinusoids_by_axis(const char* module, const Tensor& x, const Tensor& positions, const Tensor& inv_freq,
                         int64_t dim, const Columns& order) {
  const Place rows{positions.flatten(0, -2), 0, std::nullopt};
  const Tensor each = sinusoids(module, x, rows, inv_freq, dim / order.num_axes, order);
  c10::SymDimVector sizes(positions.sym_sizes());
  sizes.push_back(dim / order.num_axes);
  return each.view_symint(sizes).movedim(0, -2).flatten(-2);
}

Tensor sinusoidal_composite(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, int64_t dim,
                            bool interleaved, bool cosines_first, int64_t num_axes, c10::SymInt offset,
                            const OptionalTensor& offsets) {
  const char* module = "Sinusoidal";
  const Columns order{interleaved, cosines_first, num_axes};
  const Place place{positions, std::move(offset), offsets};
  check_axes(module, dim, num_axes);
  check_call(module, x, dim, place, inv_freq, /*floating_positions=*/true, num_axes);
  return plus(x, num_axes == 1 ? sinusoids(module, x, place, inv_freq, dim, order)
                               : sinusoids_by_axis(module, x, *positions, inv_freq, dim, order));
}

Tensor learned_composite(const Tensor& x, const OptionalTensor& positions, const Tensor& weight, c10::SymInt offset,
                         const OptionalTensor& offsets) {
  check_dense("LearnedAbsolute", "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, "LearnedAbsolute: expected weight of shape (max_positions, dim), but got ",
                    weight.sym_sizes());
  const Place place{positions, std::move(offset), offsets};
  check_call("LearnedAbsolute", x, weight.sym_size(1), place, weight, /*floating_positions=*/false);
  const c10::SymInt limit = weight.sym_size(0), length = x.sym_size(-2);
  if (positions) {
    return plus(x, at::embedding(weight, checked_positions(*positions, limit)));
  }
  if (offsets) {
    // Offsets that are too large stay so, and no sum overflows.
    const Place start{positions, 0, offsets->to(at::kLong).clamp_max(c10::Scalar(limit))};
    return plus(x,
                at::embedding(weight, checked_positions(counted(start, length, x.options().dtype(at::kLong)), limit)));
  }
  const c10::SymInt end = place.offset + length;
  TORCH_CHECK_VALUE(holds(place.offset.sym_ge(0)) && holds(end.sym_le(limit)),
                    "LearnedAbsolute: expected positions from 0 to ", limit - 1, ", as max_positions is ", limit,
                    ", but got offset ", place.offset, " and length ", length);
  return plus(x, weight.slice_symint(0, place.offset, end));
}

/// Numbers in [-bound, bound).
Tensor uniform(double bound, c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  return at::rand_symint(sizes, options).mul(2 * bound).sub(bound);
}

/// CAPE (arXiv 2106.03143), section 3.3: p' = lambda (p + D + eps_p), with D and lambda for a sequence, eps_p for a
/// token.
Tensor augmented(const Tensor& positions, const Tensor& x, const Augmentation& a) {
  c10::SymDimVector sequence, token;
  if (x.dim() == 3) {
    sequence.push_back(x.sym_size(0));
    token.push_back(x.sym_size(0));
  }
  sequence.push_back(1);
  token.push_back(x.sym_size(-2));
  const auto options = positions.options();
  const Tensor shift = uniform(a.max_global_shift, sequence, options);
  const Tensor scale = uniform(std::log(a.max_global_scaling), sequence, options).exp();
  return scale * (positions + shift + uniform(a.max_local_shift, token, options));
}

Tensor cape_composite(const Tensor& x, const OptionalTensor& positions, const Tensor& inv_freq, int64_t dim,
                      bool training, double max_global_shift, double max_local_shift, double max_global_scaling,
                      bool centre, c10::SymInt offset, const OptionalTensor& offsets) {
  const Augmentation augmentation{max_global_shift, max_local_shift, max_global_scaling};
  check_augmentation("CAPE", augmentation);
  Place place{positions, std::move(offset), offsets};
  check_call("CAPE", x, dim, place, inv_freq, /*floating_positions=*/true);
  TORCH_CHECK_VALUE(!centre || (!offsets && holds(place.offset.sym_eq(0))),
                    "CAPE: expected no offset with centre=True, which subtracts the mean position and so the offset");
  if (centre || training) {
    const auto options = x.options().dtype(x.is_mps() ? at::kFloat : at::kDouble);  // MPS has no float64
    Tensor p = positions ? positions->to(options.dtype()) : counted(place, x.sym_size(-2), options);
    if (centre) {
      p = p - p.mean(-1, /*keepdim=*/true);
    }
    place = Place{training ? augmented(p, x, augmentation) : p, 0, std::nullopt};
  }
  return plus(x, sinusoids("CAPE", x, place, inv_freq, dim));
}

/// Rows after the prefix as an image (1, dim, rows, columns), interpolated as torch.nn.functional.interpolate does.
Tensor interpolated_grid(const Tensor& rows, at::IntArrayRef from, at::IntArrayRef to, const std::string& mode,
                         bool align_corners, bool antialias) {
  const Tensor image = rows.t().unflatten(-1, from).unsqueeze(0);
  const bool cubic = mode == "bicubic";
  const Tensor resized = antialias ? (cubic ? at::_upsample_bicubic2d_aa(image, to, align_corners)
                                            : at::_upsample_bilinear2d_aa(image, to, align_corners))
                         : cubic   ? at::upsample_bicubic2d(image, to, align_corners)
                                   : at::upsample_bilinear2d(image, to, align_corners);
  return resized.squeeze(0).flatten(1).t();
}

Tensor resized_positions_composite(const Tensor& weight, at::IntArrayRef size, int64_t prefix,
                                   at::OptionalIntArrayRef grid, std::optional<c10::string_view> mode,
                                   bool align_corners, bool antialias) {
  const ResizeRule rule = check_resize(weight, size, prefix, grid, mode, antialias);
  const Tensor kept = weight.narrow(0, 0, prefix);
  // 16-bit interpolation would round its coefficients.
  const bool wide = weight.scalar_type() == at::kDouble;
  const Tensor rows = weight.narrow(0, prefix, rule.old_rows).to(wide ? at::kDouble : at::kFloat);
  const Tensor resized =
      size.size() == 2 ? interpolated_grid(rows, rule.old_grid, size, rule.mode, align_corners, antialias)
                       : at::upsample_linear1d(rows.t().unsqueeze(0), {size[0] - prefix}, align_corners).squeeze(0).t();
  return at::cat({kept, resized.to(weight.scalar_type())});
}

Tensor checked_positions_kernel(const Tensor& positions, c10::SymInt max_positions) {
  const Tensor p = positions.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  if (p.numel() > 0) {
    const auto [smallest, largest] = p.aminmax();
    const int64_t first = smallest.item<int64_t>(), last = largest.item<int64_t>(), limit = max_positions.expect_int();
    TORCH_CHECK_VALUE(first >= 0 && last < limit, "LearnedAbsolute: expected positions from 0 to ", limit - 1,
                      ", as max_positions is ", limit, ", but got positions from ", first, " to ", last);
  }
  return p;
}

Tensor checked_positions_meta(const Tensor& positions, c10::SymInt) {
  return at::empty_like(positions, positions.options().dtype(at::kLong));
}

POSENC_COMPOSITES(m) {
  m.impl("_add_sinusoidal", &sinusoidal_composite);
  m.impl("_add_learned", &learned_composite);
  m.impl("_add_cape", &cape_composite);
  m.impl("_resized_positions", &resized_positions_composite);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("_checked_positions", &checked_positions_kernel); }

POSENC_LIBRARY_IMPL(Meta, m) { m.impl("_checked_positions", &checked_positions_meta); }

// Integers have no derivative.
POSENC_LIBRARY_IMPL(Autograd, m) { m.impl("_checked_positions", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace posenc::absolute_ops
