/// The schemas of the additive encodings' ops, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/bias/ops.h"

namespace posenc {
namespace bias_ops {
namespace {

#define POSITIONS "Tensor? q_positions=None, Tensor? k_positions=None"
#define FIRE_PARAMETERS \
  "Tensor c, Tensor threshold, Tensor weight_in, Tensor bias_in, Tensor weight_out, Tensor bias_out, float eps, "
POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("alibi_slopes(int num_heads, *, ScalarType? dtype=None, Device? device=None) -> Tensor", tags);
  m.def(
      "t5_bucket(Tensor relative_position, *, int num_buckets=32, int max_distance=128, bool bidirectional=True) -> "
      "Tensor",
      tags);

  m.def("_alibi_terms(Tensor slopes, Tensor query, Tensor key) -> Tensor", tags);
  m.def("_t5_table(Tensor weight, Tensor query, Tensor key, *, int max_distance, bool bidirectional) -> Tensor", tags);
  m.def("_kerple_table(Tensor r1, Tensor r2, Tensor query, Tensor key, *, bool power, " POSITIONS ") -> Tensor", tags);
  m.def("_sandwich_table(Tensor inv_freq, int num_heads, Tensor query, Tensor key, *, " POSITIONS ") -> Tensor", tags);
  m.def("_cosine_sums(Tensor inv_freq, SymInt length) -> Tensor", tags);

  m.def("_fire_terms(" FIRE_PARAMETERS "Tensor query, Tensor key, *, " POSITIONS
        ") -> (Tensor rate, Tensor norm, Tensor knots, Tensor offset, Tensor slope)",
        tags);
}

}  // namespace

Tensor alibi_terms(const Tensor& slopes, const Span& span) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&)>("posenc::_alibi_terms");
  return op.call(slopes, span.query, span.key);
}

Tensor t5_table(const Tensor& weight, const Span& span, int64_t max_distance, bool bidirectional) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, bool)>("posenc::_t5_table");
  return op.call(weight, span.query, span.key, max_distance, bidirectional);
}

Tensor kerple_table(const Tensor& r1, const Tensor& r2, const Span& span, bool power) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
                                        const OptionalTensor&, const OptionalTensor&)>("posenc::_kerple_table");
  return op.call(r1, r2, span.query, span.key, power, span.q_positions, span.k_positions);
}

Tensor sandwich_table(const Tensor& inv_freq, int64_t num_heads, const Span& span) {
  static const auto op = find_op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const OptionalTensor&,
                                        const OptionalTensor&)>("posenc::_sandwich_table");
  return op.call(inv_freq, num_heads, span.query, span.key, span.q_positions, span.k_positions);
}

Tensor cosine_sums(const Tensor& inv_freq, c10::SymInt length) {
  static const auto op = find_op<Tensor(const Tensor&, c10::SymInt)>("posenc::_cosine_sums");
  return op.call(inv_freq, std::move(length));
}

attention_ops::FireTerms fire_terms(const FireParameters& p, double eps, const Span& span) {
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
  static const auto op =
      find_op<Result(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                     const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&)>(
          "posenc::_fire_terms");
  const auto [rate, norm, knots, offset, slope] =
      op.call(p.c, p.threshold, p.weight_in, p.bias_in, p.weight_out, p.bias_out, eps, span.query, span.key,
              span.q_positions, span.k_positions);
  return {rate, norm, knots, offset, slope};
}

}  // namespace bias_ops

at::Tensor alibi_slopes(int64_t num_heads, at::ScalarType dtype, std::optional<at::Device> device) {
  static const auto op =
      find_op<at::Tensor(int64_t, std::optional<at::ScalarType>, std::optional<at::Device>)>("posenc::alibi_slopes");
  return op.call(num_heads, dtype, device);
}

at::Tensor t5_bucket(const at::Tensor& relative_position, int64_t num_buckets, int64_t max_distance,
                     bool bidirectional) {
  static const auto op = find_op<at::Tensor(const at::Tensor&, int64_t, int64_t, bool)>("posenc::t5_bucket");
  return op.call(relative_position, num_buckets, max_distance, bidirectional);
}

}  // namespace posenc
