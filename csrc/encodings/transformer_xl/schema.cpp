/// The schema of TransformerXL's op, and its C++ function: a call through the dispatcher.

#include "common/dispatch.h"
#include "common/registration.h"
#include "encodings/transformer_xl/ops.h"

#include <tuple>

namespace posenc::transformer_xl_ops {
namespace {

POSENC_LIBRARY_FRAGMENT(m) {
  m.def(
      "_transformer_xl_terms(Tensor content_bias, Tensor position_bias, Tensor pos_proj, Tensor inv_freq, "
      "Tensor query, Tensor key, *, bool interleaved, Tensor? q_positions=None, Tensor? k_positions=None, "
      "bool is_causal=False, int? window=None, int? window_left=None, int? window_right=None, "
      "bool has_blocks=False) -> (Tensor content_query, Tensor position_query, Tensor rel_k)",
      {at::Tag::pt2_compliant_tag});
}

}  // namespace

Terms terms(const Parameters& p, const bias_ops::Span& span, bool interleaved, const Hidden& hidden) {
  using Result = std::tuple<Tensor, Tensor, Tensor>;
  using Number = std::optional<int64_t>;
  static const auto op =
      find_op<Result(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
                     const OptionalTensor&, const OptionalTensor&, bool, Number, Number, Number, bool)>(
          "posenc::_transformer_xl_terms");
  const auto [content_query, position_query, rel_k] = op.call(
      p.content_bias, p.position_bias, p.pos_proj, p.inv_freq, span.query, span.key, interleaved, span.q_positions,
      span.k_positions, hidden.is_causal, hidden.window, hidden.window_left, hidden.window_right, hidden.has_blocks);
  return {content_query, position_query, rel_k};
}

}  // namespace posenc::transformer_xl_ops
