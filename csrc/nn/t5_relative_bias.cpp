#include <posenc/nn/t5_relative_bias.h>

#include "nn/additive_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"

#include <torch/nn/init.h>

#include <cmath>

namespace posenc::nn {

void check(const T5RelativeBiasOptions& o) {
  check_options("T5RelativeBias", o);
  bias_ops::check_buckets("T5RelativeBias", o.num_buckets(), o.max_distance(), o.bidirectional());
  check_entries("T5RelativeBias", "max_distance", o.max_distance());
  check_numbers("T5RelativeBias", "num_buckets * num_heads", {o.num_buckets(), o.num_heads()});
}

double initial_std(const T5RelativeBiasOptions& o) {
  return 1.0 / std::sqrt(64.0 * static_cast<double>(o.num_heads()));
}

T5RelativeBiasImpl::T5RelativeBiasImpl(T5RelativeBiasOptions options) : options(std::move(options)) { reset(); }

void T5RelativeBiasImpl::reset() {
  check(options);
  weight = register_parameter("weight", unset_parameter({options.num_buckets(), options.num_heads()}));
  reset_parameters();
}

void T5RelativeBiasImpl::reset_parameters() { torch::nn::init::normal_(weight, 0.0, initial_std(options)); }

void T5RelativeBiasImpl::pretty_print(std::ostream& stream) const { print_options(stream, "T5RelativeBias", options); }

ScoreTerms T5RelativeBiasImpl::terms(const ScoreCall& call) {
  return {.distance_bias = bias_ops::t5_table(weight, span_of(call), options.max_distance(), options.bidirectional())};
}

}  // namespace posenc::nn
