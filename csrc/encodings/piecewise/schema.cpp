/// The schemas of the ops that rotate for piecewise attention, and their C++ functions: calls through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/piecewise/ops.h"

namespace posenc::piecewise_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def(
      "_rerope_qk(Tensor query, Tensor key, Tensor inv_freq, *, int window, bool interleaved=False, "
      "int? log_scale_length=None, Tensor? q_positions=None, Tensor? k_positions=None) -> "
      "(Tensor q_near, Tensor k_near, Tensor q_far)",
      tags);
  m.def(
      "_leaky_rerope_qk(Tensor query, Tensor key, Tensor inv_freq, Tensor far_inv_freq, *, int window, float leak, "
      "bool interleaved=False, int? log_scale_length=None, Tensor? q_positions=None, Tensor? k_positions=None) -> "
      "(Tensor q_near, Tensor k_near, Tensor q_far, Tensor k_far)",
      tags);
  m.def(
      "_self_extend_qk(Tensor query, Tensor key, Tensor inv_freq, *, int group, int window, bool interleaved=False, "
      "Tensor? q_positions=None, Tensor? k_positions=None) -> "
      "(Tensor q_near, Tensor k_near, Tensor q_far, Tensor k_far)",
      tags);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> rerope_qk(const Tensor& query, const Tensor& key, const Tensor& inv_freq,
                                             const Positions& positions, int64_t window, bool interleaved,
                                             std::optional<int64_t> log_scale_length) {
  static const auto op =
      find_op<std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, int64_t, bool,
                                                 std::optional<int64_t>, const OptionalTensor&, const OptionalTensor&)>(
          "posenc::_rerope_qk");
  return op.call(query, key, inv_freq, window, interleaved, log_scale_length, positions.query, positions.key);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> leaky_rerope_qk(const Tensor& query, const Tensor& key,
                                                           const Tensor& inv_freq, const Tensor& far_inv_freq,
                                                           const Positions& positions, int64_t window, double leak,
                                                           bool interleaved, std::optional<int64_t> log_scale_length) {
  static const auto op = find_op<std::tuple<Tensor, Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, double, bool, std::optional<int64_t>,
      const OptionalTensor&, const OptionalTensor&)>("posenc::_leaky_rerope_qk");
  return op.call(query, key, inv_freq, far_inv_freq, window, leak, interleaved, log_scale_length, positions.query,
                 positions.key);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> self_extend_qk(const Tensor& query, const Tensor& key,
                                                          const Tensor& inv_freq, const Positions& positions,
                                                          int64_t group, int64_t window, bool interleaved) {
  static const auto op =
      find_op<std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t,
                                                         bool, const OptionalTensor&, const OptionalTensor&)>(
          "posenc::_self_extend_qk");
  return op.call(query, key, inv_freq, group, window, interleaved, positions.query, positions.key);
}

}  // namespace posenc::piecewise_ops
