#include <posenc/nn/disentangled_relative.h>

#include "common/checks.h"
#include "encodings/disentangled/ops.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

#include <cmath>

namespace posenc::nn {
void check(const DisentangledRelativeOptions& o) {
  check_options("DisentangledRelative", o);
  disentangled_ops::check_buckets(o.max_distance(), o.buckets());
  TORCH_CHECK_VALUE(o.c2p() || o.p2c(), "DisentangledRelative: expected c2p or p2c, but got neither");
  check_numbers("DisentangledRelative", "num_heads * (2 * span) * head_dim",
                {o.num_heads(), 2 * span_of(o), o.head_dim()});
}

int64_t span_of(const DisentangledRelativeOptions& o) {
  return disentangled_ops::span_of(o.max_distance(), o.buckets());
}

DisentangledRelativeImpl::DisentangledRelativeImpl(DisentangledRelativeOptions options) : options(std::move(options)) {
  reset();
}

void DisentangledRelativeImpl::reset() {
  check(options);
  const std::vector<int64_t> sizes{options.num_heads(), 2 * span_of(options), options.head_dim()};
  if (options.c2p()) {
    rel_k = register_parameter("rel_k", unset_parameter(sizes));
  }
  if (options.p2c()) {
    rel_q = register_parameter("rel_q", unset_parameter(sizes));
  }
  reset_parameters();
}

void DisentangledRelativeImpl::reset_parameters() {
  for (auto& table : {rel_k, rel_q}) {
    if (table.defined()) {
      torch::nn::init::normal_(table, 0.0, kInitialStd);
    }
  }
}

void DisentangledRelativeImpl::pretty_print(std::ostream& stream) const {
  print_options(stream, "DisentangledRelative", options);
}

void DisentangledRelativeImpl::add_terms(OpCall& op, const AttendOptions& /*call*/) {
  check_query("DisentangledRelative", op.query, options.head_dim(), options.num_heads());
  check_free("DisentangledRelative", "rel_query", op.options.rel_query().has_value());
  const auto add = [&](std::optional<at::Tensor>& place, const char* name, const at::Tensor& table) {
    if (table.defined()) {
      check_dense("DisentangledRelative", name, table);
      add_table(place, disentangled_ops::table_of_distances(table, options.max_distance(), options.buckets()), -2);
    }
  };
  add(op.options.rel_k(), "rel_k", rel_k);
  add(op.options.rel_q(), "rel_q", rel_q);
}

std::optional<double> DisentangledRelativeImpl::own_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(options.head_dim() * (1 + options.c2p() + options.p2c())));
}

}  // namespace posenc::nn
