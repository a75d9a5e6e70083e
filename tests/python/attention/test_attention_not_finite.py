"""NaN and infinities reach only those that see them, forward and backward,
over whole tiles and tiles that masks cut."""

import pytest
import torch

import posenc
from tolerances import assert_bits, assert_near

pytestmark = pytest.mark.kernels

LENGTH, WIDTH = 205, 8
KEYS_OF = {
    "attention": ("key", "value"),
    "relative_attention": ("key", "value"),
    "cope_attention": ("key", "value", "gate_key"),
    "piecewise_attention": ("k_near", "k_far", "value"),
}
OPS = tuple(KEYS_OF)
every_op = pytest.mark.parametrize("op", OPS)
every_key = pytest.mark.parametrize(("op", "where"), [(op, where) for op, keys in KEYS_OF.items() for where in keys])
every_number = pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])


def tensors_of(op, queries=LENGTH):
    query, key = (1, 4, queries, WIDTH), (1, 2, LENGTH, WIDTH)
    shapes = {"query": query, "key": key, "value": key}
    if op == "piecewise_attention":
        shapes = {"q_near": query, "k_near": key, "q_far": query, "k_far": key, "value": key}
    tables = {
        "attention": {"alibi_slopes": (4,), "distance_bias": (4, 31)},
        "relative_attention": {"rel_k": (4, 31, WIDTH), "rel_v": (31, WIDTH), "rel_q": (31, WIDTH)},
        "cope_attention": {"gate_key": key, "pos_emb": (4, WIDTH, 20), "gate_bias": (4,)},
    }
    shapes |= tables.get(op, {})
    return {name: 0.5 * torch.randn(shape) for name, shape in shapes.items()}


