#include "nn/attention_options.h"

#include "common/checks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace posenc::nn {
namespace {

/// Raises where several score encodings cannot act in one attention.
void check_together(const std::vector<ScoreEncoding*>& scores, const std::optional<double>& scale) {
  std::vector<std::string> state;
  std::optional<double> own = scale;
  for (const auto* score : scores) {
    for (const std::string& name : score->token_state_names()) {
      // CoPE takes gate keys in every mode; the layer makes them for those that need them.
      if (name != "gate_key" || score->needs_gate_key()) {
        state.push_back(name);
      }
    }
    const auto of_score = score->own_scale();
    TORCH_CHECK_VALUE(scale || !of_score || !own || *own == *of_score,
                      "Attention: expected scale, as the score encodings multiply q . k by different numbers, ",
                      own.value_or(0.0), " and ", of_score.value_or(0.0), ", but got none");
    own = own ? own : of_score;
  }
  std::sort(state.begin(), state.end());
  const auto twice = std::adjacent_find(state.begin(), state.end());
  TORCH_CHECK_VALUE(twice == state.end(),
                    "Attention: expected at most one score encoding with state of tokens of a kind, but got more with ",
                    twice == state.end() ? "" : *twice);
}

/// Raises where an encoding was made for embeddings or heads of another size.
void check_sizes(const torch::nn::Module& module, const AttentionOptions& o) {
  const auto same = [&](const char* name, const char* own_name, int64_t expected, std::optional<int64_t> actual) {
    TORCH_CHECK_VALUE(actual.value_or(expected) == expected, "Attention: expected ", module.name(), " to have ", name,
                      " ", expected, ", as the block's ", own_name, " is ", expected, ", but got ", *actual);
  };
  if (const auto* absolute = dynamic_cast<const AbsoluteEncoding*>(&module)) {
    same("dim", "embed_dim", o.embed_dim(), absolute->dim());
  }
  if (const auto* rotary = dynamic_cast<const RotaryEncoding*>(&module)) {
    same("head_dim", "head_dim", head_width(o), rotary->head_dim());
    same("num_heads", "num_heads", o.num_heads(), rotary->num_heads());
  }
  if (const auto* score = dynamic_cast<const ScoreEncoding*>(&module)) {
    same("embed_dim", "embed_dim", o.embed_dim(), score->embed_dim());
    same("head_dim", "head_dim", head_width(o), score->head_dim());
    same("num_heads", "num_heads", o.num_heads(), score->num_heads());
  }
}

/// What a layer with keys of another sequence does not have.
void check_cross(const AttentionOptions& o) {
  if (!o.cross()) {
    return;
  }
  TORCH_CHECK_VALUE(!is_causal(o),
                    "Attention: expected is_causal to be false with cross, whose keys are those of "
                    "another sequence");
  TORCH_CHECK_VALUE(!o.window() && !o.window_left() && !o.window_right(),
                    "Attention: expected no window with cross, whose keys are those of another sequence");
  TORCH_CHECK_VALUE(o.encodings().empty(),
                    "Attention: expected no encodings with cross, as queries and keys are tokens of two sequences");
}

void check_scores(const AttentionOptions& o) {
  TORCH_CHECK_VALUE(!o.window() || (!o.window_left() && !o.window_right()),
                    "Attention: expected either window or window_left and window_right, but got both");
  TORCH_CHECK_VALUE(!o.scale() || std::isfinite(*o.scale()), "Attention: expected a finite scale, but got ",
                    o.scale().value_or(0.0));
  TORCH_CHECK_VALUE(!o.softcap() || (std::isfinite(*o.softcap()) && *o.softcap() > 0),
                    "Attention: expected softcap to be positive and finite, but got ", o.softcap().value_or(0.0));
  TORCH_CHECK_VALUE(o.softcap_on() == "content" || (o.softcap_on() == "sum" && o.softcap()),
                    "Attention: expected softcap_on to be 'content', or 'sum' with softcap, but got '", o.softcap_on(),
                    "'");
}

void check_encodings(const AttentionOptions& o) {
  for (const auto& module : o.encodings()) {
    TORCH_CHECK_VALUE(module, "Attention: expected encodings, but got an empty module");
    TORCH_CHECK_TYPE(dynamic_cast<AbsoluteEncoding*>(module.get()) || dynamic_cast<RotaryEncoding*>(module.get()) ||
                         dynamic_cast<ScoreEncoding*>(module.get()),
                     "Attention: expected encodings to be absolute, rotary or score encodings of posenc, but got ",
                     module->name());
  }
  for (const auto& module : o.encodings()) {
    check_sizes(*module, o);
  }
  const auto scores = members<ScoreEncoding>(o.encodings());
  for (const auto* score : scores) {
    TORCH_CHECK_VALUE(
        !score->rotates() || members<RotaryEncoding>(o.encodings()).empty(),
        "Attention: expected no rotary encoding together with a score encoding that rotates queries and keys "
        "itself");
    TORCH_CHECK_VALUE(!score->always_causal() || is_causal(o),
                      "Attention: expected is_causal to be true with a score encoding that is causal by definition");
  }
  if (scores.size() > 1) {
    check_together(scores, o.scale());
  }
}

}  // namespace

void check(const AttentionOptions& o) {
  check_options("Attention", o);
  if (o.head_dim()) {
    check_numbers("Attention", "embed_dim * num_heads * head_dim", {o.embed_dim(), o.num_heads(), *o.head_dim()});
  } else {
    check_numbers("Attention", "embed_dim * embed_dim", {o.embed_dim(), o.embed_dim()});
  }
  TORCH_CHECK_VALUE(o.num_heads() % kv_heads(o) == 0, "Attention: expected num_heads ", o.num_heads(),
                    " to be a multiple of num_kv_heads, but got ", kv_heads(o));
  TORCH_CHECK_VALUE(o.head_dim() || o.embed_dim() % o.num_heads() == 0, "Attention: expected embed_dim ", o.embed_dim(),
                    " to be a multiple of num_heads ", o.num_heads(), ", or head_dim to be given");
  check_cross(o);
  check_scores(o);
  check_encodings(o);
}

}  // namespace posenc::nn
