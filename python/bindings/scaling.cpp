/// posenc._C.scaling: scalings as immutable values, and what is computed from them.

#include "options.h"

#include "scaling/fields.h"

namespace posenc::scaling {

/// A scaling whose constructor's arguments are to be overwritten.
template <class S>
S blank() {
  if constexpr (std::is_same_v<S, LongRoPE>) {
    return S({}, {}, 0);
  } else if constexpr (num_required<S> == 2) {
    return S(0.0, 0);
  } else {
    return S(0);
  }
}

}  // namespace posenc::scaling

namespace posenc::python {
namespace {

using namespace scaling;

/// The fields, in the order of the constructor; lists as tuples, which have a hash.
template <class S>
py::tuple fields_of(S scaling) {
  py::list fields;
  visit_fields(scaling, [&](const char*, const auto& field) {
    const py::object value = to_python(field);
    fields.append(py::isinstance<py::list>(value) ? py::object(py::tuple(value)) : value);
  });
  return py::tuple(fields);
}

/// Binds a scaling as an immutable value: a constructor of all its fields, and each as a read-only property.
template <class S>
py::class_<S> bind(py::module_& m, const char* doc) {
  static const std::string name = name_of(Scaling(blank<S>()));
  S defaults = blank<S>();
  ParameterWriter parameters(num_required<S>, kAllByPosition);
  visit_fields(defaults, parameters);

  py::options options;
  options.disable_function_signatures();
  py::class_<S> type(m, name.c_str(), (signature(name.c_str(), parameters.text()) + doc).c_str());
  type.def(py::init([](const py::args& args, const py::kwargs& kwargs) {
             S scaling = blank<S>();
             ArgumentReader reader(name.c_str(), args, kwargs, num_required<S>, kAllByPosition);
             visit_fields(scaling, reader);
             reader.finish();
             validate(scaling);
             return scaling;
           }),
           signature("__init__", "self, " + parameters.text()).c_str());
  py::list names;
  visit_fields(defaults, [&](const char* field, const auto&) {
    names.append(field);
    type.def_property_readonly(field, [wanted = std::string(field)](S self) {
      py::object value;
      visit_fields(self, [&](const char* name, const auto& field) {
        if (name == wanted) {
          value = to_python(field);
        }
      });
      return value;
    });
  });
  type.attr("__match_args__") = py::tuple(names);
  type.attr("__module__") = "posenc.scaling";
  type.def(
          "__eq__", [](const S& self, const S& other) { return self == other; }, py::is_operator())
      .def("__hash__", [](const S& self) { return py::hash(py::make_tuple(py::type::of<S>(), fields_of(self))); })
      .def("__repr__", [](const S& self) { return to_string(self, /*python_literals=*/true); })
      .def("__reduce__", [](const S& self) { return py::make_tuple(py::type::of<S>(), fields_of(self)); })
      .def("__copy__", [](const py::object& self) { return self; })
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; }, py::arg("memo"));
  return type;
}

void bind_fixed_factor_types(py::module_& m) {
  bind<Linear>(m, R"(Position interpolation: every frequency divided by ``factor``.

    theta_k / factor (arXiv 2306.15595). Meant for fine-tuning at the longer length; without it, quality drops at every
    length.

    Args:
        factor: How many times longer the context becomes, above 0.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.Linear(4)
        Linear(factor=4)
    )");

  bind<NTK>(m, R"(NTK-aware scaling: base * factor^(d/(d-2)).

    The slowest pair is slowed by exactly ``factor``, the fastest keeps its frequency. Works without fine-tuning for
    moderate factors.

    Args:
        factor: How many times longer the context becomes, above 0.

    Raises:
        ValueError: A value is out of range, or the rotary width is 2, where d - 2 is 0.

    Example:
        >>> posenc.scaling.NTK(2)
        NTK(factor=2)
    )");

  bind<Proportional>(m, R"(Proportional RoPE of Gemma 4's global layers.

    The floor(fraction * d / 2) fastest pairs turn with theta_k / factor, the exponent over the whole width; the others
    stand still. Pairs span the whole width, so this is not partial rotary, which narrows the width.

    Args:
        fraction: Part of the pairs that turn, 0 to 1 (``partial_rotary_factor`` in a config).
        factor: Divides the frequencies, above 0.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.Proportional(0.25)
        Proportional(fraction=0.25)
    )");

  bind<PRoPE>(m, R"(p-RoPE: only the fastest pairs turn.

    The floor(fraction * d / 2) fastest pairs keep theta_k, the others stand still (arXiv 2410.06205, which favours
    0.75). 1 is RoPE, 0 no position at all.

    Args:
        fraction: Part of the pairs that turn, 0 to 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.frequencies(8, scaling=posenc.scaling.PRoPE(0.75))[0].tolist()[-1]
        0.0
    )");

  bind<TruncatedBasis>(m, R"(Giraffe's truncated basis (arXiv 2308.10882).

    With c = 2 pi / length: theta_k where theta_k >= c, c/16 where c/8 <= theta_k < c, else 0. For fine-tuning.

    Args:
        length: Tokens in which the slowest kept pair makes a full turn, at least 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.TruncatedBasis(2048)
        TruncatedBasis(length=2048)
    )");

  bind<PowerBasis>(m, R"(Giraffe's power basis: theta_k (1 - 2k/d)^power (arXiv 2308.10882).

    For fine-tuning.

    Args:
        power: At least 0; 0 is plain RoPE.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.PowerBasis(0.5)
        PowerBasis(power=0.5)
    )");
}

