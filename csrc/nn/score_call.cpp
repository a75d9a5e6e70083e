#include "nn/score_call.h"

#include "attention/ops.h"
#include "common/checks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/index_select.h>

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>

namespace posenc::nn {
namespace {

/// The class without its namespaces and the suffix Impl, for messages.
std::string class_name(const ScoreEncoding& encoding) {
  std::string name = c10::demangle(typeid(encoding).name());
  name = name.substr(name.rfind(':') + 1);
  const size_t suffix = name.rfind("Impl");
  return suffix != std::string::npos && suffix > 0 && suffix + 4 == name.size() ? name.substr(0, suffix) : name;
}

}  // namespace

OpCall op_call(const std::vector<ScoreEncoding*>& encodings, const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, const AttendOptions& call) {
  OpCall op{.query = query, .key = key, .value = value, .options = op_options<AttentionFuncOptions>(call)};
  for (ScoreEncoding* encoding : encodings) {
    if (!op.options.scale()) {
      op.options.scale(encoding->own_scale());
    }
    encoding->add_terms(op, call);
  }
  return op;
}

std::tuple<at::Tensor, at::Tensor> attend(const OpCall& op) {
  return op.fire != nullptr ? attention_ops::fire_attention(op.query, op.key, op.value, *op.fire, op.options)
                            : attention_with_lse(op.query, op.key, op.value, op.options);
}

std::tuple<at::Tensor, at::Tensor> ScoreEncoding::attend_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                                  const at::Tensor& value, const AttendOptions& call) {
  check_token_state(*this, call);
  return nn::attend(op_call({this}, query, key, value, call));
}

at::Tensor ScoreEncoding::logits(const at::Tensor& query, const at::Tensor& key, const AttendOptions& call) {
  check_token_state(*this, call);
  check_no_dropout(*this, call);
  const OpCall op = op_call({this}, query, key, {}, call);
  return op.fire != nullptr ? attention_ops::fire_logits(op.query, op.key, *op.fire, op.options)
                            : attention_ops::attention_logits(op.query, op.key, op.options);
}

void ScoreEncoding::add_terms(OpCall& /*op*/, const AttendOptions& /*call*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, class_name(*this),
                              ": expected add_terms(), which says what the encoding adds to a call: without it the "
                              "encoding attends alone");
}

void add_term(std::optional<at::Tensor>& place, const at::Tensor& term) { place = place ? *place + term : term; }

void add_table(std::optional<at::Tensor>& place, const at::Tensor& table, int64_t dim) {
  if (!place) {
    place = table;
    return;
  }
  const int64_t radius = std::max(place->size(dim), table.size(dim)) / 2;
  const auto widened = [&](const at::Tensor& x) {
    const int64_t own = x.size(dim) / 2;
    const auto options = x.options().dtype(at::kLong).requires_grad({});
    return own == radius ? x : x.index_select(dim, at::arange(-radius, radius + 1, options).clamp(-own, own) + own);
  };
  place = widened(*place) + widened(table);
}

void check_free_of_axes(const OpCall& op, const char* module) {
  check_free(module, "places on two axes", op.options.grid_bias() || op.options.grid_rel_y());
}

void check_free(const char* module, const char* name, bool taken) {
  TORCH_CHECK_VALUE(!taken, module, ": expected no other encoding with ", name, " in the same attention");
}

void check_width(const char* module, const char* name, const at::Tensor& x, int64_t head_dim) {
  if (x.defined()) {
    check_dense(module, name, x);
  }
  TORCH_CHECK_VALUE(x.defined() && x.dim() == 4 && x.size(3) == head_dim, module, ": expected ", name,
                    " of shape (batch, heads, length, head_dim) with head_dim ", head_dim, ", but got ",
                    x.defined() ? c10::str(x.sizes()) : "an undefined tensor");
}

void check_query(const char* module, const at::Tensor& query, int64_t head_dim, std::optional<int64_t> num_heads) {
  check_width(module, "query", query, head_dim);
  TORCH_CHECK_VALUE(!num_heads || query.size(1) == *num_heads, module,
                    ": expected query of shape (batch, heads, length, head_dim) with num_heads ", num_heads.value_or(0),
                    ", but got ", query.sizes());
}

void check_token_state(const ScoreEncoding& encoding, const AttendOptions& call) {
  const auto taken = encoding.token_state_names();
  for (const auto& [name, tensor] : call.token_state()) {
    if (std::find(taken.begin(), taken.end(), name) == taken.end()) {
      const std::string module = class_name(encoding);
      TORCH_CHECK_VALUE(false, module, ": expected no ", name, ", which ", module,
                        " does not take: leave it out of the call");
    }
  }
}

void check_causal_by_index(const char* module, const AttendOptions& call, const char* reason) {
  TORCH_CHECK_VALUE(call.is_causal().value_or(true), module, ": expected is_causal not to be false: ", reason);
  TORCH_CHECK_VALUE(!call.q_positions() && !call.k_positions(), module,
                    ": expected no q_positions or k_positions: ", reason);
}

void check_no_dropout(const ScoreEncoding& encoding, const AttendOptions& call) {
  TORCH_CHECK_VALUE(call.dropout_p() == 0, class_name(encoding),
                    ": expected no dropout_p in logits, which drop nothing, but got ", call.dropout_p());
}

}  // namespace posenc::nn
