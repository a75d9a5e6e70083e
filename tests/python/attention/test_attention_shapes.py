"""Sizes around those of the kernels' tiles and vectors, layouts, positions and dtypes, forward and backward.

Outputs and the gradients of all tensors against plain sums in float64.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import attention_op_reference
import layouts
import posenc
from attention_calls import OPS, every_op
from attention_cases import finite
from tolerances import assert_bits

pytestmark = pytest.mark.kernels

# Relative to the largest value of a tensor; 16-bit gradients see out rounded to 16 bits.
BOUNDS = {
    torch.float64: (1e-13, 1e-12),
    torch.float32: (2e-6, 1e-5),
    torch.bfloat16: (2.0**-8, 2.0**-7),
    torch.float16: (2.0**-11, 2.0**-9),
}


@dataclass(frozen=True)
class Shapes:
    """Sizes of a call; `rules` are its other options."""

    name: str
    queries: int = 5
    keys: int = 7
    width: int = 8
    value_width: int = 8
    heads: int = 2
    groups: int = 2
    batch: int = 1
    entries: int = 13
    rules: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def tensors(self, op, dtype, layout="contiguous"):
        make = lambda *shape: layouts.make(layout, shape, torch.float64)  # noqa: E731
        query = (self.batch, self.heads, self.queries, self.width)
        key = (self.batch, self.groups, self.keys, self.width)
        made = {"query": make(*query), "key": make(*key), "value": make(*key[:3], self.value_width)}
        if op == "attention":
            made["alibi_slopes"] = torch.rand(self.heads).double() / 10
            made["distance_bias"] = torch.randn(self.heads, self.entries).double()
        elif op == "relative_attention":
            made["rel_k"] = torch.randn(self.heads, self.entries, self.width).double() / 2
            made["rel_v"] = torch.randn(self.entries, self.value_width).double()
        elif op == "cope_attention":
            made["pos_emb"] = torch.randn(self.heads, self.width, self.entries).double() * self.width**-0.5 / 3
            made["gate_key"] = make(*key)
            made["gate_bias"] = torch.randn(self.heads).double()
        else:
            made = {"q_near": made["query"], "k_near": made["key"], "q_far": make(*query), "k_far": make(*key)} | {
                "value": made["value"]
            }
        return {name: x.to(dtype).requires_grad_() for name, x in made.items()}

    def options(self, op):
        own = {"threshold": 20} if op == "piecewise_attention" else {}
        return (own if op == "cope_attention" else {"is_causal": True} | own) | self.rules


def results(call, tensors, grads):
    """out, lse and the gradients of all tensors."""
    out, lse = call(tensors)
    wide = grads[0].dtype
    gradients = torch.autograd.grad(
        (out.to(wide), finite(lse).to(wide)), list(tensors.values()), grads, allow_unused=True, materialize_grads=True
    )
    return {"out": out.detach(), "lse": finite(lse).detach()} | dict(zip(tensors, gradients, strict=True))


def assert_equals_plain_sums(op, shapes, dtype, layout="contiguous"):
    tensors = shapes.tensors(op, dtype, layout)
    wide = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    options = shapes.options(op)
    shape = (shapes.batch, shapes.heads, shapes.queries)
    grads = (torch.randn(*shape, shapes.value_width).double(), torch.randn(shape).double())
    ours = results(lambda x: getattr(posenc.ops, op)(**x, **options, return_lse=True), tensors, grads)
    plain = results(lambda x: getattr(attention_op_reference, op)(**x, **options), wide, grads)
    of_values, of_gradients = BOUNDS[dtype]
    for name, expected in plain.items():
        bound = of_values if name in ("out", "lse") else of_gradients
        if name in ("gate_bias", "alibi_slopes"):
            bound *= 8  # one number for a head, in which what all pairs add cancels
        largest = max(1.0, expected.abs().max().item())
        text = lambda message, name=name: f"{name}: {message}"  # noqa: E731
        torch.testing.assert_close(ours[name].double(), expected, rtol=0, atol=bound * largest, msg=text)
        if name in tensors:
            assert ours[name].dtype == dtype


WIDTHS = (1, 3, 17, 63, 80, 129, 256, 300)


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("width", "value_width"), [*zip(WIDTHS, reversed(WIDTHS), strict=True), (64, 64), (1, 1)])
def test_widths(op, dtype, width, value_width):
    assert_equals_plain_sums(op, Shapes("", 9, 11, width, value_width, heads=4), dtype)


LENGTHS = [
    Shapes("one_token", 1, 1),
    Shapes("one_query", 1, 193),
    Shapes("one_key", 97, 1),
    Shapes("95", 95, 95, heads=1, groups=1),
    Shapes("96", 96, 96, heads=1, groups=1),
    Shapes("97", 97, 97, heads=1, groups=1),
    Shapes("193", 193, 193, heads=1, groups=1),
    Shapes("fewer_queries", 40, 193),
    Shapes("fewer_queries_than_a_tile", 96, 193, heads=1, groups=1),
    Shapes("more_queries", 193, 40, heads=1, groups=1),
    Shapes("one_group", 33, 99, heads=3, groups=1),
    Shapes("two_groups", 11, 97, heads=6, groups=2, batch=2),
]


@every_op
@pytest.mark.parametrize("shapes", LENGTHS, ids=str)
def test_lengths(op, shapes):
    assert_equals_plain_sums(op, shapes, torch.float32)


@every_op
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_lengths_in_other_dtypes(op, dtype):
    for shapes in LENGTHS[-2:]:
        assert_equals_plain_sums(op, shapes, dtype)


@every_op
@pytest.mark.parametrize("layout", ["transposed", "packed", "columns_outside", "every_second", *layouts.EXPANDED])
def test_layouts(op, layout):
    assert_equals_plain_sums(op, Shapes("", 13, 100, 12, 20, heads=4, batch=2), torch.float32, layout)


def shuffled(length, seed, step=1):
    return step * torch.randperm(length, generator=torch.Generator().manual_seed(seed))


KEYS, QUERIES = 197, 99
SEGMENTS = (torch.arange(KEYS) // 70)[None]
HOLES = (torch.arange(KEYS) % 5 != 2)[None]
FAR_PADS = (torch.arange(KEYS) >= 110)[None]
RULES = {
    "not_causal": {"is_causal": False},
    "window": {"window": 30},
    "window_of_a_tile": {"window": 96},
    "two_sided_window": {"window": 50, "is_causal": False},
    "segments": {"segment_ids": SEGMENTS},
    "holes": {"key_mask": HOLES},
    "padded_left": {"key_mask": FAR_PADS},
    "padded_right": {"key_mask": ~FAR_PADS},
    "together": {"key_mask": HOLES, "segment_ids": SEGMENTS, "window": 45, "scale": 0.2},
    "consecutive": {"q_positions": torch.arange(QUERIES) + 150, "k_positions": torch.arange(KEYS)},
    "queries_before_keys": {"q_positions": torch.arange(QUERIES) - 40, "k_positions": torch.arange(KEYS)},
    "shuffled": {"q_positions": shuffled(QUERIES, 1) + 60, "k_positions": shuffled(KEYS, 2)},
    "shuffled_not_causal": {
        "q_positions": shuffled(QUERIES, 1),
        "k_positions": shuffled(KEYS, 2),
        "is_causal": False,
    },
    "shuffled_window": {"q_positions": shuffled(QUERIES, 3) + 60, "k_positions": shuffled(KEYS, 4), "window": 25},
    "apart": {"q_positions": shuffled(QUERIES, 5, 7), "k_positions": shuffled(KEYS, 6, 3)},
    "restarting": {"q_positions": torch.arange(QUERIES) % 37, "k_positions": torch.arange(KEYS) % 61},
}


def by_index(rules):
    """Whether the rules are among those of cope_attention."""
    return not rules.keys() & {"is_causal", "q_positions", "k_positions"}


@pytest.mark.parametrize(
    ("op", "rule"), [(op, rule) for op in OPS for rule in RULES if op != "cope_attention" or by_index(RULES[rule])]
)
def test_rules(op, rule):
    assert_equals_plain_sums(op, Shapes("", QUERIES, KEYS, 5, 6, heads=1, groups=1, rules=RULES[rule]), torch.float32)


@pytest.mark.parametrize("threshold", [1, 95, 96, 97, 150, 500])
@pytest.mark.parametrize("rule", ["plain", "shuffled", "not_causal"])
def test_thresholds(threshold, rule):
    rules = {"threshold": threshold} | RULES.get(rule, {})
    assert_equals_plain_sums(
        "piecewise_attention", Shapes("", QUERIES, KEYS, 5, 6, rules=rules, heads=1, groups=1), torch.float32
    )


@pytest.mark.parametrize("entries", [1, 3, 101, 191, 193, 501])
@pytest.mark.parametrize("rule", ["plain", "shuffled", "not_causal", "window", "queries_before_keys"])
def test_tables_over_distances_of_any_length(entries, rule):
    """Shorter than a tile, as long as one, and longer than all keys."""
    shapes = Shapes("", QUERIES, KEYS, 5, 6, heads=1, groups=1, rules=RULES.get(rule, {}), entries=entries)
    assert_equals_plain_sums("relative_attention", shapes, torch.float32)


@pytest.mark.parametrize("entries", [1, 2, 31, 33, 97, 300])
def test_tables_over_contextual_positions_of_any_length(entries):
    shapes = Shapes("", QUERIES, KEYS, 5, 6, heads=1, groups=1, entries=entries)
    assert_equals_plain_sums("cope_attention", shapes, torch.float32)


@every_op
def test_wanted_gradients_do_not_depend_on_each_other(op):
    shapes = Shapes("", QUERIES, KEYS, 6, 5)
    tensors = {name: x.detach() for name, x in shapes.tensors(op, torch.float32).items()}
    grad = torch.randn(1, 2, QUERIES, 5)

    def gradients(*wanted):
        leaves = tensors | {name: tensors[name].clone().requires_grad_() for name in wanted}
        out = getattr(posenc.ops, op)(**leaves, **shapes.options(op))
        return torch.autograd.grad(out, [leaves[name] for name in wanted], grad)

    for name, expected in zip(tensors, gradients(*tensors), strict=True):
        assert_bits(gradients(name)[0], expected)


@every_op
@pytest.mark.parametrize(("heads", "batch"), [(1, 1), (4, 3)])
def test_two_threads_compute_what_one_does(op, heads, batch):
    """With one head a backward pass is split into parts, whose sums are added up in an order of their own."""
    shapes = Shapes("", 205, 205, 32, 32, heads, max(1, heads // 2), batch)
    tensors = shapes.tensors(op, torch.float32)
    grad = torch.randn(batch, heads, 205, 32)

    def on(threads):
        torch.set_num_threads(threads)
        out = getattr(posenc.ops, op)(**tensors, **shapes.options(op))
        return [out.detach(), *torch.autograd.grad(out, list(tensors.values()), grad)]

    one, two, again = on(1), on(2), on(2)
    assert_bits(two[0], one[0])
    for x, y, z in zip(one, two, again, strict=True):
        assert_bits(y, z)
        torch.testing.assert_close(y, x, rtol=0, atol=2e-6 * max(1.0, x.abs().max().item()))


@every_op
@pytest.mark.parametrize("rule", ["plain", "window", "holes", "segments"])
def test_dropout_has_one_mask_in_both_passes(op, rule):
    """Along any direction the change of the loss is what its gradient says, over tiles that the mask cuts."""
    shapes = Shapes("", QUERIES, KEYS, 6, 5, heads=4, rules=RULES.get(rule, {}))
    tensors = shapes.tensors(op, torch.float64)
    options = shapes.options(op) | {"dropout_p": 0.3}
    weights = torch.randn(1, 4, QUERIES, 5).double()

    def loss(tensors):
        torch.manual_seed(5)
        return (getattr(posenc.ops, op)(**tensors, **options) * weights).sum()

    grads = torch.autograd.grad(loss(tensors), list(tensors.values()))
    for (name, x), grad in zip(tensors.items(), grads, strict=True):
        towards, step = torch.randn_like(x), 1e-6
        moved = [loss(tensors | {name: (x + sign * step * towards).detach()}).item() for sign in (1, -1)]
        slope = (moved[0] - moved[1]) / (2 * step)
        torch.testing.assert_close((grad * towards).sum().item(), slope, rtol=1e-5, atol=1e-5, msg=name)


@every_op
def test_dropout_has_one_mask_in_every_dtype(op):
    """Weights of float32 and float64 are dropped alike, in the kernels' form and in torch's."""
    shapes = Shapes("", QUERIES, KEYS, 6, 5, heads=4)
    tensors = {name: x.detach() for name, x in shapes.tensors(op, torch.float64).items()}

    def out(dtype, transform=lambda f: f):
        torch.manual_seed(9)
        cast = {name: x.to(dtype) for name, x in tensors.items()}

        def call(value):
            return getattr(posenc.ops, op)(**cast | {"value": value}, **shapes.options(op), dropout_p=0.4)

        return transform(call)(cast["value"])

    plain = out(torch.float64)
    torch.testing.assert_close(out(torch.float32).double(), plain, rtol=0, atol=1e-5)
    in_torch = out(torch.float64, lambda call: lambda value: torch.func.vjp(call, value)[0])
    torch.testing.assert_close(in_torch, plain)
