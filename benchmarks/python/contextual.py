"""The cases of contextual encodings, of ReRoPE and of Shaw's embeddings, and the ratios that they are to reach."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

import attention_peers
import contextual_formulas as formulas
import contextual_peers as peers
import posenc
from attention_case import DTYPES, LENGTHS, OP, SDPA, TOLERANCE, Size, attention_case, plain
from case import MODES, Case, Comparison, Contender

COPE = "CoPE"
EAGER = "CoPE eager"
COMPILED = "CoPE compiled"
REROPE = "ReRoPE"
SHAW = "Shaw"

POSITIONS = (64, 256)
TABLE_STD = 0.1
THRESHOLD = 512
RADIUS = 64
# Makes gates of normal logits 0.02 on average (the probit approximation), where they are 0.5 without a bias.
SELECTIVE = math.log(0.02 / 0.98) * math.sqrt(1 + math.pi / 8)

# Of attention's own time, by mode and positions, one for each length.
COPE_TARGETS = {
    ("forward", 64): (1.65, 1.45, 1.35, 1.4),
    ("forward+backward", 64): (1.6, 1.55, 1.5, 1.5),
    ("forward", 256): (2.25, 1.95, 1.8, 1.5),
    ("forward+backward", 256): (2.1, 2.0, 2.0, 1.8),
}
REROPE_TARGET, SHAW_TARGET = 1.3, 1.8
EAGER_TARGETS = {"forward": 0.2, "forward+backward": 0.33}
COMPILED_TARGET = 0.25

# With gradients. Those of tables are sums over all queries, for the last entry over most of their keys. Queries of CoPE
# at a kink are left out (`formulas.cope_kinks`): there float32 is off by up to 0.03, in the paper's listing too.
TABLE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}

_case = functools.partial(attention_case, "contextual")


def cases() -> Iterator[Case]:
    """All of them, in the order of the report."""
    for positions in POSITIONS:
        for mode in MODES:
            for length in LENGTHS:
                yield _cope(Size(length, 64), positions, mode)
    for mode in MODES:
        yield _cope(Size(2048, 128), 64, mode)
        yield _cope(Size(2048, 64), 64, mode, torch.bfloat16)
    for positions in (64, 1024):
        for mode in MODES:
            yield _selective(Size(2048, 64), positions, mode)
    for mode in MODES:
        yield _eager(Size(2048, 64), mode)
    for make, lengths in ((_rerope, (2048, 4096)), (_shaw, (1024, 2048))):
        for mode in MODES:
            for length in lengths:
                yield make(Size(length, 64), mode)
    yield _decode(Size(4096, 128, heads=32, key_heads=8, queries=1))
    yield from _smoke_cases()


def _smoke_cases() -> Iterator[Case]:
    size = Size(40, 16, heads=4, key_heads=4, smoke=True)
    for mode in MODES:
        for dtype in DTYPES:
            yield _cope(size, 8, mode, dtype)
        yield _selective(size, 8, mode)
        yield _eager(size, mode)
        yield _rerope(size, mode, threshold=8)
        yield _shaw(size, mode, radius=8)
    yield _decode(Size(40, 16, heads=4, key_heads=2, queries=1, smoke=True))


def _cope(size: Size, positions: int, mode: str, dtype: torch.dtype = torch.float32) -> Case:
    target = None
    if dtype == torch.float32 and size.keys in LENGTHS:
        target = COPE_TARGETS[mode, positions][LENGTHS.index(size.keys)]
    comparisons = [Comparison(COPE, OP, target), Comparison(COPE, SDPA)]
    return cope_case(f"CoPE npos {positions}", size, positions, mode, comparisons, dtype)


def _selective(size: Size, positions: int, mode: str) -> Case:
    """The worst: with few gates open, positions stay below the last entry for most of the keys."""
    comparisons = [Comparison(COPE, OP)]
    return cope_case(f"CoPE selective npos {positions}", size, positions, mode, comparisons, gate_bias=SELECTIVE)


def _eager(size: Size, mode: str) -> Case:
    comparisons = [Comparison(COPE, EAGER, EAGER_TARGETS[mode])]
    # Compiling takes a quarter of a minute: not for smoke tests, nor where no target rests on it.
    if mode == "forward" and not size.smoke:
        comparisons.append(Comparison(COPE, COMPILED, COMPILED_TARGET))
    return cope_case("CoPE eager", size, 64, mode, comparisons)


def _decode(size: Size) -> Case:
    """One query, grouped heads and a filled cache, without gradients, as in generation."""
    return cope_case("CoPE decode npos 64", size, 64, "forward", [Comparison(COPE, OP)])


def cope_case(
    kind: str,
    size: Size,
    positions: int,
    mode: str,
    comparisons: Sequence[Comparison],
    dtype: torch.dtype = torch.float32,
    gate_bias: float | None = None,
) -> Case:
    """CoPE with one table for all heads, and those that it is compared with."""
    compared = {comparison.peer for comparison in comparisons}

    def cope(q: Tensor, k: Tensor, v: Tensor, pos_emb: Tensor) -> tuple[Tensor]:
        return (posenc.ops.cope_attention(q, k, v, pos_emb, gate_bias=bias),)

    def contenders() -> Mapping[str, Contender]:
        tolerance = _tolerance(mode, dtype)
        here = {
            OP: plain(dtype),
            SDPA: Contender(lambda q, k, v, _: attention_peers.sdpa(q, k, v), TOLERANCE[dtype]),
            COPE: Contender(cope, tolerance, COPE),
        }
        if EAGER in compared:
            here[EAGER] = Contender(peers.cope_eager(size.keys), tolerance, COPE, temporaries=True)
        if COMPILED in compared:
            here[COMPILED] = Contender(peers.cope_compiled(size.keys), tolerance, COPE, temporaries=True)
        return here

    def table() -> Tensor:
        return TABLE_STD * torch.randn(1, size.head_dim, positions, dtype=dtype)

    bias = None if gate_bias is None else torch.full((size.heads,), gate_bias)
    return _case(
        kind,
        size,
        mode,
        dtype,
        contenders,
        comparisons,
        {COPE: formulas.cope(gate_bias or 0.0)},
        [table],
        formulas.cope_kinks(gate_bias or 0.0),
    )


def _rerope(size: Size, mode: str, threshold: int = THRESHOLD) -> Case:
    """`piecewise_attention`, which ReRoPE calls: the same work whatever q and k were rotated by."""
    dtype = torch.float32

    def rerope(q: Tensor, k: Tensor, v: Tensor, q_far: Tensor, k_far: Tensor) -> tuple[Tensor]:
        return (posenc.ops.piecewise_attention(q, k, q_far, k_far, v, threshold),)

    def contenders() -> Mapping[str, Contender]:
        return {OP: plain(dtype), REROPE: Contender(rerope, TOLERANCE[dtype], REROPE)}

    comparisons = [Comparison(REROPE, OP, REROPE_TARGET)]
    far = [functools.partial(make, dtype) for make in (size.query, size.key)]
    return _case("ReRoPE", size, mode, dtype, contenders, comparisons, {REROPE: formulas.piecewise(threshold)}, far)


def _shaw(size: Size, mode: str, radius: int = RADIUS) -> Case:
    """Tables for keys and for values, shared by the heads."""
    dtype = torch.float32

    def shaw(q: Tensor, k: Tensor, v: Tensor, rel_k: Tensor, rel_v: Tensor) -> tuple[Tensor]:
        return (posenc.ops.relative_attention(q, k, v, rel_k, rel_v, is_causal=True),)

    def contenders() -> Mapping[str, Contender]:
        return {OP: plain(dtype), SHAW: Contender(shaw, _tolerance(mode, dtype), SHAW)}

    def table() -> Tensor:
        return torch.randn(2 * radius + 1, size.head_dim)

    comparisons = [Comparison(SHAW, OP, SHAW_TARGET)]
    return _case("Shaw", size, mode, dtype, contenders, comparisons, {SHAW: formulas.shaw}, [table, table])


def _tolerance(mode: str, dtype: torch.dtype) -> float:
    return (TOLERANCE if mode == "forward" else TABLE_TOLERANCE)[dtype]
