#include <posenc/nn/transformer_xl.h>

#include "common/checks.h"
#include "encodings/transformer_xl/ops.h"
#include "nn/absolute_call.h"
#include "nn/describe.h"
#include "nn/parameters.h"
#include "nn/score_call.h"

#include <torch/nn/init.h>

namespace posenc::nn {
namespace {

int64_t sinusoid_width(const TransformerXLOptions& o) { return o.pos_dim().value_or(o.num_heads() * o.head_dim()); }

transformer_xl_ops::Terms terms_of(const TransformerXLImpl& module, const at::Tensor& query, const at::Tensor& key,
                                   const AttendOptions& call) {
  const auto& o = module.options;
  check_query("TransformerXL", query, o.head_dim(), o.num_heads());
  check_width("TransformerXL", "key", key, o.head_dim());
  return transformer_xl_ops::terms(
      {module.content_bias, module.position_bias, module.pos_proj, module.inv_freq().to(query.device())},
      {query, key, call.q_positions(), call.k_positions()}, o.layout() == TransformerXLLayout::kInterleaved,
      {.is_causal = call.is_causal().value_or(false),
       .window = call.window(),
       .window_left = call.window_left(),
       .window_right = call.window_right(),
       .has_blocks = call.block_ids().has_value()});
}

}  // namespace

void check(const TransformerXLOptions& o) {
  check_options("TransformerXL", o);
  check_numbers("TransformerXL", "num_heads * head_dim", {o.num_heads(), o.head_dim()});
  const int64_t width = sinusoid_width(o);
  TORCH_CHECK_VALUE(width % 2 == 0, "TransformerXL: expected pos_dim, ", o.pos_dim() ? "" : "num_heads * head_dim, ",
                    "to be even, but got ", width);
  check_entries("TransformerXL", "pos_dim", width);
  check_numbers("TransformerXL", "num_heads * head_dim * pos_dim", {o.num_heads(), o.head_dim(), width});
}

at::Tensor inv_freq(const TransformerXLOptions& o) {
  return sinusoid_frequencies(sinusoid_width(o), 10000.0, SinusoidalLayout::kConcatenated);
}

TransformerXLImpl::TransformerXLImpl(TransformerXLOptions options) : options(std::move(options)) { reset(); }

void TransformerXLImpl::reset() {
  check(options);
  const int64_t heads = options.num_heads(), width = options.head_dim();
  inv_freq_ = nn::inv_freq(options);
  content_bias = register_parameter("content_bias", unset_parameter({heads, width}));
  position_bias = register_parameter("position_bias", unset_parameter({heads, width}));
  pos_proj = register_parameter("pos_proj", unset_parameter({heads * width, sinusoid_width(options)}));
  reset_parameters();
}

void TransformerXLImpl::reset_parameters() {
  for (auto& parameter : {content_bias, position_bias, pos_proj}) {
    torch::nn::init::normal_(parameter, 0.0, kInitialStd);
  }
}

void TransformerXLImpl::pretty_print(std::ostream& stream) const {
  auto shown = options;
  print_options(stream, "TransformerXL", shown.pos_dim(sinusoid_width(options)));
}

void TransformerXLImpl::add_terms(OpCall& op, const AttendOptions& call) {
  const auto [content, position, rel_k] = terms_of(*this, op.query, op.key, call);
  check_free("TransformerXL", "rel_k", op.options.rel_k().has_value());
  op.query = content;
  op.options.rel_query(position).rel_k(rel_k);
}

}  // namespace posenc::nn
