"""The rotary ops under torch.compile, torch.export, torch.func, forward AD, checkpointing and compiled autograd."""

import io

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

import posenc
import reference
from tolerances import assert_bits, assert_near

INV_FREQ = reference.inverse_frequencies(8)
POSITIONS = torch.tensor([4, 0, 2, 2, 9])


def tables(dtype=torch.float32):
    return posenc.ops.rotary_tables(None, INV_FREQ, length=5, dtype=dtype)


def block(q, k, positions):
    """Every op in one graph, with ordinary ops before and after."""
    q, k = posenc.ops.rotary_qk(q * 2, k, positions, INV_FREQ, attention_scaling=1.25)
    cos, sin = posenc.ops.rotary_tables(None, INV_FREQ, length=q.shape[2], offset=1)
    q, k = posenc.ops.apply_rotary_qk(q, k, cos, sin, interleaved=True)
    q = posenc.ops.rotary(q, None, INV_FREQ, offset=q.shape[2], inverse=True)
    return posenc.ops.apply_rotary(q, cos, sin) + 1, k


def tensors(length=5, requires_grad=True, batch=2):
    q, k = torch.randn(batch, 4, length, 10), torch.randn(batch, length, 2, 10).transpose(1, 2)
    return q.requires_grad_(requires_grad), k.detach().requires_grad_(requires_grad)


def assert_same_values_and_gradients(compiled, q, k, positions):
    expected, results = block(q, k, positions), compiled(q, k, positions)
    grads = [torch.randn_like(y) for y in expected]
    for result, e in zip(results, expected, strict=True):
        assert_near(result, e.detach(), scale=4)
        assert result.stride() == e.stride()
    expected_grads = torch.autograd.grad(expected, (q, k), grads)
    for result, e in zip(torch.autograd.grad(results, (q, k), grads), expected_grads, strict=True):
        assert_near(result, e, scale=4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_static(fresh_compiler, backend):
    compiled = torch.compile(block, fullgraph=True, dynamic=False, backend=backend)
    assert_same_values_and_gradients(compiled, *tensors(), POSITIONS)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_dynamic_compiles_once(fresh_compiler, backend):
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for length, batch in ((5, 3), (9, 2), (17, 7)):
        assert_same_values_and_gradients(compiled, *tensors(length, batch=batch), torch.arange(length) + 3)
        torch.compiler.set_stance("fail_on_recompile")


def test_compile_keeps_in_place_ops(fresh_compiler):
    def step(q, k):
        q, k = q.clone(), k.clone()
        posenc.ops.rotary_qk_(q, k, None, INV_FREQ, offset=2)
        posenc.ops.apply_rotary_qk_(q, k, *tables())
        return q, k

    q, k = tensors(requires_grad=False)
    for result, e in zip(torch.compile(step, fullgraph=True, backend="aot_eager")(q, k), step(q, k), strict=True):
        assert_bits(result, e)

    def on_arguments(q, k):
        posenc.ops.rotary_qk_(q, k, None, INV_FREQ)

    expected = posenc.ops.rotary_qk(q, k, None, INV_FREQ)
    torch.compile(on_arguments, fullgraph=True, backend="aot_eager")(q, k)
    assert_bits(q, expected[0])
    assert_bits(k, expected[1])


def test_compile_learnable_frequencies_and_offsets(fresh_compiler):
    def run(x, inv_freq, offsets):
        return posenc.ops.rotary(x, None, inv_freq, offset=offsets)

    x, offsets = torch.randn(2, 3, 5, 8, requires_grad=True), torch.tensor([3, 8])
    inv_freq = INV_FREQ.clone().requires_grad_()
    grad_out = torch.randn(2, 3, 5, 8)
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    results = torch.autograd.grad(compiled(x, inv_freq, offsets), (x, inv_freq), grad_out)
    expected = torch.autograd.grad(run(x, inv_freq, offsets), (x, inv_freq), grad_out)
    assert_bits(results[0], expected[0])
    torch.testing.assert_close(results[1], expected[1], rtol=1e-5, atol=1e-5)


class Block(torch.nn.Module):
    def forward(self, q, k, positions):
        return block(q, k, positions)


def test_export_with_dynamic_dimensions_survives_saving():
    q, k = tensors(requires_grad=False)
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    shapes = {"q": {0: batch, 2: length}, "k": {0: batch, 2: length}, "positions": {0: length}}
    program = torch.export.export(Block(), (q, k, POSITIONS), dynamic_shapes=shapes)
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    module = torch.export.load(stored).module()
    for length, batch in ((5, 2), (11, 3)):
        q, k = tensors(length, requires_grad=False, batch=batch)
        positions = torch.arange(length)
        for result, e in zip(module(q, k, positions), block(q, k, positions), strict=True):
            assert_bits(result, e)


# torch.func. Every function below is an op of one tensor x (B, H, T, D) = (2, 3, 5, 10), in float64.
FUNCTIONS = {
    "rotary": lambda x: posenc.ops.rotary(x, POSITIONS, INV_FREQ, attention_scaling=1.25),
    "rotary_interleaved": lambda x: posenc.ops.rotary(x, None, INV_FREQ, interleaved=True, offset=2),
    "rotary_inverse": lambda x: posenc.ops.rotary(x, POSITIONS, INV_FREQ, inverse=True),
    "rotary_axes": lambda x: posenc.ops.rotary(x, torch.stack([POSITIONS] * 2), INV_FREQ, axes=[0, 1, 0, 1]),
    "rotary_qk": lambda x: sum(posenc.ops.rotary_qk(x, x.flip(1), POSITIONS, INV_FREQ)),
    "apply_rotary": lambda x: posenc.ops.apply_rotary(x, *tables(torch.float64)),
    "apply_rotary_qk": lambda x: sum(
        posenc.ops.apply_rotary_qk(x, x.flip(1), *tables(torch.float64), interleaved=True)
    ),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def matrix_of(function, shape=(1, 2, 5, 10)):
    """The ops are linear in x: the columns of their matrix are the images of the unit vectors."""
    size = torch.Size(shape).numel()
    unit = torch.eye(size, dtype=torch.float64).view(size, *shape)
    return torch.stack([function(e).flatten() for e in unit], dim=1)


@every_function
def test_func_jacobians_and_hessians(name):
    function, shape = FUNCTIONS[name], (1, 2, 5, 10)
    x = torch.randn(shape, dtype=torch.float64)
    size, matrix = x.numel(), matrix_of(function)
    for jacobian in (jacrev(function)(x), torch.func.jacfwd(function)(x)):
        torch.testing.assert_close(jacobian.reshape(size, size), matrix)
    squares = hessian(lambda x: function(x).square().sum())(x)
    torch.testing.assert_close(squares.reshape(size, size), 2 * matrix.t() @ matrix)


@every_function
def test_func_jvp_and_grad(name):
    function = FUNCTIONS[name]
    x, tangent = torch.randn(2, 2, 3, 5, 10, dtype=torch.float64)
    value, derivative = jvp(function, (x,), (tangent,))
    torch.testing.assert_close(value, function(x))
    torch.testing.assert_close(derivative, function(tangent))
    result = grad(lambda x: (function(x) * tangent).sum())(x)
    wide = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((function(wide) * tangent).sum(), wide)
    torch.testing.assert_close(result, expected)


@every_function
@pytest.mark.parametrize("in_dim", [0, 2])
def test_func_vmap(name, in_dim):
    function = FUNCTIONS[name]
    x = torch.randn(3, 2, 3, 5, 10, dtype=torch.float64)
    expected = torch.stack([function(e) for e in x])
    torch.testing.assert_close(vmap(function, in_dims=in_dim)(x.movedim(0, in_dim)), expected)
    result = vmap(grad(lambda x: function(x).pow(3).sum()))(x)
    expected = torch.stack([grad(lambda x: function(x).pow(3).sum())(e) for e in x])
    torch.testing.assert_close(result, expected)


def test_func_vmap_over_positions_and_frequencies():
    x, positions = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randint(0, 9, (4, 5))
    result = vmap(lambda p: posenc.ops.rotary(x, p, INV_FREQ))(positions)
    torch.testing.assert_close(result, torch.stack([posenc.ops.rotary(x, p, INV_FREQ) for p in positions]))
    frequencies = torch.rand(4, 4, dtype=torch.float64)
    result = vmap(lambda f: posenc.ops.rotary(x, POSITIONS, f))(frequencies)
    torch.testing.assert_close(result, torch.stack([posenc.ops.rotary(x, POSITIONS, f) for f in frequencies]))


def test_func_per_sample_gradients_of_a_learnable_module():
    module = posenc.nn.Rotary(8, learnable=True).double()
    parameters = dict(module.named_parameters())
    samples, targets = torch.randn(2, 6, 1, 3, 5, 8, dtype=torch.float64)

    def loss(parameters, x, target):
        return (torch.func.functional_call(module, parameters, (x,)) * target).sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, samples, targets)["inv_freq"]
    assert per_sample.shape == (6, 4)
    for i in range(6):
        single = parameters["inv_freq"].detach().clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss({"inv_freq": single}, samples[i], targets[i]), single)
        torch.testing.assert_close(per_sample[i], expected)


