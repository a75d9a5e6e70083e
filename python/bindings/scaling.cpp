#include "bindings.h"

#include <posenc/scaling.h>

#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <array>

namespace py = pybind11;
using namespace posenc::scaling;

/// An int among the arguments. Not a bool, which is an int to Python and a mistake here.
struct Whole {
  int64_t value;
  operator int64_t() const { return value; }
};

template <>
struct pybind11::detail::type_caster<Whole> {
  PYBIND11_TYPE_CASTER(Whole, make_caster<int64_t>::name);
  bool load(handle source, bool convert) {
    make_caster<int64_t> number;
    if (PyBool_Check(source.ptr()) || !number.load(source, convert)) {
      return false;
    }
    value.value = cast_op<int64_t>(number);
    return true;
  }
};

void bind_hf_rope(py::module_& m);  // hf_rope.cpp

namespace {

Ramp ramp_from_name(const std::string& name) {
  TORCH_CHECK_VALUE(name == "dims" || name == "turns", "Yarn: expected ramp to be 'dims' or 'turns', but got '", name,
                    "'");
  return name == "dims" ? Ramp::kDims : Ramp::kTurns;
}

std::string ramp_name(Ramp ramp) { return ramp == Ramp::kDims ? "dims" : "turns"; }

template <class S>
S validated(S scaling) {
  validate(scaling);
  return scaling;
}

/// A read-only field, converted to what Python shows.
#define POSENC_FIELD(S, name) def_property_readonly(#name, [](const S& self) { return self.name(); })

/// What makes a class an immutable value: its fields, in the order of the constructor, are its state.
template <class S, size_t N>
void make_value(py::class_<S>& type, const std::array<const char*, N>& names) {
  const auto fields = [names](const py::object& self) {
    py::tuple values(N);
    for (size_t i = 0; i < N; ++i) {
      const py::object value = self.attr(names[i]);
      values[i] = py::isinstance<py::list>(value) ? py::object(py::tuple(value)) : value;
    }
    return values;
  };
  py::tuple match_args(N);
  for (size_t i = 0; i < N; ++i) match_args[i] = names[i];
  type.attr("__match_args__") = match_args;
  type.attr("__module__") = "posenc.scaling";
  type.def(
          "__eq__", [](const S& self, const S& other) { return self == other; }, py::is_operator())
      .def("__hash__",
           [fields](const py::object& self) { return py::hash(py::make_tuple(py::type::of(self), fields(self))); })
      .def("__repr__", [](const S& self) { return to_string(self, /*python_literals=*/true); })
      .def("__reduce__", [fields](const py::object& self) { return py::make_tuple(py::type::of(self), fields(self)); })
      .def("__copy__", [](const py::object& self) { return self; })
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; }, py::arg("memo"));
}

