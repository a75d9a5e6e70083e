"""Options that are numbers: ints serve as floats, numpy scalars as either, and what is no int is refused by name."""

import inspect
import typing

import numpy
import pytest
import torch

import posenc
from tolerances import assert_bits

nn = posenc.nn

# Constructor arguments of every module, with a value for each option that is a number.
MODULES = {
    nn.ALiBi: {"num_heads": 4},
    nn.Attention: {
        "embed_dim": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "dropout": 0.0, "output_dropout": 0.0,
        "window": 3, "scale": 2.0, "softcap": 30.0, "value_dim": 6,
    },
    nn.AxialRotary: {"head_dim": 8, "num_axes": 2, "base": 100.0, "learnable": True, "num_heads": 4},
    nn.CAPE: {
        "dim": 8, "max_global_shift": 5.0, "max_local_shift": 1.0, "max_global_scaling": 2.0, "base": 1000.0,
    },
    nn.CoPE: {"head_dim": 8, "max_positions": 4, "num_heads": 4, "gate_bias": 1.0},
    nn.DecomposedRelative: {"head_dim": 8, "size": (2, 3)},
    nn.DisentangledRelative: {"head_dim": 8, "num_heads": 4, "max_distance": 9, "buckets": 4},
    nn.FIRE: {"num_heads": 4, "hidden_dim": 4, "c": 1.0, "threshold": 512.0, "eps": 1.0},
    nn.ForgettingBias: {"embed_dim": 32, "num_heads": 4},
    nn.GridRelativeBias: {"num_heads": 4, "window": (2, 3)},
    nn.Kerple: {"num_heads": 4},
    nn.KVCache: {"batch_size": 1, "num_kv_heads": 2, "max_length": 4, "head_dim": 8, "value_dim": 6, "window": 3},
    nn.LearnedAbsolute: {"max_positions": 16, "dim": 8},
    nn.MultimodalRotary: {"head_dim": 8, "sections": (1, 1, 2), "rotary_dim": 8, "base": 1000.0, "seq_len": 32},
    nn.ReRoPE: {"head_dim": 8, "window": 3, "leak": 2.0, "base": 1000.0, "log_scale_length": 16},
    nn.Rotary: {"head_dim": 8, "rotary_dim": 4, "base": 1000.0, "seq_len": 32},
    nn.Sandwich: {"num_heads": 4, "dim": 8},
    nn.SelfExtend: {"head_dim": 8, "group": 2, "window": 4, "base": 1000.0},
    nn.ShawRelative: {"head_dim": 8, "max_distance": 4, "num_heads": 4},
    nn.Sinusoidal: {"dim": 8, "base": 1000.0, "num_axes": 2},
    nn.T5RelativeBias: {"num_heads": 4, "num_buckets": 8, "max_distance": 16, "scale": 2.0},
    nn.TransformerXL: {"head_dim": 8, "num_heads": 4, "pos_dim": 16},
    nn.XPos: {"head_dim": 8, "base": 1000.0, "scale_base": 256.0, "centre": 2.0},
}  # fmt: skip
SCALINGS = {
    posenc.scaling.Linear: {"factor": 4.0},
    posenc.scaling.NTK: {"factor": 4.0},
    posenc.scaling.DynamicNTK: {"factor": 4.0, "original_max_positions": 16},
    posenc.scaling.NTKByParts: {"factor": 4.0, "original_max_positions": 16, "beta_fast": 32.0, "beta_slow": 1.0},
    posenc.scaling.Yarn: {
        "factor": 4.0, "original_max_positions": 16, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    posenc.scaling.LongRoPE: {
        "short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [2.0, 2.0, 3.0, 4.0], "original_max_positions": 16,
        "factor": 4.0, "attention_factor": 1.0,
    },
    posenc.scaling.Llama3: {
        "factor": 8.0, "original_max_positions": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    posenc.scaling.Proportional: {"fraction": 1.0, "factor": 2.0},
    posenc.scaling.PRoPE: {"fraction": 1.0},
    posenc.scaling.TruncatedBasis: {"length": 16},
    posenc.scaling.PowerBasis: {"power": 1.0},
}  # fmt: skip


def options_of(kind, *types):
    return [
        (make, name) for make, options in kind.items() for name, value in options.items() if isinstance(value, types)
    ]


def named(case):
    return f"{case[0].__name__}-{case[1]}"


INTS = options_of(MODULES, int)
INTS = [(make, name) for make, name in INTS if name != "learnable"]
FLOATS = options_of(MODULES, float)
every_int = pytest.mark.parametrize("case", INTS, ids=named)
every_float = pytest.mark.parametrize("case", FLOATS, ids=named)


def build(make, options):
    torch.manual_seed(3)
    return make(**options)


def state(module):
    return {} if isinstance(module, nn.KVCache) else dict(module.state_dict())


def assert_equal_modules(one, other):
    assert repr(one) == repr(other)
    for name, value in state(one).items():
        assert_bits(state(other)[name], value)


def test_the_tables_name_every_number_among_the_options():
    for make, options in MODULES.items():
        numbers = {
            name
            for name, parameter in inspect.signature(make.__init__).parameters.items()
            if parameter.annotation in (int, float, int | None, float | None, posenc.ops.keywords.Window)
        }
        assert numbers <= set(options), make
    assert {getattr(nn, name) for name in nn.__all__ if name != "cpp"} >= set(MODULES)
    modules = {
        getattr(nn, name)
        for name in nn.__all__
        if name != "cpp" and not inspect.isabstract(getattr(nn, name)) and "__init__" in vars(getattr(nn, name))
    }
    assert modules <= set(MODULES) | {nn.base.Encoding, nn.OpCall}
    assert set(SCALINGS) == set(typing.get_args(posenc.scaling.Scaling)) - {type(None)}


@every_float
@pytest.mark.parametrize(
    "kind", [int, numpy.int64, numpy.float32, numpy.float64, torch.tensor], ids=lambda k: k.__name__
)
def test_an_option_that_is_a_float_takes_ints_and_scalars_of_numpy(case, kind):
    make, name = case
    options = MODULES[make]
    module = build(make, {**options, name: kind(options[name])})
    assert_equal_modules(module, build(make, options))
    assert type(getattr(module, name, 0.0)) in (float, torch.nn.Parameter)


@every_int
@pytest.mark.parametrize("kind", [numpy.int32, numpy.int64, torch.tensor], ids=lambda k: k.__name__)
def test_an_option_that_is_an_int_takes_scalars_of_numpy(case, kind):
    make, name = case
    options = MODULES[make]
    module = build(make, {**options, name: kind(options[name])})
    assert_equal_modules(module, build(make, options))
    assert type(getattr(module, name)) is int


@every_int
@pytest.mark.parametrize("wrong", [True, numpy.bool_(True), 4.0, numpy.float64(4), "4"], ids=repr)
def test_an_option_that_is_an_int_refuses_bools_and_floats_by_name(case, wrong):
    make, name = case
    with pytest.raises(
        TypeError, match=rf"{make.__name__}: expected {name} to be an int, but got .*{type(wrong).__name__}"
    ):
        make(**{**MODULES[make], name: wrong})


@every_float
@pytest.mark.parametrize("wrong", [True, "4", 1j], ids=repr)
def test_an_option_that_is_a_float_refuses_what_is_no_number_by_name(case, wrong):
    make, name = case
    with pytest.raises(TypeError, match=rf"{make.__name__}: expected {name} to be a number, but got "):
        make(**{**MODULES[make], name: wrong})


@every_int
def test_an_option_that_is_an_int_refuses_numbers_beyond_64_bits(case):
    make, name = case
    with pytest.raises(ValueError, match=rf"expected {name} to be below 2\*\*63, but got"):
        make(**{**MODULES[make], name: 2**64})


def test_positional_options_are_converted_too():
    assert type(nn.Rotary(numpy.int64(8)).head_dim) is int
    with pytest.raises(TypeError, match="ReRoPE: expected window to be an int"):
        nn.ReRoPE(8, 3.0)
    with pytest.raises(TypeError, match="positional"):
        nn.Rotary(8, 4)


def test_lists_of_numbers_take_scalars_of_numpy():
    slopes = numpy.array([0.5, 0.25], dtype=numpy.float32)
    assert_bits(nn.ALiBi(2, slopes=slopes).slopes, torch.tensor([0.5, 0.25], dtype=torch.float64))
    assert repr(nn.ALiBi(2, slopes=slopes)) == repr(nn.ALiBi(2, slopes=[0.5, 0.25]))
    assert repr(nn.ALiBi(2, slopes=[1, 2])) == repr(nn.ALiBi(2, slopes=[1.0, 2.0]))
    assert nn.MultimodalRotary(8, numpy.array([1, 1, 2])).sections == (1, 1, 2)
    with pytest.raises(TypeError, match="MultimodalRotary: expected sections to be an int, but got 1.0"):
        nn.MultimodalRotary(8, [1.0, 1, 2])


@pytest.mark.parametrize("case", options_of(SCALINGS, float), ids=named)
@pytest.mark.parametrize("kind", [int, numpy.int64, numpy.float32], ids=lambda k: k.__name__)
def test_a_float_of_a_scaling_takes_ints_and_scalars_of_numpy(case, kind):
    make, name = case
    options = SCALINGS[make]
    assert make(**{**options, name: kind(options[name])}) == make(**options)


@pytest.mark.parametrize("case", options_of(SCALINGS, int), ids=named)
def test_an_int_of_a_scaling_takes_scalars_of_numpy_and_refuses_the_rest(case):
    make, name = case
    options = SCALINGS[make]
    assert make(**{**options, name: numpy.int32(options[name])}) == make(**options)
    for wrong in (16.0, "16", True):
        with pytest.raises(TypeError, match=name):
            make(**{**options, name: wrong})


def test_numbers_of_ops_take_ints_and_scalars_of_numpy():
    q, positions = torch.randn(1, 2, 5, 8), torch.arange(5)
    inv_freq, _ = posenc.scaling.frequencies(numpy.int64(8), numpy.float32(10000))
    turned = posenc.ops.rotary(q, None, inv_freq, attention_scaling=2.0, offset=3)
    for scaling in (2, numpy.float32(2), numpy.int64(2)):
        assert_bits(posenc.ops.rotary(q, positions + 3, inv_freq, attention_scaling=scaling), turned)
        assert_bits(posenc.ops.rotary(q, None, inv_freq, attention_scaling=scaling, offset=numpy.int64(3)), turned)
    out = posenc.ops.attention(q, q, q, window=3, scale=1.0)
    for scale in (1, numpy.float32(1), numpy.int64(1)):
        assert_bits(posenc.ops.attention(q, q, q, window=numpy.int64(3), scale=scale), out)
    assert_bits(posenc.ops.alibi_slopes(numpy.int64(8)), posenc.ops.alibi_slopes(8))
    cos, _ = posenc.ops.rotary_tables(None, inv_freq, length=numpy.int64(3), centre=1)
    assert cos.shape == (3, 4)