def run(op, tensors, grad=None, **rules):
    """out, and the gradients of all tensors."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
    own = {} if op == "cope_attention" else {"is_causal": True}
    if op == "piecewise_attention":
        own["threshold"] = 40
    out = getattr(posenc.ops, op)(**leaves, **own | rules)
    grads = torch.autograd.grad(out, list(leaves.values()), torch.cos(out.detach()) if grad is None else grad)
    return out.detach(), dict(zip(leaves, grads, strict=True))


def spoilt(tensors, where, rows, number):
    """One number of every such row."""
    spoilt = {name: x.clone() for name, x in tensors.items()}
    spoilt[where][:, :, rows, 3] = number
    return spoilt


def mask_without(*keys):
    mask = torch.ones(1, LENGTH, dtype=torch.bool)
    mask[:, list(keys)] = False
    return {"key_mask": mask}


PAST = {"segment_ids": (torch.arange(LENGTH) >= 130).long()[None]}
# Rules, and keys that they hide from the last 60 queries.
HIDDEN = {
    "mask": (mask_without(0, 50, 100, 150, 203), (0, 50, 100, 150, 203)),
    "mask_of_tiles": (mask_without(*range(100), *range(195, LENGTH)), (0, 60, 99, 199)),
    "window": ({"window": 40}, (0, 80, 100)),
    "segments": (PAST, (0, 100, 129)),
    "together": (PAST | {"window": 60} | mask_without(160, 161), (0, 84, 120, 160)),
}


@every_key
@every_number
@pytest.mark.parametrize("rule", HIDDEN)
def test_a_key_that_nobody_sees_changes_nothing(op, where, number, rule):
    rules, keys = HIDDEN[rule]
    tensors = tensors_of(op, queries=60)
    out, grads = run(op, spoilt(tensors, where, keys, number), **rules)
    clean_out, clean_grads = run(op, tensors, **rules)
    assert_near(out, clean_out, scale=4)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, clean_grads[name], rtol=1e-4, atol=1e-4, msg=name)
    assert_bits(grads[where][:, :, list(keys)], torch.zeros_like(grads[where][:, :, list(keys)]))


def sees(rules, key):
    """(Tq): whether each of LENGTH queries sees it."""
    distance = torch.arange(LENGTH) - key
    seen = (distance >= 0) & (distance < rules.get("window", LENGTH))
    if "segment_ids" in rules:
        seen = seen & (rules["segment_ids"][0] == rules["segment_ids"][0, key])
    return seen


REACHING = {"causal": {}, "window": {"window": 40}, "segments": PAST}


@every_key
@every_number
@pytest.mark.parametrize("rule", REACHING)
@pytest.mark.parametrize("key", [0, 95, 96, 160, 204])
def test_a_key_reaches_only_queries_that_see_it(op, where, number, rule, key):
    rules, tensors = REACHING[rule], tensors_of(op)
    out, grads = run(op, spoilt(tensors, where, key, number), **rules)
    clean_out, clean_grads = run(op, tensors, **rules)
    seen = sees(rules, key)
    assert_near(out[:, :, ~seen], clean_out[:, :, ~seen], scale=4)
    for name in (name for name in tensors if name.startswith("q")):
        torch.testing.assert_close(grads[name][:, :, ~seen], clean_grads[name][:, :, ~seen], rtol=1e-4, atol=1e-4)
    if where in ("key", "value") and number != number:
        assert out[:, :, seen].isnan().flatten(2).any(2).all()


@every_op
@every_number
@pytest.mark.parametrize("row", [5, 95, 96, 120, 191])
def test_a_query_reaches_only_keys_that_it_sees(op, number, row):
    """And its gradient too, which is not finite either."""
    tensors = tensors_of(op)
    query = next(iter(tensors))
    out, grads = run(op, spoilt(tensors, query, row, number))
    clean_out, clean_grads = run(op, tensors)
    others = torch.arange(LENGTH) != row
    assert_near(out[:, :, others], clean_out[:, :, others], scale=4)
    for name, grad in grads.items():
        part = others if name.startswith("q") else slice(row + 1, None)
        if name.startswith("q") or name in KEYS_OF[op]:
            text = lambda message, name=name: f"{name}: {message}"  # noqa: E731
            torch.testing.assert_close(grad[:, :, part], clean_grads[name][:, :, part], rtol=1e-4, atol=1e-4, msg=text)


@every_op
@every_number
def test_a_query_that_sees_nothing_reaches_nothing(op, number):
    tensors = tensors_of(op)
    query = next(iter(tensors))
    rules = {"key_mask": (torch.arange(LENGTH) >= 120)[None]}
    out, grads = run(op, spoilt(tensors, query, (0, 5, 95, 96, 100, 119), number), **rules)
    clean_out, clean_grads = run(op, tensors, **rules)
    assert_bits(out, clean_out)
    for name, grad in grads.items():
        text = lambda message, name=name: f"{name}: {message}"  # noqa: E731
        torch.testing.assert_close(grad, clean_grads[name], rtol=1e-4, atol=1e-4, msg=text)
        if name.startswith("q"):
            assert_bits(grad[:, :, :120], torch.zeros_like(grad[:, :, :120]))


@every_op
@every_number
def test_the_gradient_of_a_row_that_sees_nothing_reaches_nothing(op, number):
    tensors = tensors_of(op)
    rules = {"key_mask": (torch.arange(LENGTH) >= 120)[None]}
    grad = torch.randn(1, 4, LENGTH, WIDTH)
    spoilt_grad = grad.clone()
    spoilt_grad[:, :, (3, 100)] = number
    _, grads = run(op, tensors, spoilt_grad, **rules)
    _, clean_grads = run(op, tensors, grad, **rules)
    for name, x in grads.items():
        text = lambda message, name=name: f"{name}: {message}"  # noqa: E731
        torch.testing.assert_close(x, clean_grads[name], rtol=1e-4, atol=1e-4, msg=text)


@every_op
def test_hidden_numbers_of_every_width_of_memory(op):
    """16-bit keys are widened to float32 first."""
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        rules, keys = HIDDEN["together"]
        tensors = {name: x.to(dtype) for name, x in tensors_of(op, queries=60).items()}
        for where in KEYS_OF[op]:
            out, grads = run(op, spoilt(tensors, where, keys, torch.nan), **rules)
            clean_out, clean_grads = run(op, tensors, **rules)
            assert_near(out, clean_out.double(), scale=4)
            for name, grad in grads.items():
                tolerance = 1e-10 if dtype == torch.float64 else 2.0**-6
                torch.testing.assert_close(grad, clean_grads[name], rtol=tolerance, atol=tolerance, msg=name)
