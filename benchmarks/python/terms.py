"""The cases of the terms of released models' scores, each against attention without it and against eager code."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import posenc
from attention_case import OP, TOLERANCE, Size, attend, attention_case, plain
from attention_reference import (
    Block,
    Formula,
    biased,
    capped,
    disentangled,
    grid_bias,
    on_axes,
    relative,
    sunk,
)
from attention_reference import attend as causal
from case import MODES, Case, Comparison, Contender

EAGER = "its formula, eager"


def cases() -> Iterator[Case]:
    """All of them, in the order of the report."""
    for kind in TERMS:
        for mode in MODES:
            for length in (1024, 2048):
                yield _case(kind, Size(length, 64), mode)
    for kind in TERMS:
        for mode in MODES:
            yield _case(kind, Size(40, 16, heads=4, key_heads=4, smoke=True), mode)


@dataclass(frozen=True)
class Term:
    """A term of scores and how it is to compare with attention without it.

    Attributes:
        attend: The call, of q, k, v and the inputs that follow.
        formula: The same by its formula, which run for all queries at once is the eager peer.
        inputs: What draws those inputs.
    """

    attend: Callable[..., tuple[Tensor]]
    formula: Formula
    target: float
    inputs: Callable[[Size], Sequence[Callable[[], Tensor]]] = lambda size: []


def _relative(q: Tensor, k: Tensor, v: Tensor, rel_query: Tensor, rel_k: Tensor) -> tuple[Tensor]:
    reach = (rel_k.shape[0] - 1, 0)
    return (posenc.ops.relative_attention(q, k, v, rel_k, rel_query=rel_query, max_distance=reach, is_causal=True),)


def _disentangled(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> tuple[Tensor]:
    rel_k = tables[0] if len(tables) > 1 else None
    return (posenc.ops.relative_attention(q, k, v, rel_k, rel_q=tables[-1], is_causal=True),)


def _bucket_table(size: Size) -> Tensor:
    """As DeBERTa v3 has them, 256 distances in each direction."""
    return torch.randn(size.heads, 513, size.head_dim)


def _picture(tokens: int) -> tuple[int, int]:
    """Rows and columns of a picture of so many tokens: 32 x 32, 32 x 64."""
    height = 1 << (tokens.bit_length() - 1) // 2
    return height, tokens // height


def _places(q: Tensor) -> Tensor:
    _, width = _picture(q.shape[2])
    token = torch.arange(q.shape[2])
    return torch.stack([token // width, token % width])


def _grid_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> tuple[Tensor]:
    return attend(q, k, v, grid_bias=table, k_positions=_places(q))


def _on_axes(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> tuple[Tensor]:
    places = {"q_positions": _places(q), "k_positions": _places(q)}
    return (posenc.ops.relative_attention(q, k, v, tables, rel_scale=1.0, is_causal=True, **places),)


def _all_true(q: Tensor) -> Tensor:
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)


# A cap of 5 acts on scores of normal inputs; one of 50, as Gemma 2 has it, hardly does.
TERMS = {
    "sinks": Term(
        lambda q, k, v, sinks: attend(q, k, v, sinks=sinks),
        sunk,
        1.05,
        lambda size: [lambda: torch.randn(size.heads)],
    ),
    "softcap 50": Term(lambda q, k, v: attend(q, k, v, softcap=50.0), capped(50.0), 1.05),
    "softcap 5": Term(lambda q, k, v: attend(q, k, v, softcap=5.0), capped(5.0), 1.05),
    "mask that hides nothing": Term(lambda q, k, v: attend(q, k, v, attn_mask=_all_true(q)), causal, 1.05),
    "window of two sides": Term(lambda q, k, v: attend(q, k, v, window=(q.shape[2], 0)), causal, 1.05),
    "relative, query of its own": Term(
        _relative,
        relative,
        1.25,
        lambda size: [lambda: size.query(torch.float32), lambda: torch.randn(size.keys, size.head_dim)],
    ),
    "position to content": Term(_disentangled, disentangled, 1.35, lambda size: [lambda: _bucket_table(size)]),
    "DeBERTa": Term(_disentangled, disentangled, 1.6, lambda size: [lambda: _bucket_table(size)] * 2),
    "grid bias": Term(
        _grid_bias,
        biased(grid_bias),
        1.25,
        lambda size: [lambda: torch.randn(size.heads, *(2 * length - 1 for length in _picture(size.keys)))],
    ),
    "relative on two axes": Term(
        _on_axes,
        on_axes,
        1.25,
        lambda size: [functools.partial(torch.randn, 2 * length - 1, size.head_dim) for length in _picture(size.keys)],
    ),
}


def _case(kind: str, size: Size, mode: str) -> Case:
    term, dtype = TERMS[kind], torch.float32
    ours = f"{OP} {kind}"

    def eager(*inputs: Tensor) -> tuple[Tensor]:
        return (term.formula(Block(torch.arange(size.heads), slice(0, size.keys), size.keys), *inputs),)

    def contenders() -> Mapping[str, Contender]:
        tolerance = (1 if mode == "forward" else 30) * TOLERANCE[dtype]  # sums over all queries
        return {
            OP: plain(dtype),
            ours: Contender(term.attend, tolerance, ours),
            EAGER: Contender(eager, tolerance, ours, temporaries=True),
        }

    comparisons = [Comparison(ours, OP, term.target), Comparison(ours, EAGER)]
    return attention_case(
        "terms", kind, size, mode, dtype, contenders, comparisons, {ours: term.formula}, more_inputs=term.inputs(size)
    )
