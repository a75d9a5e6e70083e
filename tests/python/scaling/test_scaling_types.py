"""Scalings as values: construction, printing, equality, hashing, pickling, and refusal of impossible fields."""

import copy
import doctest
import inspect
import math
import pickle

import pytest
import torch

import posenc
from posenc import _C, positions, scaling
from posenc.hf import rope as hf_rope
from scaling_cases import CASES, IDS


@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
class TestEveryType:
    def test_positional_and_keyword_construction_agree(self, cls, arguments, formula):
        value = cls(**arguments)
        assert cls(*[getattr(value, name) for name in cls.__match_args__]) == value

    def test_fields_read_back(self, cls, arguments, formula):
        value = cls(**arguments)
        for name, given in arguments.items():
            assert getattr(value, name) == given

    def test_fields_cannot_be_written(self, cls, arguments, formula):
        value = cls(**arguments)
        for name in cls.__match_args__:
            with pytest.raises(AttributeError):
                setattr(value, name, getattr(value, name))

    def test_equality_and_hash(self, cls, arguments, formula):
        value, twin = cls(**arguments), cls(**arguments)
        assert value == twin
        assert hash(value) == hash(twin)
        assert value != scaling.Linear(123.0)
        assert value != "a scaling"
        assert value is not None and value != None  # noqa: E711

    def test_every_field_counts_in_equality(self, cls, arguments, formula):
        value = cls(**arguments)
        for name in arguments:
            other = cls(**{**arguments, name: _another(arguments[name])})
            assert other != value

    def test_copies(self, cls, arguments, formula):
        value = cls(**arguments)
        for twin in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert type(twin) is cls
            assert twin == value
            assert repr(twin) == repr(value)

    def test_repr_names_the_given_fields(self, cls, arguments, formula):
        text = repr(cls(**arguments))
        assert text.startswith(f"{cls.__name__}(")
        for name in arguments:
            assert f"{name}=" in text

    def test_encoding_survives_the_dispatcher(self, cls, arguments, formula):
        value = cls(**arguments)
        like = torch.zeros(1)
        through_op = torch.ops.posenc.scaled_inv_freq(like, _C.scaling.encode(value), 64, 1e4, 5000, True)
        assert torch.equal(through_op, scaling.frequencies(64, 1e4, value, 5000)[0])

    def test_documentation(self, cls, arguments, formula):
        assert cls.__module__ == "posenc.scaling"
        assert "Args:" in cls.__doc__ and "Raises:" in cls.__doc__ and ">>>" in cls.__doc__


@pytest.mark.parametrize("module", [scaling, positions, hf_rope], ids=lambda module: module.__name__)
def test_examples_in_docstrings_run(module):
    results = doctest.testmod(module, extraglobs={"posenc": posenc})
    assert results.attempted > 0
    assert results.failed == 0


