#include <posenc/nn/disentangled_relative.h>

#include "attention/ops.h"
#include "common/checks.h"
#include "encodings/disentangled/ops.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

#include <cmath>

namespace posenc::nn {
namespace {

/// The options of a call to the op, with the tables by distance.
struct RelativeCall {
  std::optional<at::Tensor> rel_k;
  RelativeAttentionFuncOptions options;
};

RelativeCall relative_call(const DisentangledRelativeImpl& module, const AttendOptions& call) {
  const DisentangledRelativeOptions& o = module.options;
  const auto by_distance = [&](const at::Tensor& table) {
    return table.defined()
               ? std::make_optional(disentangled_ops::table_of_distances(table, o.max_distance(), o.buckets()))
               : std::nullopt;
  };
  RelativeCall result{by_distance(module.rel_k), op_options<RelativeAttentionFuncOptions>(call)};
  result.options.rel_q(by_distance(module.rel_q));
  if (!call.scale()) {
    result.options.scale(1.0 / std::sqrt(static_cast<double>(o.head_dim() * (1 + o.c2p() + o.p2c()))));
  }
  return result;
}

}  // namespace

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

std::tuple<at::Tensor, at::Tensor> DisentangledRelativeImpl::attend_with_lse(const at::Tensor& query,
                                                                             const at::Tensor& key,
                                                                             const at::Tensor& value,
                                                                             const AttendOptions& call) {
  check_query("DisentangledRelative", query, options.head_dim(), options.num_heads());
  check_token_state(*this, call);
  const RelativeCall of_op = relative_call(*this, call);
  return posenc::relative_attention_with_lse(query, key, value, of_op.rel_k, std::nullopt, of_op.options);
}

at::Tensor DisentangledRelativeImpl::logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  check_query("DisentangledRelative", query, options.head_dim(), options.num_heads());
  check_token_state(*this, call);
  check_no_dropout(*this, call);
  const RelativeCall of_op = relative_call(*this, call);
  return attention_ops::relative_attention_logits(query, key, of_op.rel_k, of_op.options);
}

}  // namespace posenc::nn