@every_function
def test_forward_ad(name):
    function = FUNCTIONS[name]
    x, tangent = torch.randn(2, 2, 3, 5, 10, dtype=torch.float64)
    with forward_ad.dual_level():
        primal, derivative = forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent)))
    torch.testing.assert_close(primal, function(x))
    torch.testing.assert_close(derivative, function(tangent))


def test_forward_ad_of_frequencies():
    x, f, df = torch.randn(1, 2, 5, 8, dtype=torch.float64), INV_FREQ.clone(), torch.rand(4, dtype=torch.float64)
    step = 1e-6
    run = lambda f: posenc.ops.rotary(x, POSITIONS, f)  # noqa: E731
    with forward_ad.dual_level():
        derivative = forward_ad.unpack_dual(run(forward_ad.make_dual(f, df))).tangent
    torch.testing.assert_close(derivative, (run(f + step * df) - run(f - step * df)) / (2 * step), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["hooks", "reentrant"])
def test_activation_checkpointing(use_reentrant):
    q, k = tensors()
    expected = block(q, k, POSITIONS)
    results = checkpoint(block, q, k, POSITIONS, use_reentrant=use_reentrant)
    grads = [torch.randn_like(y) for y in expected]
    expected_grads = torch.autograd.grad(expected, (q, k), grads)
    q.grad = k.grad = None
    torch.autograd.backward(results, grads)
    assert_bits(q.grad, expected_grads[0])
    assert_bits(k.grad, expected_grads[1])


def test_compiled_autograd(fresh_compiler):
    q, k = tensors()
    inv_freq = INV_FREQ.clone().requires_grad_()

    def loss():
        rotated = posenc.ops.rotary_qk(q, k, POSITIONS, inv_freq)
        return sum(y.pow(3).sum() for y in posenc.ops.apply_rotary_qk(*rotated, *tables()))

    expected = torch.autograd.grad(loss(), (q, k, inv_freq))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss().backward()
    for result, e in zip((q.grad, k.grad, inv_freq.grad), expected, strict=True):
        torch.testing.assert_close(result, e, rtol=1e-5, atol=1e-5)