def _another(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "turns" if value == "dims" else "dims"
    if isinstance(value, list):
        return [*value[:-1], value[-1] + 1]
    return value / 2 if isinstance(value, float) else value + 1


def test_repr_shows_what_is_not_a_default():
    assert repr(scaling.Yarn(4, 8192)) == "Yarn(factor=4, original_max_positions=8192)"
    assert (
        repr(scaling.Yarn(4, 8192, truncate=False, ramp="turns", mscale=0.707))
        == "Yarn(factor=4, original_max_positions=8192, mscale=0.707, truncate=False, ramp='turns')"
    )
    assert repr(scaling.NTKByParts(2.5, 16, 20)) == "NTKByParts(factor=2.5, original_max_positions=16, beta_fast=20)"
    assert repr(scaling.Proportional(0.25)) == "Proportional(fraction=0.25)"
    assert repr(scaling.DynamicNTK(2, 4096)) == "DynamicNTK(factor=2, original_max_positions=4096)"


def test_repr_of_a_short_value_evaluates_to_it():
    for value in (
        scaling.Yarn(4.1, 8192, 30, 2, 1.2, 0.5, 0.6, False, "turns"),
        scaling.LongRoPE([1, 1.5], [2, 4], 8, attention_factor=1.1),
        scaling.Llama3(8, 8192, 2, 5),
    ):
        assert eval(repr(value), vars(scaling)) == value


def test_repr_of_long_lists_is_short():
    text = repr(scaling.LongRoPE([1.0] * 64, [2.0] * 64, 4096))
    assert "64 values" in text
    assert len(text) < 200


def test_match_statement():
    match scaling.Yarn(4, 8192):
        case scaling.Yarn(factor, length, truncate=truncate):
            assert (factor, length, truncate) == (4.0, 8192, True)


def test_every_class_is_public_and_tried():
    classes = {cls for _, cls in inspect.getmembers(scaling, inspect.isclass) if cls.__module__ == "posenc.scaling"}
    assert classes == {cls for cls, _, _ in CASES}
    assert {cls.__name__ for cls in classes} <= set(scaling.__all__)


BAD = [
    (lambda v: scaling.Linear(v), "Linear: expected factor to be positive and finite"),
    (lambda v: scaling.NTK(v), "NTK: expected factor to be positive and finite"),
    (lambda v: scaling.DynamicNTK(v, 16), "DynamicNTK: expected factor to be positive and finite"),
    (lambda v: scaling.NTKByParts(v, 16), "NTKByParts: expected factor to be positive and finite"),
    (lambda v: scaling.NTKByParts(2, 16, beta_fast=v), "NTKByParts: expected beta_fast to be positive and finite"),
    (lambda v: scaling.NTKByParts(2, 16, beta_slow=v), "NTKByParts: expected beta_slow to be positive and finite"),
    (lambda v: scaling.Yarn(v, 16), "Yarn: expected factor to be positive and finite"),
    (lambda v: scaling.Yarn(2, 16, beta_fast=v), "Yarn: expected beta_fast to be positive and finite"),
    (lambda v: scaling.Yarn(2, 16, beta_slow=v), "Yarn: expected beta_slow to be positive and finite"),
    (lambda v: scaling.Yarn(2, 16, attention_factor=v), "Yarn: expected attention_factor to be positive and finite"),
    (lambda v: scaling.LongRoPE([1.0], [v], 16), "LongRoPE: expected every long_factor to be positive and finite"),
    (lambda v: scaling.LongRoPE([v], [1.0], 16), "LongRoPE: expected every short_factor to be positive and finite"),
    (lambda v: scaling.LongRoPE([1.0], [1.0], 16, factor=v), "LongRoPE: expected factor to be positive and finite"),
    (lambda v: scaling.Llama3(v, 16), "Llama3: expected factor to be positive and finite"),
    (lambda v: scaling.Llama3(2, 16, low_freq_factor=v), "Llama3: expected low_freq_factor to be positive and finite"),
    (lambda v: scaling.Llama3(2, 16, high_freq_factor=v), "Llama3: expected high_freq_factor to be positive and"),
    (lambda v: scaling.Proportional(0.5, v), "Proportional: expected factor to be positive and finite"),
]


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize(("build", "message"), BAD, ids=[message.split(" to ")[0] for _, message in BAD])
def test_impossible_numbers_are_refused_with_their_name(build, message, value):
    with pytest.raises(ValueError, match=message):
        build(value)


@pytest.mark.parametrize("length", [0, -4096])
@pytest.mark.parametrize(
    "build",
    [
        lambda n: scaling.DynamicNTK(2, n),
        lambda n: scaling.NTKByParts(2, n),
        lambda n: scaling.Yarn(2, n),
        lambda n: scaling.LongRoPE([1.0], [1.0], n),
        lambda n: scaling.Llama3(2, n),
        lambda n: scaling.TruncatedBasis(n),
    ],
)
def test_impossible_lengths_are_refused(build, length):
    with pytest.raises(ValueError, match=f"to be at least 1 token, but got {length}"):
        build(length)


@pytest.mark.parametrize("cls", [scaling.Proportional, scaling.PRoPE])
@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_fractions_outside_0_to_1_are_refused(cls, fraction):
    with pytest.raises(ValueError, match="expected fraction to be between 0 and 1"):
        cls(fraction)


def test_crossed_bounds_are_refused():
    with pytest.raises(ValueError, match="Yarn: expected beta_slow to be at most beta_fast, but got beta_slow 32"):
        scaling.Yarn(4, 8192, beta_fast=1, beta_slow=32)
    with pytest.raises(ValueError, match="NTKByParts: expected beta_slow to be at most beta_fast"):
        scaling.NTKByParts(4, 8192, beta_fast=1, beta_slow=32)
    with pytest.raises(ValueError, match="Llama3: expected low_freq_factor to be at most high_freq_factor"):
        scaling.Llama3(8, 8192, low_freq_factor=4, high_freq_factor=1)


def test_other_impossible_fields_are_refused():
    with pytest.raises(ValueError, match="Yarn: expected ramp to be 'dims' or 'turns', but got 'pairs'"):
        scaling.Yarn(4, 8192, ramp="pairs")
    with pytest.raises(ValueError, match="Yarn: expected mscale to be finite and at least 0, but got -1"):
        scaling.Yarn(4, 8192, mscale=-1)
    with pytest.raises(ValueError, match="Yarn: expected mscale_all_dim to be finite and at least 0"):
        scaling.Yarn(4, 8192, mscale_all_dim=math.nan)
    with pytest.raises(ValueError, match="PowerBasis: expected power to be finite and at least 0, but got -0.5"):
        scaling.PowerBasis(-0.5)
    with pytest.raises(ValueError, match="LongRoPE: expected original_max_positions above 1"):
        scaling.LongRoPE([1.0], [1.0], 1, factor=4)
    assert scaling.attention_scaling(scaling.LongRoPE([1.0], [1.0], 1, factor=4, attention_factor=2)) == 2


def test_kinds_of_arguments():
    with pytest.raises(TypeError):
        scaling.Linear("4")
    with pytest.raises(TypeError):
        scaling.Yarn(4, 8192.5)
    with pytest.raises(TypeError):
        scaling.frequencies(8, scaling="linear")