void bind_ramp_types(py::module_& m) {
  bind<NTKByParts>(m, R"(NTK-by-parts: slow pairs interpolated, fast ones kept.

    (1 - g) theta_k / factor + g theta_k with g = clamp((rho_k - beta_slow) / (beta_fast - beta_slow), 0, 1) and
    rho_k = L0 theta_k / (2 pi), the turns of pair k within L0 (arXiv 2309.00071, eq. 17 to 19). The paper's ramp and no
    magnitude; :class:`Yarn` adds the magnitude and the ramp that checkpoints use.

    Args:
        factor: How many times longer the context becomes, above 0.
        original_max_positions: L0 in tokens, at least 1.
        beta_fast: Pairs with this many turns or more keep their frequency.
        beta_slow: Pairs with this many turns or fewer are slowed by factor. Equal to beta_fast: a step there.

    Raises:
        ValueError: A value is out of range, or beta_slow is above beta_fast.

    Example:
        >>> posenc.scaling.NTKByParts(4, 8192)
        NTKByParts(factor=4, original_max_positions=8192)
    )");

  auto yarn = bind<Yarn>(m, R"(YaRN: NTK-by-parts and a magnitude on cos and sin (arXiv 2309.00071).

    With ``ramp="dims"`` (the authors' code, transformers, every checkpoint) the blend is linear in the index of the
    pair between the pairs that make beta_fast and beta_slow turns within L0, rounded outwards to whole pairs unless
    ``truncate`` is False. ``ramp="turns"`` is linear in turns, as in the paper (see :class:`NTKByParts`).

    The magnitude is ``attention_factor``; else g(mscale) / g(mscale_all_dim) where both are given and not 0; else g(1);
    with g(m) = 0.1 m ln factor + 1, and 1 for factor <= 1. This follows transformers. Others read a factor that
    multiplies the computed magnitude, or ``mscale`` alone: give their product as ``attention_factor``. A tutorial form,
    (0.1 ln factor + 1) * 0.707, is ``attention_factor`` of that value.

    Args:
        factor: How many times longer the context becomes, above 0.
        original_max_positions: L0 in tokens, at least 1.
        beta_fast: Pairs with this many turns or more keep their frequency.
        beta_slow: Pairs with this many turns or fewer are slowed by factor.
        attention_factor: The magnitude itself, above 0.
        mscale: Numerator of the magnitude; 0 counts as absent.
        mscale_all_dim: Denominator of the magnitude; 0 counts as absent.
        truncate: Rounds the ramp's bounds to whole pairs (gpt-oss: False).
        ramp: "dims" or "turns".

    Raises:
        ValueError: A value is out of range, or beta_slow is above beta_fast.

    Example:
        >>> posenc.scaling.Yarn(4, 8192, truncate=False)
        Yarn(factor=4, original_max_positions=8192, truncate=False)
    )");
  yarn.def("softmax_scale", &Yarn::softmax_scale,
           (signature("softmax_scale", "self") + R"(
What multiplies the softmax scale in DeepSeek-V2 and V3.

    g(mscale_all_dim)^2; 1.0 where mscale_all_dim is absent or 0. Apart from the magnitude on cos and sin.

    Example:
        >>> round(posenc.scaling.Yarn(40, 4096, mscale=1, mscale_all_dim=1).softmax_scale(), 7)
        1.8738542
    )")
               .c_str());

  bind<Llama3>(m, R"(Llama 3.1's scaling.

    With lambda = 2 pi / theta_k: unchanged where lambda < L0 / high_freq_factor, theta_k / factor where
    lambda > L0 / low_freq_factor, between them (1 - t) theta_k / factor + t theta_k with
    t = (L0 / lambda - low_freq_factor) / (high_freq_factor - low_freq_factor).
    Where the two are equal (Llama 4), t = 0.

    Args:
        factor: How many times longer the context becomes, above 0.
        original_max_positions: L0 in tokens, at least 1.
        low_freq_factor: Turns within L0 below which a pair is slowed by factor.
        high_freq_factor: Turns within L0 above which a pair keeps its frequency.

    Raises:
        ValueError: A value is out of range, or low_freq_factor is above high_freq_factor.

    Example:
        >>> posenc.scaling.Llama3(8, 8192)
        Llama3(factor=8, original_max_positions=8192)
    )");
}

void bind_length_dependent_types(py::module_& m) {
  bind<DynamicNTK>(m, R"(NTK-aware scaling by the current length.

    base * (factor * n / L0 - (factor - 1))^(d/(d-2)) with n = max(length, L0): no effect up to the original length.
    Depends on the length: keys cached at a shorter length were turned by other frequencies than later queries, so with
    a cache give the module one ``seq_len`` for the whole generation.

    Follows transformers, whose L0 is ``max_position_embeddings``. Its models keep the base of the longest sequence
    seen so far; posenc looks at each call alone.

    Args:
        factor: Above 0.
        original_max_positions: L0 in tokens, at least 1.

    Raises:
        ValueError: A value is out of range, or the rotary width is 2, where d - 2 is 0.

    Example:
        >>> posenc.scaling.DynamicNTK(2, 4096)
        DynamicNTK(factor=2, original_max_positions=4096)
    )");

  bind<LongRoPE>(m, R"(LongRoPE: one divisor per pair, from two lists (arXiv 2402.13753).

    theta_k / long_factor[k] where the length is above L0; theta_k / short_factor[k] at L0, below, and without a length.
    Depends on the length: see :class:`DynamicNTK` about cached keys.

    The magnitude on cos and sin is ``attention_factor``, else sqrt(1 + ln factor / ln L0) where factor > 1, else 1.
    transformers takes ``max_position_embeddings / L0`` where a config gives no factor; so does ``Rotary.from_hf``. The
    paper also leaves the first tokens of a sequence unscaled; no public loader does, and neither does this.

    Args:
        short_factor: (d/2) divisors above 0.
        long_factor: (d/2) divisors above 0.
        original_max_positions: L0 in tokens, at least 1.
        factor: How many times longer the context became; for the magnitude alone.
        attention_factor: The magnitude itself, above 0.

    Raises:
        ValueError: A value is out of range, or the lists differ in length.

    Example:
        >>> posenc.scaling.LongRoPE([1, 1], [2, 4], 8)
        LongRoPE(short_factor=[1, 1], long_factor=[2, 4], original_max_positions=8)
    )");
}

}  // namespace
}  // namespace posenc::python

void bind_scaling(pybind11::module_& m) {
  using namespace posenc::python;
  bind_fixed_factor_types(m);
  bind_ramp_types(m);
  bind_length_dependent_types(m);
  define(
      m, "frequencies",
      [](int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len, bool exact) {
        const auto result = frequencies(dim, base, scaling, seq_len, exact);
        return std::make_pair(result.inv_freq, result.attention_scaling);
      },
      py::arg("dim"), py::arg("base") = 10000.0, py::arg("scaling") = py::none(), py::arg("seq_len") = py::none(),
      py::arg("exact") = true);
  define(m, "attention_scaling", &attention_scaling, py::arg("scaling"));
  define(m, "depends_on_length", &depends_on_length, py::arg("scaling"));
  define(m, "encode", &encode, py::arg("scaling"));
  bind_hf_rope(m);
}
