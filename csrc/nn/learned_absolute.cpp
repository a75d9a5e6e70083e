#include <posenc/nn/learned_absolute.h>

#include "common/checks.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"

#include <torch/nn/init.h>

namespace posenc::nn {
namespace {

/// A module like `old` with another table.
LearnedAbsolute resized(const LearnedAbsoluteImpl& old, std::vector<int64_t> size,
                        const LearnedAbsoluteResizeOptions& how) {
  absolute_ops::Resize resize;
  resize.size = std::move(size);
  resize.prefix = how.prefix();
  resize.mode = how.mode();
  resize.align_corners = how.align_corners();
  resize.antialias = how.antialias();
  if (how.grid()) {
    resize.grid.emplace(how.grid()->begin(), how.grid()->end());
  }
  const at::Tensor table = absolute_ops::resized_positions(old.weight.detach(), resize);
  LearnedAbsolute module(table.size(0), table.size(1));
  module->weight.set_data(table);
  module->weight.set_requires_grad(old.weight.requires_grad());
  module->train(old.is_training());
  return module;
}

}  // namespace

void check(const LearnedAbsoluteOptions& options) {
  check_options("LearnedAbsolute", options);
  check_numbers("LearnedAbsolute", "max_positions * dim", {options.max_positions(), options.dim()});
}

LearnedAbsoluteImpl::LearnedAbsoluteImpl(LearnedAbsoluteOptions options) : options(std::move(options)) { reset(); }

void LearnedAbsoluteImpl::reset() {
  check(options);
  weight = register_parameter("weight", unset_parameter({options.max_positions(), options.dim()}));
  reset_parameters();
}

void LearnedAbsoluteImpl::reset_parameters() { torch::nn::init::normal_(weight, 0.0, kInitialStd); }

void LearnedAbsoluteImpl::pretty_print(std::ostream& stream) const {
  print_options(stream, "LearnedAbsolute", options);
}

LearnedAbsolute LearnedAbsoluteImpl::resize(int64_t new_positions, const LearnedAbsoluteResizeOptions& how) const {
  return resized(*this, {new_positions}, how);
}

LearnedAbsolute LearnedAbsoluteImpl::resize(LearnedAbsoluteResizeOptions::Grid new_grid,
                                            const LearnedAbsoluteResizeOptions& how) const {
  return resized(*this, {new_grid[0], new_grid[1]}, how);
}

at::Tensor LearnedAbsoluteImpl::forward(const at::Tensor& x, const AbsoluteForwardOptions& call) {
  return absolute_ops::add_learned(x, place_of(call), weight);
}

}  // namespace posenc::nn
