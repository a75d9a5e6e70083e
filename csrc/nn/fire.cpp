#include <posenc/nn/fire.h>

#include "nn/additive_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <ATen/ops/zeros_like.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace posenc::nn {
namespace {

attention_ops::FireTerms fire_terms(FIREImpl& module, const bias_ops::Span& span) {
  const auto &in = module.mlp->at<torch::nn::LinearImpl>(0), &out = module.mlp->at<torch::nn::LinearImpl>(2);
  return bias_ops::fire_terms({module.c, module.threshold, in.weight, in.bias, out.weight, out.bias},
                              module.options.eps(), span);
}

void set_c_and_threshold(FIREImpl& module) {
  torch::nn::init::constant_(module.c, module.options.c());
  torch::nn::init::constant_(module.threshold, module.options.threshold());
}

}  // namespace

void check(const FIREOptions& o) {
  check_options("FIRE", o);
  check_numbers("FIRE", "hidden_dim * num_heads", {o.hidden_dim(), o.num_heads()});
}

FIREImpl::FIREImpl(FIREOptions options) : options(std::move(options)) { reset(); }

void FIREImpl::reset() {
  check(options);
  c = register_parameter("c", unset_parameter({1}));
  threshold = register_parameter("threshold", unset_parameter({1}));
  mlp = register_module("mlp", torch::nn::Sequential());
  // One after another, so that initial weights are drawn in the order of the layers.
  mlp->push_back(torch::nn::Linear(1, options.hidden_dim()));
  mlp->push_back(torch::nn::ReLU());
  mlp->push_back(torch::nn::Linear(options.hidden_dim(), options.num_heads()));
  set_c_and_threshold(*this);
}

void FIREImpl::reset_parameters() {
  set_c_and_threshold(*this);
  mlp->at<torch::nn::LinearImpl>(0).reset_parameters();
  mlp->at<torch::nn::LinearImpl>(2).reset_parameters();
}

void FIREImpl::pretty_print(std::ostream& stream) const { print_options(stream, "FIRE", options); }

void FIREImpl::add_terms(OpCall& op, const AttendOptions& call) {
  check_free("FIRE", "FIRE's bias", op.fire != nullptr);
  op.fire = std::make_shared<const attention_ops::FireTerms>(
      fire_terms(*this, {op.query, op.key, call.q_positions(), call.k_positions()}));
}

ScoreTerms FIREImpl::terms(const ScoreCall& call) {
  const auto options = AttentionFuncOptions().q_positions(call.q_positions).k_positions(call.k_positions);
  return {.bias = attention_ops::fire_logits(at::zeros_like(call.query), at::zeros_like(call.key),
                                             fire_terms(*this, span_of(call)), options)};
}

}  // namespace posenc::nn
