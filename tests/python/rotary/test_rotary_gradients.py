"""First and second derivatives of the rotary ops: to x, q, k, and to cos, sin, inv_freq and positions where asked."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import layouts
import posenc
import reference
from devices import each_device
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = [pytest.mark.kernels, each_device]

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def wants_grad(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def frequencies(pairs):
    return reference.inverse_frequencies(2 * pairs)


def counted():
    return torch.tensor([3, 0, 11])


# Each entry: op as a function of differentiable float64 tensors, and their shapes. D = 7, R = 4: a tail of 3.
DIFFERENTIABLE = {
    "rotary": (lambda x, **rule: posenc.ops.rotary(x, counted(), frequencies(2), **rule), [(1, 2, 3, 7)]),
    "rotary_offset": (lambda x, **rule: posenc.ops.rotary(x, None, frequencies(2), offset=4, **rule), [(1, 2, 3, 7)]),
    "rotary_qk": (
        lambda q, k, **rule: posenc.ops.rotary_qk(q, k, counted(), frequencies(2), attention_scaling=1.3, **rule),
        [(1, 2, 3, 7), (1, 1, 3, 7)],
    ),
    "rotary_axes": (
        lambda x, f, **rule: posenc.ops.rotary(x, torch.stack([counted(), counted() + 2]), f, axes=[1, 0], **rule),
        [(1, 2, 3, 7), (2,)],
    ),
    "rotary_frequencies": (
        lambda q, k, f, **rule: posenc.ops.rotary_qk(q, k, counted(), f, attention_scaling=0.7, **rule),
        [(1, 2, 3, 7), (1, 1, 3, 7), (2,)],
    ),
    "rotary_frequencies_offset": (
        lambda x, f, **rule: posenc.ops.rotary(x, None, f, offset=torch.tensor([2, 5]), **rule),
        [(2, 2, 3, 7), (2,)],
    ),
    "rotary_frequencies_per_head": (
        lambda x, f, **rule: posenc.ops.rotary(x, torch.stack([counted(), counted() - 1]), f, **rule),
        [(1, 2, 3, 7), (2, 2, 2)],
    ),
    "rotary_frequencies_summed": (
        lambda x, f, **rule: posenc.ops.rotary(x, torch.stack([counted(), counted() - 1]), f, **rule),
        [(1, 2, 3, 7), (2, 2)],
    ),
    "rotary_positions": (
        lambda x, p, f, **rule: posenc.ops.rotary(x, p, f, **rule),
        [(2, 2, 3, 7), (2, 3), (2,)],
    ),
    "rotary_positions_shared": (
        lambda q, k, p, f, **rule: posenc.ops.rotary_qk(q, k, p, f, **rule),
        [(2, 2, 3, 7), (2, 2, 3, 7), (3,), (2,)],
    ),
    "apply_rotary": (
        lambda x, cos, sin, **rule: posenc.ops.apply_rotary(x, cos, sin, **rule),
        [(2, 2, 3, 7), (3, 2), (3, 2)],
    ),
    "apply_rotary_qk": (
        lambda q, k, cos, sin, **rule: posenc.ops.apply_rotary_qk(q, k, cos, sin, **rule),
        [(2, 2, 3, 7), (2, 1, 3, 7), (2, 3, 2), (2, 3, 2)],
    ),
    "apply_rotary_heads": (
        lambda x, cos, sin, **rule: posenc.ops.apply_rotary(x, cos, sin, **rule),
        [(2, 2, 3, 7), (1, 2, 3, 2), (1, 2, 3, 2)],
    ),
}
TABLES = {
    "tables": (lambda p, f: posenc.ops.rotary_tables(p, f, attention_scaling=1.3, dtype=torch.float64), [(3,), (2,)]),
    "tables_offset": (
        lambda f: posenc.ops.rotary_tables(None, f, length=3, offset=2, dtype=torch.float64),
        [(2,)],
    ),
    "tables_axes": (
        lambda p, f: posenc.ops.rotary_tables(p, f, axes=[1, 0], dtype=torch.float64),
        [(2, 2, 3), (2,)],
    ),
    "tables_per_head": (
        lambda p, f: posenc.ops.rotary_tables(p, f, dtype=torch.float64),
        [(2, 3), (2, 2, 2)],
    ),
}


@both_pairings
@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_and_second_derivatives(name, inverse, interleaved):
    op, shapes = DIFFERENTIABLE[name]
    inputs = tuple(wants_grad(*shape) for shape in shapes)

    def run(*tensors):
        return op(*tensors, interleaved=interleaved, inverse=inverse)

    assert gradcheck(run, inputs, check_batched_grad=True, check_forward_ad=True)
    assert gradgradcheck(run, inputs, check_batched_grad=True)


@pytest.mark.parametrize("name", TABLES)
def test_first_and_second_derivatives_of_tables(name):
    op, shapes = TABLES[name]
    inputs = tuple(wants_grad(*shape) for shape in shapes)
    assert gradcheck(op, inputs, check_batched_grad=True, check_forward_ad=True)
    assert gradgradcheck(op, inputs, check_batched_grad=True)


@every_dtype
@both_pairings
@pytest.mark.parametrize("table_fed", [False, True], ids=["table_free", "table_fed"])
def test_gradients_of_every_dtype(table_fed, interleaved, dtype):
    q, k = wants_grad(2, 4, 5, 19, dtype=dtype), wants_grad(2, 2, 5, 19, dtype=dtype)
    grads = torch.randn(2, 4, 5, 19).to(dtype), torch.randn(2, 2, 5, 19).to(dtype)
    inv_freq = frequencies(8)
    if table_fed:
        table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        tables = posenc.ops.rotary_tables(None, inv_freq, length=5, dtype=table_dtype)
        outputs = posenc.ops.apply_rotary_qk(q, k, *tables, interleaved=interleaved)
    else:
        outputs = posenc.ops.rotary_qk(q, k, None, inv_freq, interleaved=interleaved)
    results = torch.autograd.grad(outputs, (q, k), grads)

    wide = [x.detach().double().requires_grad_() for x in (q, k)]
    outputs = [reference.rotary(x, None, inv_freq, interleaved=interleaved) for x in wide]
    expected = torch.autograd.grad(outputs, wide, [g.double() for g in grads])
    for x, result, e, grad in zip((q, k), results, expected, grads, strict=True):
        assert result.dtype == x.dtype
        assert_near(result, e)
        assert_bits(result[..., 16:], grad[..., 16:])


@every_dtype
def test_gradients_of_frequencies_and_tables(dtype):
    """Sums over batch, heads and tokens are made in float32 at least, and have the dtype of what they belong to."""
    x = wants_grad(2, 3, 9, 10, dtype=dtype)
    grad = torch.randn(2, 3, 9, 10).to(dtype)
    inv_freq = frequencies(5).requires_grad_()
    x_grad, f_grad = torch.autograd.grad(posenc.ops.rotary(x, None, inv_freq), (x, inv_freq), grad)
    wide = x.detach().double().requires_grad_()
    expected = torch.autograd.grad(reference.rotary(wide, None, inv_freq), (wide, inv_freq), grad.double())
    assert f_grad.dtype == torch.float64
    assert_near(x_grad, expected[0])
    torch.testing.assert_close(f_grad, expected[1], rtol=1e-5, atol=1e-4)

    tables = [t.requires_grad_() for t in posenc.ops.rotary_tables(None, frequencies(5), length=9)]
    results = torch.autograd.grad(posenc.ops.apply_rotary(x, *tables), tables, grad)
    expected = torch.autograd.grad(reference.rotate(wide, *tables), tables, grad.double())
    for result, e in zip(results, expected, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, e, rtol=1e-5, atol=1e-5)


def test_float32_frequencies_get_float32_gradients():
    inv_freq = frequencies(4).float().requires_grad_()
    x = torch.randn(2, 3, 5, 8)
    posenc.ops.rotary(x, None, inv_freq).square().sum().backward()
    assert inv_freq.grad.dtype == torch.float32
    assert inv_freq.grad.abs().max() < 1e-3, "rotation keeps the norm, so this loss is flat in the frequencies"
    posenc.ops.rotary(x, None, inv_freq).sum().backward()
    assert inv_freq.grad.abs().max() > 1e-2


@pytest.mark.parametrize("wanted", [(True, False), (False, True)], ids=["q_only", "k_only"])
@pytest.mark.parametrize("table_fed", [False, True], ids=["table_free", "table_fed"])
def test_only_one_input_wants_a_gradient(table_fed, wanted):
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    q.requires_grad_(wanted[0])
    k.requires_grad_(wanted[1])
    tables = posenc.ops.rotary_tables(None, frequencies(4), length=5)
    outputs = (
        posenc.ops.apply_rotary_qk(q, k, *tables) if table_fed else posenc.ops.rotary_qk(q, k, None, frequencies(4))
    )
    sum(y.square().sum() for y in outputs if y.requires_grad).backward()
    for x, wants in zip((q, k), wanted, strict=True):
        assert (x.grad is not None) == wants
        if wants:
            torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("used", [0, 1], ids=["q_used", "k_used"])
@pytest.mark.parametrize("table_fed", [False, True], ids=["table_free", "table_fed"])
def test_only_one_output_is_used(table_fed, used):
    """The gradient of the unused output is undefined: it counts as zero."""
    q, k = wants_grad(2, 4, 5, 8, dtype=torch.float32), wants_grad(2, 2, 5, 8, dtype=torch.float32)
    inv_freq = frequencies(4).requires_grad_()
    if table_fed:
        tables = posenc.ops.rotary_tables(None, inv_freq, length=5)
        outputs = posenc.ops.apply_rotary_qk(q, k, *tables)
    else:
        outputs = posenc.ops.rotary_qk(q, k, None, inv_freq)
    outputs[used].sum().backward()
    x = (q, k)[used]
    expected_inv_freq = frequencies(4).requires_grad_()
    wide = x.detach().double().requires_grad_()
    reference.rotary(wide, None, expected_inv_freq).sum().backward()
    assert_near(x.grad, wide.grad)
    torch.testing.assert_close(inv_freq.grad, expected_inv_freq.grad, rtol=1e-5, atol=1e-4)
    other = (q, k)[1 - used].grad
    assert other is None or not other.any()


@both_pairings
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("table_fed", [False, True], ids=["table_free", "table_fed"])
def test_incoming_gradients_of_every_layout(table_fed, layout, interleaved):
    q, k = wants_grad(2, 4, 5, 10, dtype=torch.float32), wants_grad(2, 2, 5, 10, dtype=torch.float32)
    grads = [layouts.make(layout, x.shape, torch.float32) for x in (q, k)]
    tables = [t.requires_grad_() for t in posenc.ops.rotary_tables(None, frequencies(4), length=5)]

    def run():
        if table_fed:
            outputs = posenc.ops.apply_rotary_qk(q, k, *tables, interleaved=interleaved)
        else:
            outputs = posenc.ops.rotary_qk(q, k, None, frequencies(4), interleaved=interleaved)
        return outputs, (q, k, *tables) if table_fed else (q, k)

    results = torch.autograd.grad(*run(), grads)
    expected = torch.autograd.grad(*run(), [g.contiguous() for g in grads])
    for result, e in zip(results[:2], expected[:2], strict=True):
        assert_bits(result, e)
    for result, e in zip(results[2:], expected[2:], strict=True):
        torch.testing.assert_close(result, e, rtol=1e-5, atol=1e-5)


def test_backward_is_the_inverse_op_bit_for_bit():
    x = wants_grad(2, 3, 5, 10, dtype=torch.float32)
    grad = torch.randn(2, 3, 5, 10)
    y = posenc.ops.rotary(x, None, frequencies(4), attention_scaling=1.4)
    (result,) = torch.autograd.grad(y, x, grad)
    assert_bits(result, posenc.ops.rotary(grad, None, frequencies(4), attention_scaling=1.4, inverse=True))


def test_integer_positions_need_no_gradient_and_floating_ones_get_theirs():
    x, inv_freq = torch.randn(2, 3, 5, 8), frequencies(4)
    positions = torch.tensor([0.5, 1.5, 2.0, 7.0, -3.0], requires_grad=True)
    posenc.ops.rotary(x, positions, inv_freq).sum().backward()
    wide = positions.detach().double().requires_grad_()
    reference.rotary(x, wide, inv_freq).sum().backward()
    assert positions.grad.dtype == torch.float32
    torch.testing.assert_close(positions.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)


def test_saved_inputs_changed_in_place_are_noticed():
    x, inv_freq = wants_grad(2, 3, 5, 8), frequencies(4)
    positions = torch.arange(5)
    y = posenc.ops.rotary(x, positions, inv_freq)
    positions.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_nothing_is_saved_but_positions_and_frequencies():
    """Without a gradient for inv_freq the graph holds no copy of q or k."""
    saved = []

    def pack(tensor):
        saved.append(tensor.numel())
        return tensor

    q, k = wants_grad(2, 4, 64, 32, dtype=torch.float32), wants_grad(2, 2, 64, 32, dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        posenc.ops.rotary_qk(q, k, torch.arange(64), frequencies(16))
    assert sum(saved) <= 64 + 16
