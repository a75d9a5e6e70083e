#pragma once

/// The fields of every scaling in one place, for printing, encoding and Python.

#include <posenc/scaling.h>

#include <array>
#include <type_traits>

namespace posenc::scaling {

/// The names of Yarn's ramps in Python and in text.
constexpr std::array<const char*, 2> value_names(Ramp) { return {"dims", "turns"}; }

/// Calls visit(name, reference) for each field in the order of the constructor: required ones, then options.
template <class Visit>
void visit_fields(std::monostate&, Visit&&) {}

template <class Visit>
void visit_fields(Linear& s, Visit&& visit) {
  visit("factor", s.factor());
}

template <class Visit>
void visit_fields(NTK& s, Visit&& visit) {
  visit("factor", s.factor());
}

template <class Visit>
void visit_fields(DynamicNTK& s, Visit&& visit) {
  visit("factor", s.factor());
  visit("original_max_positions", s.original_max_positions());
}

template <class Visit>
void visit_fields(NTKByParts& s, Visit&& visit) {
  visit("factor", s.factor());
  visit("original_max_positions", s.original_max_positions());
  visit("beta_fast", s.beta_fast());
  visit("beta_slow", s.beta_slow());
}

template <class Visit>
void visit_fields(Yarn& s, Visit&& visit) {
  visit("factor", s.factor());
  visit("original_max_positions", s.original_max_positions());
  visit("beta_fast", s.beta_fast());
  visit("beta_slow", s.beta_slow());
  visit("attention_factor", s.attention_factor());
  visit("mscale", s.mscale());
  visit("mscale_all_dim", s.mscale_all_dim());
  visit("truncate", s.truncate());
  visit("ramp", s.ramp());
}

template <class Visit>
void visit_fields(LongRoPE& s, Visit&& visit) {
  visit("short_factor", s.short_factor());
  visit("long_factor", s.long_factor());
  visit("original_max_positions", s.original_max_positions());
  visit("factor", s.factor());
  visit("attention_factor", s.attention_factor());
}

template <class Visit>
void visit_fields(Llama3& s, Visit&& visit) {
  visit("factor", s.factor());
  visit("original_max_positions", s.original_max_positions());
  visit("low_freq_factor", s.low_freq_factor());
  visit("high_freq_factor", s.high_freq_factor());
}

template <class Visit>
void visit_fields(Proportional& s, Visit&& visit) {
  visit("fraction", s.fraction());
  visit("factor", s.factor());
}

template <class Visit>
void visit_fields(PRoPE& s, Visit&& visit) {
  visit("fraction", s.fraction());
}

template <class Visit>
void visit_fields(TruncatedBasis& s, Visit&& visit) {
  visit("length", s.length());
}

template <class Visit>
void visit_fields(PowerBasis& s, Visit&& visit) {
  visit("power", s.power());
}

/// The class name of each scaling.
inline const char* name_of(const Scaling& scaling) {
  constexpr const char* names[] = {"None",     "Linear", "NTK",          "DynamicNTK", "NTKByParts",     "Yarn",
                                   "LongRoPE", "Llama3", "Proportional", "PRoPE",      "TruncatedBasis", "PowerBasis"};
  static_assert(std::size(names) == std::variant_size_v<Scaling>);
  return names[scaling.index()];
}

/// The same scaling with every option at its default.
template <class S>
S with_default_options(const S& scaling) {
  if constexpr (std::is_same_v<S, NTKByParts> || std::is_same_v<S, Yarn> || std::is_same_v<S, Llama3>) {
    return S(scaling.factor(), scaling.original_max_positions());
  } else if constexpr (std::is_same_v<S, LongRoPE>) {
    return S(scaling.short_factor(), scaling.long_factor(), scaling.original_max_positions());
  } else if constexpr (std::is_same_v<S, Proportional>) {
    return S(scaling.fraction());
  } else {
    return scaling;
  }
}

/// How many fields the constructor takes.
template <class S>
constexpr int num_required = 1;
template <>
inline constexpr int num_required<DynamicNTK> = 2;
template <>
inline constexpr int num_required<NTKByParts> = 2;
template <>
inline constexpr int num_required<Yarn> = 2;
template <>
inline constexpr int num_required<LongRoPE> = 3;
template <>
inline constexpr int num_required<Llama3> = 2;

}  // namespace posenc::scaling
