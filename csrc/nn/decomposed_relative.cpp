#include <posenc/nn/decomposed_relative.h>

#include "common/checks.h"
#include "encodings/grid/ops.h"
#include "nn/describe.h"
#include "nn/grid_call.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

namespace posenc::nn {
void check(const DecomposedRelativeOptions& o) {
  check_options("DecomposedRelative", o);
  check_grid("DecomposedRelative", "size", o.size());
  for (const int64_t length : o.size()) {
    check_entries("DecomposedRelative", "size", length);
    check_numbers("DecomposedRelative", "(2 * size - 1) * head_dim", {2 * length - 1, o.head_dim()});
  }
}

DecomposedRelativeImpl::DecomposedRelativeImpl(DecomposedRelativeOptions options) : options(std::move(options)) {
  reset();
}

void DecomposedRelativeImpl::reset() {
  check(options);
  rel_y = register_parameter("rel_y", unset_parameter({2 * options.size()[0] - 1, options.head_dim()}));
  rel_x = register_parameter("rel_x", unset_parameter({2 * options.size()[1] - 1, options.head_dim()}));
  reset_parameters();
}

void DecomposedRelativeImpl::reset_parameters() {
  torch::nn::init::zeros_(rel_y);
  torch::nn::init::zeros_(rel_x);
}

void DecomposedRelativeImpl::pretty_print(std::ostream& stream) const {
  print_options(stream, "DecomposedRelative", options);
}

void DecomposedRelativeImpl::add_terms(OpCall& op, const AttendOptions& call) {
  check_query("DecomposedRelative", op.query, options.head_dim(), std::nullopt);
  check_free_of_axes(op, "DecomposedRelative");
  // The tables go by query - key, those of the op by key - query.
  op.options.grid_rel_y(rel_y.flip(0)).grid_rel_x(rel_x.flip(0)).grid_rel_scale(1.0);
  if (!call.q_positions() && !call.k_positions()) {
    const auto [q, k] =
        grid_ops::grid_positions(op.query, op.key, options.size(), /*class_token=*/false, "DecomposedRelative");
    op.options.q_positions(q).k_positions(k);
  }
}

}  // namespace posenc::nn
