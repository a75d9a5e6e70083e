"""The cases of the attention ops, and the ratios that they are to reach."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import attention_peers as peers
import environment
import posenc
from attention_reference import Formula, Reference, biased, distances
from case import MODES, Case, Comparison, Contender, Data

OP = "attention"
ALIBI = "attention ALiBi"
TABLE = "attention table"
BIAS = "attention bias"
SDPA = "SDPA"
SDPA_ALIBI = "SDPA, ALiBi as mask"
SDPA_TABLE = "SDPA, table as mask"
SDPA_BIAS = "SDPA, bias as mask"
SDPA_MATH = "SDPA, math path"
FLEX = "flex_attention compiled"
READ = "read of k and v"

DTYPES = (torch.float32, torch.bfloat16)
LENGTHS = (512, 1024, 2048, 4096)
SHORT_LENGTHS = (16, 32, 64)
# Of the table: distances beyond count as this one, as in T5.
RADIUS = 128

# Against SDPA in float32, by length.
FORWARD_TARGETS = {64: (0.56, 0.69, 0.84, 0.91), 128: (0.65, 0.80, 0.91, 1.0)}
BACKWARD_TARGETS = {64: (0.60, 0.70, 0.82, 0.91), 128: (0.65, 0.80, 0.91, 1.0)}
# Against SDPA in bfloat16, where that multiplies by vector instructions.
BFLOAT16_TARGETS = {"forward": 0.8, "forward+backward": 0.25}
DECODE_TARGETS = {torch.float32: 0.33, torch.bfloat16: 0.15}
# At least 80 % of the rate at which the same bytes can be read.
READ_TARGET = 1 / 0.8
ALIBI_TARGET, TABLE_TARGET = 1.10, 1.15
MASK_TARGET, MATH_TARGET = 0.67, 0.33

# Absolute errors for normal inputs and gradients. Those of keys and values are sums over all queries.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Size:
    """q is (1, heads, queries, head_dim), k and v are (1, key_heads, keys, head_dim), all contiguous."""

    keys: int
    head_dim: int
    heads: int = 8
    key_heads: int = 8
    queries: int = 0
    smoke: bool = False

    def case_name(self, kind: str, mode: str, dtype: torch.dtype) -> str:
        heads = {(8, 8): "", (1, 1): "1 head"}.get((self.heads, self.key_heads), f"{self.heads}/{self.key_heads} heads")
        words = ["attention", "tiny" if self.smoke else "", kind, heads, f"{self.keys}x{self.head_dim}", mode]
        return " ".join([*filter(None, words), str(dtype).removeprefix("torch.")])

    def query(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(1, self.heads, self.queries or self.keys, self.head_dim, dtype=dtype)

    def key(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(1, self.key_heads, self.keys, self.head_dim, dtype=dtype)


def cases() -> Iterator[Case]:
    """All of them, in the order of the report."""
    for dtype in DTYPES:
        for mode in MODES:
            for head_dim in (64, 128):
                for length in (*SHORT_LENGTHS, *LENGTHS):
                    yield _causal(Size(length, head_dim), mode, dtype)
    for mode in MODES:
        yield _causal(Size(2048, 64, heads=1, key_heads=1), mode, torch.float32)
    for mode in MODES:
        for make in (_alibi, _table, _bias):
            yield make(Size(2048, 64), mode, torch.float32)
    yield _trained_table(Size(2048, 64))
    for dtype in DTYPES:
        yield _decode(Size(4096, 128, heads=32, key_heads=8, queries=1), dtype)
    yield from _smoke_cases()


def _smoke_cases() -> Iterator[Case]:
    size = Size(40, 16, heads=4, key_heads=4, smoke=True)
    for mode in MODES:
        for dtype in DTYPES:
            yield _causal(size, mode, dtype)
        for make in (_alibi, _table, _bias):
            yield make(size, mode, torch.float32)
    yield _trained_table(size)
    for dtype in DTYPES:
        yield _decode(Size(40, 16, heads=4, key_heads=2, queries=1, smoke=True), dtype)


def _causal(size: Size, mode: str, dtype: torch.dtype) -> Case:
    def contenders() -> Mapping[str, Contender]:
        return {OP: _plain(dtype), SDPA: Contender(peers.sdpa, TOLERANCE[dtype])}

    comparison = Comparison(OP, SDPA, _causal_target(size, mode, dtype))
    return _case("causal", size, mode, dtype, contenders, [comparison])


def _causal_target(size: Size, mode: str, dtype: torch.dtype) -> float | None:
    if size.heads == 1 or (dtype == torch.bfloat16 and environment.torch_uses_amx()):
        return None
    if size.keys <= max(SHORT_LENGTHS):
        return 1.0
    if dtype == torch.bfloat16:
        return BFLOAT16_TARGETS[mode]
    targets = FORWARD_TARGETS if mode == "forward" else BACKWARD_TARGETS
    return targets[size.head_dim][LENGTHS.index(size.keys)]


def _alibi(size: Size, mode: str, dtype: torch.dtype) -> Case:
    slopes = posenc.ops.alibi_slopes(size.heads)

    def bias(offsets: Tensor, heads: Tensor) -> Tensor:
        return slopes[heads, None, None].double() * offsets

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        mask = bias(distances(size.keys, size.keys), torch.arange(size.heads)).float()
        here = {
            OP: _plain(dtype),
            ALIBI: Contender(functools.partial(_attend, alibi_slopes=slopes), tolerance, ALIBI),
            SDPA_ALIBI: Contender(peers.sdpa_masked(mask, dtype), tolerance, ALIBI),
        }
        # Compiling takes half a minute: not for smoke tests.
        if mode == "forward" and not size.smoke and peers.flex_works():
            here[FLEX] = Contender(peers.flex_alibi(slopes, size.keys), tolerance, ALIBI)
        return here

    comparisons = [
        Comparison(ALIBI, OP, ALIBI_TARGET),
        Comparison(ALIBI, SDPA_ALIBI, MASK_TARGET if mode == "forward" else None),
        Comparison(ALIBI, FLEX),
    ]
    return _case("ALiBi", size, mode, dtype, contenders, comparisons, {ALIBI: biased(bias)})


def _table(size: Size, mode: str, dtype: torch.dtype) -> Case:
    table = _random_table(size)

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        mask = _look_up(distances(size.keys, size.keys), torch.arange(size.heads), table)
        return {
            OP: _plain(dtype),
            TABLE: Contender(functools.partial(_attend, distance_bias=table), tolerance, TABLE),
            SDPA_TABLE: Contender(peers.sdpa_masked(mask, dtype), tolerance, TABLE),
        }

    def bias(offsets: Tensor, heads: Tensor) -> Tensor:
        return _look_up(offsets, heads, table).double()

    comparisons = [
        Comparison(TABLE, OP, TABLE_TARGET),
        Comparison(TABLE, SDPA_TABLE, MASK_TARGET if mode == "forward" else None),
    ]
    return _case("table", size, mode, dtype, contenders, comparisons, {TABLE: biased(bias)})


def _trained_table(size: Size) -> Case:
    """Forward and backward, the gradient of the table too."""
    dtype = torch.float32

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        # The table's gradients are sums over all queries of one distance, for the last entry over half of all pairs.
        table_tolerance = 10 * tolerance
        return {
            OP: Contender(lambda q, k, v, _: _attend(q, k, v), tolerance),
            TABLE: Contender(lambda q, k, v, table: _attend(q, k, v, distance_bias=table), table_tolerance, TABLE),
            SDPA_MATH: Contender(peers.sdpa_trained_table(size.keys, RADIUS), table_tolerance, TABLE, temporaries=True),
        }

    def bias(offsets: Tensor, _: Tensor, table: Tensor) -> Tensor:
        return _look_up(offsets, torch.arange(table.shape[0]), table)

    comparisons = [Comparison(TABLE, SDPA_MATH, MATH_TARGET), Comparison(TABLE, OP, TABLE_TARGET)]
    inputs = functools.partial(_random_table, size)
    return _case(
        "trained table",
        size,
        "forward+backward",
        dtype,
        contenders,
        comparisons,
        {TABLE: biased(bias)},
        more_inputs=[inputs],
    )


def _bias(size: Size, mode: str, dtype: torch.dtype) -> Case:
    """A materialised bias for every head, query and key."""

    @functools.cache
    def tensor() -> Tensor:
        return torch.randn(size.heads, size.keys, size.keys, generator=torch.Generator().manual_seed(1))

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        return {
            OP: _plain(dtype),
            BIAS: Contender(functools.partial(_attend, bias=tensor().to(dtype)), tolerance, BIAS),
            SDPA_BIAS: Contender(peers.sdpa_masked(tensor(), dtype), tolerance, BIAS),
        }

    def bias(_: Tensor, heads: Tensor) -> Tensor:
        return tensor()[heads].double()

    comparisons = [Comparison(BIAS, OP), Comparison(BIAS, SDPA_BIAS)]
    return _case("bias", size, mode, dtype, contenders, comparisons, {BIAS: biased(bias)})


def _decode(size: Size, dtype: torch.dtype) -> Case:
    """One query, grouped heads and a filled cache, without gradients, as in generation."""

    def contenders() -> Mapping[str, Contender]:
        return {
            OP: _plain(dtype),
            SDPA: Contender(peers.sdpa_decode, TOLERANCE[dtype]),
            READ: Contender(peers.read, None),
        }

    on_tiles = dtype == torch.bfloat16 and environment.torch_uses_amx()
    comparisons = [
        Comparison(OP, SDPA, None if on_tiles else DECODE_TARGETS[dtype]),
        Comparison(OP, READ, READ_TARGET),
    ]
    return _case("decode", size, "forward", dtype, contenders, comparisons)


def _attend(q: Tensor, k: Tensor, v: Tensor, **options: Tensor) -> tuple[Tensor]:
    return (posenc.ops.attention(q, k, v, is_causal=True, **options),)


def _plain(dtype: torch.dtype) -> Contender:
    return Contender(_attend, TOLERANCE[dtype])


def _random_table(size: Size) -> Tensor:
    return torch.randn(size.heads, 2 * RADIUS + 1, generator=torch.Generator().manual_seed(1))


def _look_up(offsets: Tensor, heads: Tensor, table: Tensor) -> Tensor:
    return table[heads][:, offsets.clamp(-RADIUS, RADIUS) + RADIUS]


def _case(
    kind: str,
    size: Size,
    mode: str,
    dtype: torch.dtype,
    contenders: Callable[[], Mapping[str, Contender]],
    comparisons: Sequence[Comparison],
    formulas: Mapping[str, Formula] | None = None,
    more_inputs: Sequence[Callable[[], Tensor]] = (),
) -> Case:
    """Formulas are those of the variants; the inputs are q, k, v and what `more_inputs` draw."""
    if size.smoke:
        comparisons = [replace(comparison, target=None) for comparison in comparisons]
    backward = mode == "forward+backward"

    def data() -> Data:
        inputs = (size.query(dtype), size.key(dtype), size.key(dtype), *(draw() for draw in more_inputs))
        for x in inputs:
            x.requires_grad_(backward)
        return Data(inputs, (size.query(dtype),) if backward else None)

    reference = Reference(size.heads, size.key_heads, formulas or {})
    name = size.case_name(kind, mode, dtype)
    return Case(name, data, reference, contenders, comparisons, reference.excerpt, smoke=size.smoke)
