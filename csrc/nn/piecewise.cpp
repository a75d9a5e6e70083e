#include <posenc/nn/piecewise.h>

#include "nn/score_call.h"

namespace posenc::nn {

void PiecewiseEncoding::add_terms(OpCall& op, const AttendOptions& call) {
  check_free("PiecewiseEncoding", "far queries and keys", op.options.q_far().has_value());
  const auto s = sides(op.query, op.key, call.q_positions(), call.k_positions());
  op.query = s.q_near;
  op.key = s.k_near;
  op.options.q_far(s.q_far).k_far(s.k_far).threshold(threshold()).is_causal(call.is_causal().value_or(true));
}

}  // namespace posenc::nn
