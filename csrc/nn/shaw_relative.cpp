#include <posenc/nn/shaw_relative.h>

#include "common/checks.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

#include <cmath>

namespace posenc::nn {

void check(const ShawRelativeOptions& o) {
  check_options("ShawRelative", o);
  check_numbers("ShawRelative", "max_distance", {o.max_distance()});
  check_numbers("ShawRelative", "num_heads * (2 * max_distance + 1) * head_dim",
                {o.num_heads().value_or(1), 2 * o.max_distance() + 1, o.head_dim()});
}

double initial_bound(const ShawRelativeOptions& o) {
  return std::sqrt(6.0 / static_cast<double>(2 * o.max_distance() + 1 + o.head_dim()));
}

ShawRelativeImpl::ShawRelativeImpl(ShawRelativeOptions options) : options(std::move(options)) { reset(); }

void ShawRelativeImpl::reset() {
  check(options);
  std::vector<int64_t> sizes{2 * options.max_distance() + 1, options.head_dim()};
  if (options.num_heads()) {
    sizes.insert(sizes.begin(), *options.num_heads());
  }
  rel_k = register_parameter("rel_k", unset_parameter(sizes));
  if (options.values()) {
    rel_v = register_parameter("rel_v", unset_parameter(sizes));
  }
  reset_parameters();
}

void ShawRelativeImpl::reset_parameters() {
  const double bound = initial_bound(options);
  for (auto& table : {rel_k, rel_v}) {
    if (table.defined()) {
      torch::nn::init::uniform_(table, -bound, bound);
    }
  }
}

void ShawRelativeImpl::pretty_print(std::ostream& stream) const { print_options(stream, "ShawRelative", options); }

void ShawRelativeImpl::add_terms(OpCall& op, const AttendOptions& /*call*/) {
  check_query("ShawRelative", op.query, options.head_dim(), options.num_heads());
  check_free("ShawRelative", "rel_query", op.options.rel_query().has_value());
  add_table(op.options.rel_k(), rel_k, -2);
  if (rel_v.defined() && op.value.defined()) {
    check_width("ShawRelative", "value", op.value, options.head_dim());
    add_table(op.options.rel_v(), rel_v, -2);
  }
}

}  // namespace posenc::nn
