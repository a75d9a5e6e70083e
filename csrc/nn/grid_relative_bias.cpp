#include <posenc/nn/grid_relative_bias.h>

#include "common/checks.h"
#include "encodings/grid/ops.h"
#include "nn/describe.h"
#include "nn/grid_call.h"
#include "nn/parameters.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace posenc::nn {
namespace {

int64_t rows_of(const GridRelativeBiasOptions& o) {
  return (2 * o.window()[0] - 1) * (2 * o.window()[1] - 1) + (o.class_token() ? 3 : 0);
}

}  // namespace

void check(const GridRelativeBiasOptions& o) {
  check_options("GridRelativeBias", o);
  check_grid("GridRelativeBias", "window", o.window());
  for (const int64_t length : o.window()) {
    check_entries("GridRelativeBias", "window", length);
  }
  check_numbers("GridRelativeBias", "(2h - 1) * (2w - 1) * num_heads",
                {2 * o.window()[0] - 1, 2 * o.window()[1] - 1, o.num_heads()});
  TORCH_CHECK_VALUE(
      !o.class_token() || o.kind() == GridBiasKind::kTable,
      "GridRelativeBias: expected class_token with kind 'table' alone, whose table has entries for it, but "
      "got kind '",
      value_names(o.kind())[static_cast<size_t>(o.kind())], "'");
}

GridRelativeBiasImpl::GridRelativeBiasImpl(GridRelativeBiasOptions options) : options(std::move(options)) { reset(); }

void GridRelativeBiasImpl::reset() {
  check(options);
  if (options.kind() == GridBiasKind::kTable) {
    table = register_parameter("table", unset_parameter({rows_of(options), options.num_heads()}));
    reset_parameters();
    return;
  }
  mlp = register_module("mlp", torch::nn::Sequential());
  // One after another, so that initial weights are drawn in the order of the layers.
  mlp->push_back(torch::nn::Linear(2, kHidden));
  mlp->push_back(torch::nn::ReLU());
  mlp->push_back(torch::nn::Linear(torch::nn::LinearOptions(kHidden, options.num_heads()).bias(false)));
}

void GridRelativeBiasImpl::reset_parameters() {
  if (table.defined()) {
    torch::nn::init::normal_(table, 0.0, kInitialStd);
    return;
  }
  mlp->at<torch::nn::LinearImpl>(0).reset_parameters();
  mlp->at<torch::nn::LinearImpl>(2).reset_parameters();
}

void GridRelativeBiasImpl::pretty_print(std::ostream& stream) const {
  print_options(stream, "GridRelativeBias", options);
}

at::Tensor GridRelativeBiasImpl::parameter() const {
  return table.defined() ? table : mlp->at<torch::nn::LinearImpl>(0).weight;
}

ScoreTerms GridRelativeBiasImpl::terms(const ScoreCall& call) {
  at::Tensor rows = table;
  if (!rows.defined()) {
    const auto &in = mlp->at<torch::nn::LinearImpl>(0), &out = mlp->at<torch::nn::LinearImpl>(2);
    rows = grid_ops::continuous_grid_rows(in.weight, in.bias, out.weight, call.query, options.window());
  }
  ScoreTerms added;
  added.grid_bias = grid_ops::grid_table(rows, call.query, options.window(), options.class_token());
  const bool placed = call.q_positions || call.k_positions;
  TORCH_CHECK_VALUE(!placed || !options.class_token(),
                    "GridRelativeBias: expected no q_positions or k_positions with class_token, whose tokens are the "
                    "class token and those of the window");
  if (!placed) {
    const auto [q, k] =
        grid_ops::grid_positions(call.query, call.key, options.window(), options.class_token(), "GridRelativeBias");
    added.q_positions = q;
    added.k_positions = k;
  }
  return added;
}

}  // namespace posenc::nn
