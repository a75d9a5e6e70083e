"""The attention ops as nodes of torch's autograd graphs."""

import gc
import weakref

import pytest
import torch

import posenc
from attention_cases import ONE_OF_EACH, finite, function_of
from devices import each_device
from tolerances import assert_bits

one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)


def leaves_of(case, dtype=torch.float32):
    return {name: x.requires_grad_() for name, x in case.tensors(dtype).items()}


@one_of_each
def test_nodes_are_named_after_their_ops(case):
    out, lse = case.run(leaves_of(case))
    name = "".join(word.capitalize() for word in case.op.split("_")) + "Backward"
    assert out.grad_fn.name() == lse.grad_fn.name() == name
    assert len(out.grad_fn.next_functions) == len(case.tensors())


@one_of_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_some_inputs_are_those_of_all(case, dtype):
    leaves = leaves_of(case, dtype)
    grad = torch.randn_like(case.run(leaves)[0])
    expected = dict(zip(leaves, torch.autograd.grad(case.run(leaves)[0], list(leaves.values()), grad), strict=True))
    for name in leaves:
        # As the one input of a graph whose nodes know the others, and as the one that requires a gradient at all.
        (among,) = torch.autograd.grad(case.run(leaves)[0], leaves[name], grad)
        alone = {n: x if n == name else x.detach() for n, x in leaves.items()}
        (single,) = torch.autograd.grad(case.run(alone)[0], leaves[name], grad)
        assert_bits(among, expected[name])
        assert_bits(single, expected[name])


@one_of_each
def test_backward_twice(case):
    leaves = leaves_of(case)
    out, _ = case.run(leaves)
    first = torch.autograd.grad(out.sum(), list(leaves.values()), retain_graph=True)
    second = torch.autograd.grad(out.sum(), list(leaves.values()))
    for result, e in zip(second, first, strict=True):
        assert_bits(result, e)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


@each_device
@one_of_each
def test_second_derivatives(case):
    """These are derivatives of the plain ATen form, on whatever instruction set."""
    leaves = leaves_of(case, torch.float64)
    assert torch.autograd.gradgradcheck(function_of(case, leaves), tuple(leaves.values()))


@one_of_each
def test_tensors_changed_in_place_are_noticed(case):
    for name in case.tensors():
        leaves = leaves_of(case)
        inputs = {n: x.clone() for n, x in leaves.items()}
        out, _ = case.run(inputs)
        with torch.no_grad():
            inputs[name].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    for changed in (0, 1):
        results = case.run(leaves_of(case))
        with torch.no_grad():
            results[changed].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()


@one_of_each
def test_saved_tensors_go_through_hooks(case):
    leaves = leaves_of(case)
    expected = torch.autograd.grad(case.run(leaves)[0].sum(), list(leaves.values()))
    packed, unpacked = [], []

    def pack(x):
        packed.append(x)
        return len(packed) - 1

    def unpack(i):
        unpacked.append(i)
        return packed[i]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out, _ = case.run(leaves)
    for result, e in zip(torch.autograd.grad(out.sum(), list(leaves.values())), expected, strict=True):
        assert_bits(result, e)
    assert set(range(len(packed))) >= set(unpacked) and len(unpacked) >= len(leaves) + 2


@one_of_each
def test_graphs_are_freed_without_the_garbage_collector(case):
    gc.disable()
    try:
        leaves = leaves_of(case)
        inner = leaves["value"].clone()
        out, lse = case.run(leaves | {"value": inner})
        alive = [weakref.ref(x) for x in (inner, out, lse)]
        del inner
        assert alive[0]() is not None, "the graph keeps it"
        del out, lse
        assert [x() for x in alive] == [None, None, None]
    finally:
        gc.enable()


@one_of_each
@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.5, "scale": 0.3}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_autograd(case, options, dtype, fresh_compiler):
    leaves = leaves_of(case, dtype)
    last = list(leaves)[-1]
    leaves[last].requires_grad_(False)  # numbers of edges and of tensors differ
    wanted = [x for x in leaves.values() if x.requires_grad]

    def loss():
        torch.manual_seed(0)
        out, lse = getattr(posenc.ops, case.op)(**leaves, **(case.options | options), return_lse=True)
        return out.float().pow(2).sum() + finite(lse).sum()

    expected = torch.autograd.grad(loss(), wanted)
    for _ in range(2):  # the second backward runs the graph of the first
        for x in wanted:
            x.grad = None
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            loss().backward()
        for x, e in zip(wanted, expected, strict=True):
            torch.testing.assert_close(x.grad, e)


def test_compiled_autograd_tells_options_apart(fresh_compiler):
    """Calls that differ in an option alone do not share a graph's gradients."""
    q, k, v = (torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"window": 2}, {"scale": 0.5}, {"is_causal": True, "window": 3}):
        expected = torch.autograd.grad(posenc.ops.attention(q, k, v, **options).sum(), (q, k, v))
        q.grad = k.grad = v.grad = None
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            posenc.ops.attention(q, k, v, **options).sum().backward()
        for x, e in zip((q, k, v), expected, strict=True):
            torch.testing.assert_close(x.grad, e)
