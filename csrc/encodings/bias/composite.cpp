/// What additive encodings add, in terms of ATen, whose derivatives and batching rules they inherit.

#include "common/composite.h"
#include "encodings/bias/checks.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace posenc::bias_ops {
namespace {

at::TensorOptions table_options(const Span& span) {
  return span.query.options().dtype(span.query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

/// Values within [least, most], with the gradient of the values themselves: clamp() would give 0 outside, where a
/// parameter that training moved out of range could never return.
Tensor clamped(const Tensor& parameter, double least, std::optional<double> most = std::nullopt) {
  const Tensor values = parameter.detach();
  const Tensor within = most ? values.clamp(least, *most) : values.clamp_min(least);
  return within + (parameter - values);
}

/// The table over -R .. R from its columns for the distances 0 .. R.
Tensor both_directions(const Tensor& columns, const c10::SymInt& radius) {
  const auto integers = columns.options().dtype(at::kLong);
  return columns.index_select(-1, at::arange(c10::Scalar(-radius), c10::Scalar(radius + 1), integers).abs());
}

/// The smallest and the largest position of each row, (B) or (), or (1) for all rows. What attention refuses is not
/// read: it counts as no positions.
std::pair<Tensor, Tensor> ends(const OptionalTensor& positions, const Span& span, const c10::SymInt& first,
                               const c10::SymInt& length) {
  const auto batch = span.query.sym_size(0);
  const bool known =
      positions && positions->device() == span.query.device() && at::isIntegralType(positions->scalar_type(), false) &&
      (positions->dim() == 1 || positions->dim() == 2) && holds(positions->sym_size(-1).sym_gt(0)) &&
      (positions->dim() == 1 || holds(positions->sym_size(0).sym_eq(1)) || holds(positions->sym_size(0).sym_eq(batch)));
  const auto integers = span.query.options().dtype(at::kLong);
  const Tensor numbers =
      known ? positions->to(at::kLong) : at::arange(c10::Scalar(first), c10::Scalar(first + length), integers);
  const auto [smallest, largest] = at::aminmax(numbers, -1);
  return {smallest, largest};
}

}  // namespace

Reach reach(const char* module, const Span& span) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const c10::SymInt q_len = span.query.sym_size(2), k_len = span.key.sym_size(2);
  if (!span.q_positions && !span.k_positions) {
    return {k_len.max(1) - 1, q_len.max(1) - 1};
  }
  if (holds(q_len.sym_eq(0)) || holds(k_len.sym_eq(0)) || holds(span.query.sym_size(0).sym_eq(0))) {
    return {0, 0};
  }
  const auto [q_first, q_last] = ends(span.q_positions, span, k_len - q_len, q_len);
  const auto [k_first, k_last] = ends(span.k_positions, span, 0, k_len);
  const auto largest = [&](at::ScalarType type) {
    return at::stack({(q_last.to(type) - k_first.to(type)).max(), (k_last.to(type) - q_first.to(type)).max()});
  };
  // Integers far apart overflow.
  const double about = largest(at::kDouble).max().item<double>();
  TORCH_CHECK_VALUE(
      about <= kMost, module, ": expected positions within ", kMost,
      " tokens of each other in each row, masked keys included, as a table holds every distance, but got a "
      "distance of ",
      static_cast<int64_t>(std::min(about, 9e18)),
      ": give masked keys positions near the others', and sequences that are packed into a row positions "
      "that restart");
  const Tensor ends = largest(at::kLong).clamp_min(0).cpu();
  return {ends[0].item<int64_t>(), ends[1].item<int64_t>()};
}

namespace {

/// The largest distance from a query to a key of its row, hidden keys included. Positions that are given are read.
c10::SymInt radius(const char* module, const Span& span) {
  const auto [before, after] = reach(module, span);
  return before.max(after);
}

Tensor alibi_composite(const Tensor& slopes, const Tensor& query, const Tensor& key) {
  const Span span{query, key, {}, {}};
  check_per_head("ALiBi", "slopes", slopes);
  check_span("ALiBi", slopes.sym_size(0), slopes, span);
  return slopes.to(table_options(span));
}

Tensor t5_composite(const Tensor& weight, const Tensor& query, const Tensor& key, int64_t max_distance,
                    bool bidirectional) {
  const Span span{query, key, {}, {}};
  check_dense("T5RelativeBias", "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 2, "T5RelativeBias: expected weight of shape (num_buckets, num_heads), but got ",
                    weight.sym_sizes());
  check_span("T5RelativeBias", weight.sym_size(1), weight, span);
  check_entries("T5RelativeBias", "max_distance", max_distance);
  const Tensor distances = at::arange(-max_distance, max_distance + 1, weight.options().dtype(at::kLong));
  const int64_t num_buckets = weight.sym_size(0).guard_int(__FILE__, __LINE__);
  const Tensor buckets = posenc::t5_bucket(distances, num_buckets, max_distance, bidirectional);
  return weight.to(table_options(span)).index_select(0, buckets).t();
}

/// KERPLE (arXiv 2205.09921), with the bounds of its published code.
Tensor kerple_composite(const Tensor& r1, const Tensor& r2, const Tensor& query, const Tensor& key, bool power,
                        const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
  constexpr double kLeast = 0.01, kMostPower = 2.0;
  const Span span{query, key, q_positions, k_positions};
  check_per_head("Kerple", "r1", r1);
  check_span("Kerple", r1.sym_size(0), r1, span);
  check_dense("Kerple", "r2", r2);
  TORCH_CHECK_VALUE(r2.dim() == 1 && holds(r2.sym_size(0).sym_eq(r1.sym_size(0))),
                    "Kerple: expected r2 of shape (num_heads) like r1, but got ", r2.sym_sizes());
  const auto options = table_options(span);
  const c10::SymInt farthest = radius("Kerple", span);
  const Tensor n = at::arange(c10::Scalar(farthest + 1), options);
  const Tensor scale = clamped(r1.to(options), kLeast).neg().unsqueeze(-1);
  const Tensor shape = clamped(r2.to(options), kLeast, power ? std::optional(kMostPower) : std::nullopt).unsqueeze(-1);
  if (!power) {
    return both_directions(scale * at::log1p(shape * n), farthest);
  }
  // Not 0^r2, whose second derivative in r2 is not a number.
  const Tensor powers = at::where(n == 0, 0.0, at::pow(n.clamp_min(1), shape));
  return both_directions(scale * powers, farthest);
}

/// Sandwich (arXiv 2212.10356).
Tensor sandwich_composite(const Tensor& inv_freq, int64_t num_heads, const Tensor& query, const Tensor& key,
                          const OptionalTensor& q_positions, const OptionalTensor& k_positions) {
  const Span span{query, key, q_positions, k_positions};
  check_dense("Sandwich", "inv_freq", inv_freq);
  TORCH_CHECK_VALUE(inv_freq.dim() == 1, "Sandwich: expected inv_freq of shape (dim/2), but got ",
                    inv_freq.sym_sizes());
  check_span("Sandwich", num_heads, query, span);
  const c10::SymInt farthest = radius("Sandwich", span);
  const Tensor sums = cosine_sums(inv_freq, farthest + 1);
  const Tensor heads = at::arange(1, num_heads + 1, sums.options()).mul(8.0 / static_cast<double>(num_heads));
  const Tensor table = sums.sub(c10::Scalar(inv_freq.sym_size(0))).div(heads.unsqueeze(-1));
  return both_directions(table, farthest).to(table_options(span));
}

/// FIRE (arXiv 2310.04418). The MLP maps a number x to sums of w_out relu(w_in x + b_in), which are linear in x between
/// the knots -b_in / w_in. Knots only choose the segment, so they need no gradient; what is linear has that of the MLP.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fire_composite(const Tensor& c, const Tensor& threshold,
                                                                  const Tensor& weight_in, const Tensor& bias_in,
                                                                  const Tensor& weight_out, const Tensor& bias_out,
                                                                  double eps, const Tensor& query, const Tensor& key,
                                                                  const OptionalTensor& q_positions,
                                                                  const OptionalTensor& k_positions) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Span span{query, key, q_positions, k_positions};
  check_fire({c, threshold, weight_in, bias_in, weight_out, bias_out}, eps, span);
  const auto wide = query.is_mps() ? at::kFloat : at::kDouble;  // MPS has no float64
  const double never = query.is_mps() ? 1e30 : 1e300;
  const Tensor w = weight_in.to(wide).squeeze(1), b = bias_in.to(wide), w_out = weight_out.to(wide);

