#include <posenc/nn/forgetting_bias.h>

#include "common/checks.h"
#include "encodings/forgetting/ops.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

#include <cmath>

namespace posenc::nn {

void check(const ForgettingBiasOptions& o) {
  check_options("ForgettingBias", o);
  check_numbers("ForgettingBias", "embed_dim * num_heads", {o.embed_dim(), o.num_heads()});
}

ForgettingBiasImpl::ForgettingBiasImpl(ForgettingBiasOptions options) : options(std::move(options)) { reset(); }

void ForgettingBiasImpl::reset() {
  check(options);
  weight = register_parameter("weight", unset_parameter({options.num_heads(), options.embed_dim()}));
  if (options.kind() == ForgettingKind::kFoX) {
    bias = register_parameter("bias", unset_parameter({options.num_heads()}));
  }
  reset_parameters();
}

void ForgettingBiasImpl::reset_parameters() {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (bias.defined()) {
    torch::nn::init::zeros_(bias);
  }
}

void ForgettingBiasImpl::pretty_print(std::ostream& stream) const { print_options(stream, "ForgettingBias", options); }

at::Tensor ForgettingBiasImpl::forward(const at::Tensor& x) {
  return forgetting_ops::log_decay(x, weight, where_defined(bias), options.kind() == ForgettingKind::kCABLE);
}

void ForgettingBiasImpl::add_terms(OpCall& op, const AttendOptions& call) {
  check_causal_by_index("ForgettingBias", call, "decays add up by index, from a query back to a key");
  op.options.is_causal(true);
  add_term(op.options.log_decay(),
           forgetting_ops::decay_terms(call.log_decay(), op.query, op.key, options.num_heads(), call.key_mask()));
}

}  // namespace posenc::nn
