#include <posenc/nn/kerple.h>

#include "common/checks.h"
#include "nn/additive_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"

#include <torch/nn/init.h>

namespace posenc::nn {

void check(const KerpleOptions& o) {
  check_options("Kerple", o);
  check_entries("Kerple", "num_heads", o.num_heads());
}

KerpleImpl::KerpleImpl(KerpleOptions options) : options(std::move(options)) { reset(); }

void KerpleImpl::reset() {
  check(options);
  r1 = register_parameter("r1", unset_parameter({options.num_heads()}));
  r2 = register_parameter("r2", unset_parameter({options.num_heads()}));
  reset_parameters();
}

void KerpleImpl::reset_parameters() {
  torch::nn::init::uniform_(r1, 0.0, 2.0);
  torch::nn::init::uniform_(r2, 0.0, 1.0);
}

void KerpleImpl::pretty_print(std::ostream& stream) const { print_options(stream, "Kerple", options); }

ScoreTerms KerpleImpl::terms(const ScoreCall& call) {
  return {.distance_bias = bias_ops::kerple_table(r1, r2, span_of(call), options.kind() == KerpleKind::kPower)};
}

}  // namespace posenc::nn
