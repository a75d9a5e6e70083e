"""Frequencies inside torch's modes, and the op that holds a length-dependent scaling in a graph."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from posenc import _C, scaling
from scaling_cases import CASES, IDS
from tolerances import assert_bits

DYNAMIC = scaling.DynamicNTK(2, 16)
LONG = scaling.LongRoPE([1.0] * 4, [2.0, 3.0, 4.0, 5.0], 16, factor=4)


def op(like, value, seq_len, exact=True):
    return torch.ops.posenc.scaled_inv_freq(like, _C.scaling.encode(value), 8, 10000.0, seq_len, exact)


def _under_meta_device(build):
    with torch.device("meta"):
        return build()


def _under_fake_tensors(build):
    with FakeTensorMode():
        return build()


def _under_inference_mode(build):
    with torch.inference_mode():
        return build()


def _under_double_default(build):
    torch.set_default_dtype(torch.float64)
    try:
        return build()
    finally:
        torch.set_default_dtype(torch.float32)


def _under_autocast(build):
    with torch.autocast("cpu", torch.bfloat16):
        return build()


def _under_vmap_and_grad(build):
    found = []

    def inner(x):
        found.append(build())
        return x.sum()

    torch.func.vmap(torch.func.grad(inner))(torch.ones(2, 3))
    return found[0]


MODES = [
    _under_meta_device,
    _under_fake_tensors,
    _under_inference_mode,
    _under_double_default,
    _under_autocast,
    _under_vmap_and_grad,
]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
def test_frequencies_are_plain_numbers_in_every_mode(cls, arguments, formula, mode, exact):
    value = cls(**arguments)
    expected = scaling.frequencies(64, 10000.0, value, 5000, exact)[0]
    found = mode(lambda: scaling.frequencies(64, 10000.0, value, 5000, exact)[0])
    assert type(found) is torch.Tensor
    assert found.device.type == "cpu"
    assert not found.is_inference()
    assert not found.requires_grad
    assert_bits(found, expected)


def test_frequencies_made_in_inference_mode_can_be_trained_with():
    with torch.inference_mode():
        inv_freq, _ = scaling.frequencies(8, exact=False)
    x = torch.ones(4, requires_grad=True)
    (x * inv_freq).sum().backward()
    assert_bits(x.grad, inv_freq)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seq_len", [0, 16, 17, 40])
@pytest.mark.parametrize("value", [DYNAMIC, LONG, None], ids=["dynamic", "long", "none"])
def test_the_op_is_frequencies(value, seq_len, exact):
    for like in (torch.zeros(4), torch.zeros(3, dtype=torch.bfloat16)):
        assert_bits(op(like, value, seq_len, exact), scaling.frequencies(8, 10000.0, value, seq_len, exact)[0])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("value", [DYNAMIC, LONG], ids=["dynamic", "long"])
def test_opcheck(value, exact):
    arguments = (_C.scaling.encode(value), 8, 10000.0, 17, exact)
    for like in (torch.zeros(4), torch.zeros(4, requires_grad=True)):
        torch.library.opcheck(torch.ops.posenc.scaled_inv_freq, (like, *arguments))


def test_meta_result_follows_the_device_and_dtype():
    for exact, dtype in ((True, torch.float64), (False, torch.float32)):
        found = op(torch.zeros(4, device="meta"), DYNAMIC, 17, exact)
        assert found.is_meta
        assert found.dtype == dtype
        assert found.shape == (4,)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_op_checks_what_frequencies_checks(device):
    like = torch.zeros(4, device=device)
    scaled_inv_freq = torch.ops.posenc.scaled_inv_freq
    with pytest.raises(ValueError, match="expected dim to be even"):
        scaled_inv_freq(like, _C.scaling.encode(DYNAMIC), 7, 10000.0, 17)
    with pytest.raises(ValueError, match="expected base to be positive"):
        scaled_inv_freq(like, _C.scaling.encode(DYNAMIC), 8, -1.0, 17)
    for numbers, message in (
        ([99.0], "names type 99"),
        ([0.5], "start with the number of a type"),
        ([-1.0], "start with the number of a type"),
        ([5.0, 4.0], "ends after 2 numbers"),
        ([1.0, 4.0, 4.0], "1 numbers too many"),
        ([3.0, 2.0, 16.5], "expected a whole number"),
        ([1.0, -4.0], "Linear: expected factor to be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            scaled_inv_freq(like, numbers, 8, 10000.0, 17)


@pytest.mark.parametrize("value", [DYNAMIC, LONG], ids=["dynamic", "long"])
@pytest.mark.parametrize("exact", [True, False])
def test_compile_with_a_dynamic_length(value, exact, fresh_compiler):
    like = scaling.frequencies(8, exact=exact)[0]
    numbers = _C.scaling.encode(value)

    @torch.compile(fullgraph=True, dynamic=True)
    def scaled(x):
        return x * torch.ops.posenc.scaled_inv_freq(like, numbers, 8, 10000.0, x.shape[0], exact)

    for length in (5, 16, 17, 40):
        expected = scaling.frequencies(8, 10000.0, value, length, exact)[0]
        x = torch.ones(length, 4, dtype=expected.dtype)
        torch.testing.assert_close(scaled(x), expected.expand(length, 4), rtol=0, atol=0)


def test_export_with_a_dynamic_length():
    numbers = _C.scaling.encode(DYNAMIC)

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return x * torch.ops.posenc.scaled_inv_freq(x, numbers, 8, 10000.0, x.shape[0])

    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Scaled(), (torch.ones(7, 4),), dynamic_shapes={"x": {0: length}})
    for n in (2, 16, 33):
        expected = scaling.frequencies(8, 10000.0, DYNAMIC, n)[0]
        torch.testing.assert_close(program.module()(torch.ones(n, 4))[0], expected, rtol=0, atol=0)