  const Tensor fixed_w = w.detach(), fixed_b = b.detach();
  const Tensor crossings = at::where(fixed_w == 0, never, -fixed_b / fixed_w).clamp(-never, never);
  const Tensor knots = std::get<0>(crossings.sort());
  const Tensor begins = at::cat({knots.slice(0, 0, 1) - 1, knots}), ends = at::cat({knots, knots.slice(0, -1) + 1});
  const Tensor middle = (begins / 2 + ends / 2).unsqueeze(1);
  const Tensor active = (fixed_w * middle + fixed_b > 0).to(wide);  // (segments, hidden)
  const Tensor offset = w_out.matmul((active * b).t()) + bias_out.to(wide).unsqueeze(1);
  const Tensor slope = w_out.matmul((active * w).t());

  const Tensor i = q_positions ? *q_positions
                               : at::arange(c10::Scalar(key.sym_size(2) - query.sym_size(2)),
                                            c10::Scalar(key.sym_size(2)), query.options().dtype(at::kLong));
  const Tensor rate = c.to(wide), farthest = at::maximum(threshold.to(wide).abs(), i.to(wide));
  const Tensor norm = at::log1p((rate * farthest).abs()) + eps;
  return {rate, (norm.dim() == 1 ? norm.unsqueeze(0) : norm).unsqueeze(-1), knots, offset, slope};
}

/// Blocks of distances keep the table of angles small.
Tensor cosine_sums_kernel(const Tensor& inv_freq, c10::SymInt length) {
  constexpr int64_t kBlock = 4096;
  const int64_t total = length.expect_int();
  Tensor sums = at::empty({total}, inv_freq.options());
  for (int64_t first = 0; first < total; first += kBlock) {
    const int64_t last = std::min(first + kBlock, total);
    const Tensor n = at::arange(first, last, inv_freq.options());
    sums.slice(0, first, last).copy_((n.unsqueeze(-1) * inv_freq).cos_().sum(-1));
  }
  return sums;
}

Tensor cosine_sums_meta(const Tensor& inv_freq, c10::SymInt length) {
  return at::empty_symint({std::move(length)}, inv_freq.options());
}

POSENC_COMPOSITES(m) {
  m.impl("_alibi_terms", &alibi_composite);
  m.impl("_t5_table", &t5_composite);
  m.impl("_kerple_table", &kerple_composite);
  m.impl("_sandwich_table", &sandwich_composite);
  m.impl("_fire_terms", &fire_composite);
}

POSENC_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("_cosine_sums", &cosine_sums_kernel); }

POSENC_LIBRARY_IMPL(Meta, m) { m.impl("_cosine_sums", &cosine_sums_meta); }

// Frequencies are constants.
POSENC_LIBRARY_IMPL(Autograd, m) { m.impl("_cosine_sums", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace posenc::bias_ops
