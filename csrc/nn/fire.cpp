#include <posenc/nn/fire.h>

#include "nn/additive_call.h"
#include "nn/describe.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace posenc::nn {
namespace {

bias_ops::FireParameters parameters_of(FIREImpl& module) {
  const auto &in = module.mlp->at<torch::nn::LinearImpl>(0), &out = module.mlp->at<torch::nn::LinearImpl>(2);
  return {module.c, module.threshold, in.weight, in.bias, out.weight, out.bias};
}

}  // namespace

void check(const FIREOptions& o) { check_options("FIRE", o); }

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
  torch::nn::init::constant_(c, options.c());
  torch::nn::init::constant_(threshold, options.threshold());
}

void FIREImpl::reset_parameters() {
  torch::nn::init::constant_(c, options.c());
  torch::nn::init::constant_(threshold, options.threshold());
  mlp->at<torch::nn::LinearImpl>(0).reset_parameters();
  mlp->at<torch::nn::LinearImpl>(2).reset_parameters();
}

void FIREImpl::pretty_print(std::ostream& stream) const { print_options(stream, "FIRE", options); }

std::tuple<at::Tensor, at::Tensor> FIREImpl::attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                             const at::Tensor& value, const AttendOptions& call) {
  check_token_state(*this, call);
  return bias_ops::fire_attention(query, key, value, parameters_of(*this), options.eps(),
                                  op_options<AttentionFuncOptions>(call).scale(scale_of(call)));
}

ScoreTerms FIREImpl::terms(const ScoreCall& call) {
  return {.bias = bias_ops::fire_bias(parameters_of(*this), options.eps(), span_of(call))};
}

}  // namespace posenc::nn
