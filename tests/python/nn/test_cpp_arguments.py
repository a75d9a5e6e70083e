"""Arguments of the C++ modules in posenc.nn.cpp and of posenc.scaling,
which follow from descriptions of their options."""

import inspect

import pytest
import torch

import posenc
from posenc import scaling
from posenc.nn import cpp

WRONG_TYPES = {
    "missing": (lambda: cpp.Rotary(), "^Rotary: missing the argument head_dim"),
    "missing second": (lambda: cpp.CoPE(8), "^CoPE: missing the argument max_positions"),
    "missing in a scaling": (lambda: scaling.Yarn(4), "^Yarn: missing the argument original_max_positions"),
    "unknown": (lambda: cpp.Rotary(8, theta=1.0), "^Rotary: got an unexpected argument theta"),
    "twice": (lambda: cpp.Rotary(8, head_dim=8), "^Rotary: got head_dim both by position and by name"),
    "by position": (lambda: cpp.Rotary(8, 4), "^Rotary: expected at most 1 arguments by position, but got 2"),
    "int": (lambda: cpp.Rotary("a"), "^Rotary: expected head_dim to be an int, but got 'a'"),
    "int or None": (lambda: cpp.Rotary(8, seq_len=1.5), "^Rotary: expected seq_len to be an int or None, but got 1.5"),
    "float": (lambda: cpp.Rotary(8, base="b"), "^Rotary: expected base to be a float, but got 'b'"),
    "scaling": (lambda: cpp.Rotary(8, scaling=2), "^Rotary: expected scaling to be a value of posenc.scaling or None"),
    "list": (lambda: cpp.MultimodalRotary(8, 4), "^MultimodalRotary: expected sections to be a list of numbers"),
    "name": (lambda: cpp.Kerple(2, kind=3), "^Kerple: expected kind to be 'log' or 'power', but got 3"),
    "modules": (
        lambda: cpp.Attention(8, 2, encodings=[3]),
        "^Attention: expected encodings to be a list of C.. modules",
    ),
    "dtype": (lambda: cpp.KVCache(1, 1, 1, 1, dtype="f"), "^KVCache: expected dtype to be a dtype, but got 'f'"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_arguments_of_another_type_are_named(case):
    call, message = WRONG_TYPES[case]
    with pytest.raises(TypeError, match=message):
        call()


def test_names_that_an_option_does_not_have_are_refused_with_those_that_it_has():
    names = "'interleaved', 'concatenated', 'tensor2tensor' or 'cosines_first'"
    with pytest.raises(ValueError, match=f"^Sinusoidal: expected layout to be {names}, but got 'mixed'"):
        cpp.Sinusoidal(4, layout="mixed")


def test_state_that_an_encoding_does_not_take_is_refused():
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(TypeError, match="^ALiBi: got an unexpected argument gate_key"):
        cpp.ALiBi(2).attend(q, q, q, gate_key=q)


@pytest.mark.parametrize("name", [name for name in posenc.nn.__all__ if hasattr(cpp, name)])
def test_constructors_in_cpp_take_the_parameters_of_python(name):
    own = inspect.signature(getattr(cpp, name).__init__).parameters
    twin = inspect.signature(getattr(posenc.nn, name).__init__).parameters
    # Windows of two sides are a pair in Python; norms are modules of the language.
    own = {name: p for name, p in own.items() if name not in ("window_left", "window_right")}
    twin = {name: p for name, p in twin.items() if name not in ("q_norm", "k_norm")}
    assert list(own) == list(twin)
    for parameter, other in zip(own.values(), twin.values()):
        assert parameter.kind == other.kind
        assert parameter.default == other.default or name == "KVCache"