void bind_fixed_factor_types(py::module_& m) {
  py::class_<Linear> linear(m, "Linear", R"(Position interpolation: every frequency divided by ``factor``.

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
  linear.def(py::init([](double factor) { return validated(Linear(factor)); }), py::arg("factor"))
      .POSENC_FIELD(Linear, factor);
  make_value(linear, std::array{"factor"});

  py::class_<NTK> ntk(m, "NTK", R"(NTK-aware scaling: base * factor^(d/(d-2)).

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
  ntk.def(py::init([](double factor) { return validated(NTK(factor)); }), py::arg("factor")).POSENC_FIELD(NTK, factor);
  make_value(ntk, std::array{"factor"});

  py::class_<Proportional> proportional(m, "Proportional", R"(Proportional RoPE of Gemma 4's global layers.

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
  proportional
      .def(py::init([](double fraction, double factor) { return validated(Proportional(fraction).factor(factor)); }),
           py::arg("fraction"), py::arg("factor") = 1.0)
      .POSENC_FIELD(Proportional, fraction)
      .POSENC_FIELD(Proportional, factor);
  make_value(proportional, std::array{"fraction", "factor"});

  py::class_<PRoPE> prope(m, "PRoPE", R"(p-RoPE: only the fastest pairs turn.

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
  prope.def(py::init([](double fraction) { return validated(PRoPE(fraction)); }), py::arg("fraction"))
      .POSENC_FIELD(PRoPE, fraction);
  make_value(prope, std::array{"fraction"});

  py::class_<TruncatedBasis> truncated(m, "TruncatedBasis", R"(Giraffe's truncated basis (arXiv 2308.10882).

    With c = 2 pi / length: theta_k where theta_k >= c, c/16 where c/8 <= theta_k < c, else 0. For fine-tuning.

    Args:
        length: Tokens in which the slowest kept pair makes a full turn, at least 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.TruncatedBasis(2048)
        TruncatedBasis(length=2048)
    )");
  truncated.def(py::init([](Whole length) { return validated(TruncatedBasis(length)); }), py::arg("length"))
      .POSENC_FIELD(TruncatedBasis, length);
  make_value(truncated, std::array{"length"});

  py::class_<PowerBasis> power(m, "PowerBasis", R"(Giraffe's power basis: theta_k (1 - 2k/d)^power (arXiv 2308.10882).

    For fine-tuning.

    Args:
        power: At least 0; 0 is plain RoPE.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> posenc.scaling.PowerBasis(0.5)
        PowerBasis(power=0.5)
    )");
  power.def(py::init([](double exponent) { return validated(PowerBasis(exponent)); }), py::arg("power"))
      .POSENC_FIELD(PowerBasis, power);
  make_value(power, std::array{"power"});
}

void bind_length_dependent_types(py::module_& m) {
  py::class_<DynamicNTK> dynamic(m, "DynamicNTK", R"(NTK-aware scaling by the current length.

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
  dynamic
      .def(py::init([](double factor, Whole original) { return validated(DynamicNTK(factor, original)); }),
           py::arg("factor"), py::arg("original_max_positions"))
      .POSENC_FIELD(DynamicNTK, factor)
      .POSENC_FIELD(DynamicNTK, original_max_positions);
  make_value(dynamic, std::array{"factor", "original_max_positions"});

  py::class_<LongRoPE> long_rope(m, "LongRoPE", R"(LongRoPE: one divisor per pair, from two lists (arXiv 2402.13753).

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
  long_rope
      .def(py::init([](std::vector<double> short_factor, std::vector<double> long_factor, Whole original,
                       std::optional<double> factor, std::optional<double> attention_factor) {
             return validated(LongRoPE(std::move(short_factor), std::move(long_factor), original)
                                  .factor(factor)
                                  .attention_factor(attention_factor));
           }),
           py::arg("short_factor"), py::arg("long_factor"), py::arg("original_max_positions"),
           py::arg("factor") = py::none(), py::arg("attention_factor") = py::none())
      .POSENC_FIELD(LongRoPE, short_factor)
      .POSENC_FIELD(LongRoPE, long_factor)
      .POSENC_FIELD(LongRoPE, original_max_positions)
      .POSENC_FIELD(LongRoPE, factor)
      .POSENC_FIELD(LongRoPE, attention_factor);
  make_value(long_rope,
             std::array{"short_factor", "long_factor", "original_max_positions", "factor", "attention_factor"});
}

void bind_ramp_types(py::module_& m) {
  py::class_<NTKByParts> by_parts(m, "NTKByParts", R"(NTK-by-parts: slow pairs interpolated, fast ones kept.

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
  by_parts
      .def(py::init([](double factor, Whole original, double beta_fast, double beta_slow) {
             return validated(NTKByParts(factor, original).beta_fast(beta_fast).beta_slow(beta_slow));
           }),
           py::arg("factor"), py::arg("original_max_positions"), py::arg("beta_fast") = 32.0,
           py::arg("beta_slow") = 1.0)
      .POSENC_FIELD(NTKByParts, factor)
      .POSENC_FIELD(NTKByParts, original_max_positions)
      .POSENC_FIELD(NTKByParts, beta_fast)
      .POSENC_FIELD(NTKByParts, beta_slow);
  make_value(by_parts, std::array{"factor", "original_max_positions", "beta_fast", "beta_slow"});

  py::class_<Yarn> yarn(m, "Yarn", R"(YaRN: NTK-by-parts and a magnitude on cos and sin (arXiv 2309.00071).

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
  yarn.def(py::init([](double factor, Whole original, double beta_fast, double beta_slow,
                       std::optional<double> attention_factor, std::optional<double> mscale,
                       std::optional<double> mscale_all_dim, bool truncate, const std::string& ramp) {
             return validated(Yarn(factor, original)
                                  .beta_fast(beta_fast)
                                  .beta_slow(beta_slow)
                                  .attention_factor(attention_factor)
                                  .mscale(mscale)
                                  .mscale_all_dim(mscale_all_dim)
                                  .truncate(truncate)
                                  .ramp(ramp_from_name(ramp)));
           }),
           py::arg("factor"), py::arg("original_max_positions"), py::arg("beta_fast") = 32.0,
           py::arg("beta_slow") = 1.0, py::arg("attention_factor") = py::none(), py::arg("mscale") = py::none(),
           py::arg("mscale_all_dim") = py::none(), py::arg("truncate") = true, py::arg("ramp") = "dims")
      .def("softmax_scale", &Yarn::softmax_scale, R"(What multiplies the softmax scale in DeepSeek-V2 and V3.

    g(mscale_all_dim)^2; 1.0 where mscale_all_dim is absent or 0. Apart from the magnitude on cos and sin.

    Example:
        >>> round(posenc.scaling.Yarn(40, 4096, mscale=1, mscale_all_dim=1).softmax_scale(), 7)
        1.8738542
    )")
      .POSENC_FIELD(Yarn, factor)
      .POSENC_FIELD(Yarn, original_max_positions)
      .POSENC_FIELD(Yarn, beta_fast)
      .POSENC_FIELD(Yarn, beta_slow)
      .POSENC_FIELD(Yarn, attention_factor)
      .POSENC_FIELD(Yarn, mscale)
      .POSENC_FIELD(Yarn, mscale_all_dim)
      .POSENC_FIELD(Yarn, truncate)
      .def_property_readonly("ramp", [](const Yarn& self) { return ramp_name(self.ramp()); });
  make_value(yarn, std::array{"factor", "original_max_positions", "beta_fast", "beta_slow", "attention_factor",
                              "mscale", "mscale_all_dim", "truncate", "ramp"});

  py::class_<Llama3> llama3(m, "Llama3", R"(Llama 3.1's scaling.

    With lambda = 2 pi / theta_k: unchanged where lambda < L0 / high_freq_factor, theta_k / factor where
    lambda > L0 / low_freq_factor, between them (1 - t) theta_k / factor + t theta_k with
    t = (L0 / lambda - low_freq_factor) / (high_freq_factor - low_freq_factor). Where the two are equal (Llama 4), t = 0.

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
  llama3
      .def(py::init([](double factor, Whole original, double low_freq_factor, double high_freq_factor) {
             return validated(
                 Llama3(factor, original).low_freq_factor(low_freq_factor).high_freq_factor(high_freq_factor));
           }),
           py::arg("factor"), py::arg("original_max_positions"), py::arg("low_freq_factor") = 1.0,
           py::arg("high_freq_factor") = 4.0)
      .POSENC_FIELD(Llama3, factor)
      .POSENC_FIELD(Llama3, original_max_positions)
      .POSENC_FIELD(Llama3, low_freq_factor)
      .POSENC_FIELD(Llama3, high_freq_factor);
  make_value(llama3, std::array{"factor", "original_max_positions", "low_freq_factor", "high_freq_factor"});
}

#undef POSENC_FIELD

}  // namespace

/// posenc._C.scaling.
void bind_scaling(py::module_& m) {
  bind_fixed_factor_types(m);
  bind_ramp_types(m);
  bind_length_dependent_types(m);
  m.def(
      "frequencies",
      [](int64_t dim, double base, const Scaling& scaling, std::optional<int64_t> seq_len, bool exact) {
        const auto result = frequencies(dim, base, scaling, seq_len, exact);
        return std::make_pair(result.inv_freq, result.attention_scaling);
      },
      py::arg("dim"), py::arg("base") = 10000.0, py::arg("scaling") = py::none(), py::arg("seq_len") = py::none(),
      py::arg("exact") = true);
  m.def("attention_scaling", &attention_scaling, py::arg("scaling"));
  m.def("depends_on_length", &depends_on_length, py::arg("scaling"));
  m.def("encode", &encode, py::arg("scaling"));
  bind_hf_rope(m);
}
