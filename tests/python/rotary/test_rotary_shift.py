"""shift(key, by): keys that were rotated equal keys rotated `by` tokens later, in both languages."""

import pytest
import torch

import posenc
from tolerances import assert_near

in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])

CASES = {
    "plain": lambda nn: nn.Rotary(8),
    "interleaved": lambda nn: nn.Rotary(8, interleaved=True),
    "partial": lambda nn: nn.Rotary(8, rotary_dim=4),
    "partial interleaved": lambda nn: nn.Rotary(8, rotary_dim=4, interleaved=True),
    "yarn": lambda nn: nn.Rotary(8, scaling=posenc.scaling.Yarn(4.0, 16)),
    "one length": lambda nn: nn.Rotary(8, scaling=posenc.scaling.DynamicNTK(2.0, 16), seq_len=64),
    "longrope": lambda nn: nn.Rotary(8, scaling=posenc.scaling.LongRoPE([1.0] * 4, [2.0] * 4, 16), seq_len=64),
    "learnable": lambda nn: nn.Rotary(8, learnable=True),
    "xpos": lambda nn: nn.XPos(8, scale_base=32.0, centre=20.0),
    "xpos halves": lambda nn: nn.XPos(8, scale_base=32.0, interleaved=False),
}


def rotated(rope, k, offset):
    return rope.forward(k, k, offset=offset)[1]


@in_both_languages
@pytest.mark.parametrize("by", [-40, -1, 0, 7])
@pytest.mark.parametrize("case", CASES)
def test_shifted_keys_equal_keys_rotated_at_the_other_place(namespace, case, by):
    rope, k = CASES[case](namespace), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        assert_near(rope.shift(rotated(rope, k, 50), by), rotated(rope, k, 50 + by))
        single = rotated(rope, k.float(), 50)
        torch.testing.assert_close(rope.shift(single, by), rotated(rope, k.float(), 50 + by), rtol=1e-5, atol=1e-5)


def test_the_magnitude_is_not_applied_again():
    rope = CASES["yarn"](posenc.nn)
    k = torch.randn(1, 1, 3, 8, dtype=torch.float64)
    assert rope.attention_scaling > 1.1
    assert_near(rope.shift(k, 5).norm(dim=-1), k.norm(dim=-1))


def test_angles_that_other_libraries_round_are_shifted_to_within_that_rounding():
    rope, k = posenc.nn.Rotary(8, exact=False), torch.randn(1, 1, 3, 8)
    torch.testing.assert_close(rope.shift(rotated(rope, k, 4000), -60), rotated(rope, k, 3940), rtol=1e-3, atol=1e-3)


@in_both_languages
def test_encodings_that_cannot_shift_say_so(namespace):
    k = torch.zeros(1, 1, 2, 8)
    for rope in (namespace.AxialRotary(8), namespace.MultimodalRotary(8, [1, 1, 2])):
        with pytest.raises(NotImplementedError, match=r"Rotary.*: keys that it has rotated cannot be shifted"):
            rope.shift(k, 1)
    dynamic = namespace.Rotary(8, scaling=posenc.scaling.DynamicNTK(2.0, 16))
    with pytest.raises(ValueError, match="Rotary: expected seq_len, one length for all calls, to shift keys"):
        dynamic.shift(k, 1)


@in_both_languages
@pytest.mark.parametrize("name", ["Rotary", "XPos"])
def test_keys_that_do_not_fit_are_refused(namespace, name):
    rope = getattr(namespace, name)(8)
    for wrong in (torch.zeros(1, 2, 4), torch.zeros(1, 1, 2, 4)):
        with pytest.raises(ValueError, match=rf"{name}: expected key of shape \(batch, heads, length, head_dim\)"):
            rope.shift(wrong, 1)
    with pytest.raises(TypeError, match=r"expected to shift keys by an int, but got 0\.5|shift\(\)"):
        rope.shift(torch.zeros(1, 1, 2, 8), 0.5)
