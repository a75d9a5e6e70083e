#pragma once

/// The argument lists of the ops, and the registration of their kernels: functions of a Call.

#include "attention/arguments.h"

#include <torch/library.h>

#include <utility>

namespace posenc::attention_ops {

// The arguments that follow those with a place of their own, in every op. is_causal stands apart, as its default
// differs.
#define POSENC_TYPE(slot_, word) , argument::word
#define POSENC_TENSOR_TYPE(word) , argument::word
#define POSENC_OPTION_TYPE(type, word, value) , argument::word
#define POSENC_KEYWORDS                        \
  POSENC_ATTENTION_TERM_INPUTS(POSENC_TYPE)    \
  POSENC_ATTENTION_TENSORS(POSENC_TENSOR_TYPE) \
  POSENC_ATTENTION_OPTIONS(POSENC_OPTION_TYPE)
#define POSENC_ALL_KEYWORDS                                \
  argument::is_causal POSENC_ATTENTION_TABLES(POSENC_TYPE) \
  POSENC_KEYWORDS                                          \
  POSENC_ATTENTION_TABLE_OPTIONS(POSENC_OPTION_TYPE)       \
  POSENC_ATTENTION_MODULE_INPUTS(POSENC_TYPE)              \
  POSENC_ATTENTION_MODULE_TENSORS(POSENC_TENSOR_TYPE)

using AttentionSignature = Signature<3, argument::Required<argument::query>, argument::Required<argument::key>,
                                     argument::Required<argument::value>, POSENC_ALL_KEYWORDS>;
using LogitsSignature =
    Signature<2, argument::Required<argument::query>, argument::Required<argument::key>, POSENC_ALL_KEYWORDS>;
using RelativeSignature = Signature<5, argument::Required<argument::query>, argument::Required<argument::key>,
                                    argument::Required<argument::value>, argument::rel_k, argument::rel_v,
                                    argument::is_causal, argument::rel_query, argument::max_distance_left,
                                    argument::max_distance_right, argument::beyond POSENC_KEYWORDS>;
// Always causal, by index.
using CopeSignature =
    Signature<4, argument::Required<argument::query>, argument::Required<argument::key>,
              argument::Required<argument::value>, argument::Required<argument::pos_emb> POSENC_KEYWORDS>;
using PiecewiseSignature = Signature<6, argument::Required<argument::q_near>, argument::Required<argument::k_near>,
                                     argument::Required<argument::q_far>, argument::Required<argument::k_far>,
                                     argument::Required<argument::value>, argument::Required<argument::threshold>,
                                     argument::causal_by_default POSENC_KEYWORDS>;

#undef POSENC_TYPE
#undef POSENC_TENSOR_TYPE
#undef POSENC_OPTION_TYPE
#undef POSENC_KEYWORDS
#undef POSENC_ALL_KEYWORDS

template <size_t... each>
auto gradients_as_tuple(const Gradients& g, std::index_sequence<each...>) {
  return std::make_tuple(g[each]...);
}
using GradientsTuple = decltype(gradients_as_tuple(std::declval<Gradients>(), std::make_index_sequence<kInputs>()));

using BackwardFunction =
    AttentionSignature::Function<GradientsTuple, const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, const Tensor&, const Tensor&, Wanted>;

/// Functions Residuals(const Call&) and Gradients(const BackwardArgs&, const Call&) as the dispatcher calls them.
template <typename Sig>
struct Entries;
template <int64_t positional, typename... Arguments>
struct Entries<Signature<positional, Arguments...>> {
  template <auto function>
  static Residuals::Tuple forward(argument::ParameterOf<Arguments>... values) {
    return function(Signature<positional, Arguments...>::pack(values...)).tuple();
  }
  template <auto function>
  static GradientsTuple backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& out,
                                 const Tensor& lse, const Tensor& seed, const Tensor& largest, const Tensor& total,
                                 const Tensor& counts, Wanted wanted, argument::ParameterOf<Arguments>... values) {
    BackwardArgs b{grad_out, grad_lse, {out, lse, seed, largest, total, counts}, {}};
    const Call c = Signature<positional, Arguments...>::pack(values...);
    for (int64_t input = 0; input < kInputs; ++input) {
      b.wanted[input] = wanted[input] && c.has(static_cast<Input>(input));
    }
    return gradients_as_tuple(function(b, c), std::make_index_sequence<kInputs>());
  }
};

/// A function OutAndLse(const Call&) or Tensor(const Call&) as the dispatcher calls it.
template <typename Sig, auto function>
constexpr auto kEntry = &Sig::template entry<function>;

/// Registers a backend's kernels.
template <auto attention, auto forward, auto backward>
void register_ops(torch::Library& m) {
  m.impl("attention", kEntry<AttentionSignature, attention>);
  m.impl("_attention_forward", &Entries<AttentionSignature>::template forward<forward>);
  m.impl("_attention_backward", &Entries<AttentionSignature>::template backward<backward>);
}

}  // namespace posenc::attention_ops
