"""The cases of the attention ops, and the ratios that they are to reach."""

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

import attention_peers as peers
import environment
import posenc
from attention_case import DTYPES, LENGTHS, OP, SDPA, TOLERANCE, Size, attend, attention_case, plain
from attention_reference import Block, biased, distances
from case import MODES, Case, Comparison, Contender

ALIBI = "attention ALiBi"
TABLE = "attention table"
BIAS = "attention bias"
FIRE = "attention FIRE"
SDPA_ALIBI = "SDPA, ALiBi as mask"
SDPA_TABLE = "SDPA, table as mask"
SDPA_BIAS = "SDPA, bias as mask"
SDPA_MATH = "SDPA, math path"
SDPA_FIRE = "SDPA, FIRE's MLP, math path"
FLEX = "flex_attention compiled"
READ = "read of k and v"

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
ALIBI_TARGET, TABLE_TARGET, FIRE_TARGET = 1.10, 1.15, 1.25
MASK_TARGET, MATH_TARGET = 0.67, 0.33

_case = functools.partial(attention_case, "attention")


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
    for mode in MODES:
        for length in (1024, 2048):
            yield _fire(Size(length, 64), mode)
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
    for mode in MODES:
        yield _fire(size, mode)
    for dtype in DTYPES:
        yield _decode(Size(40, 16, heads=4, key_heads=2, queries=1, smoke=True), dtype)


def _causal(size: Size, mode: str, dtype: torch.dtype) -> Case:
    def contenders() -> Mapping[str, Contender]:
        return {OP: plain(dtype), SDPA: Contender(peers.sdpa, TOLERANCE[dtype])}

    comparison = Comparison(OP, SDPA, _causal_target(size, mode, dtype))
    return _case("causal", size, mode, dtype, contenders, [comparison])


def _causal_target(size: Size, mode: str, dtype: torch.dtype) -> float | None:
    products = environment.bfloat16_products()
    faster = products == environment.AMX or (products == environment.AVX512_BF16 and mode != "forward")
    if size.heads == 1 or (dtype == torch.bfloat16 and faster):
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
            OP: plain(dtype),
            ALIBI: Contender(functools.partial(attend, alibi_slopes=slopes), tolerance, ALIBI),
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
    formula = biased(lambda block: bias(block.distances(), block.heads))
    return _case("ALiBi", size, mode, dtype, contenders, comparisons, {ALIBI: formula})


def _table(size: Size, mode: str, dtype: torch.dtype) -> Case:
    table = _random_table(size)

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        mask = _look_up(distances(size.keys, size.keys), torch.arange(size.heads), table)
        return {
            OP: plain(dtype),
            TABLE: Contender(functools.partial(attend, distance_bias=table), tolerance, TABLE),
            SDPA_TABLE: Contender(peers.sdpa_masked(mask, dtype), tolerance, TABLE),
        }

    def bias(block: Block) -> Tensor:
        return _look_up(block.distances(), block.heads, table).double()

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
            OP: plain(dtype),
            TABLE: Contender(lambda q, k, v, table: attend(q, k, v, distance_bias=table), table_tolerance, TABLE),
            SDPA_MATH: Contender(peers.sdpa_trained_table(size.keys, RADIUS), table_tolerance, TABLE, temporaries=True),
        }

    def bias(block: Block, table: Tensor) -> Tensor:
        return _look_up(block.distances(), torch.arange(len(block.heads)), table)

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


def _fire(size: Size, mode: str) -> Case:
    """With a module's initial parameters, and with gradients to all of them."""
    torch.manual_seed(2)
    module = posenc.nn.FIRE(size.heads)
    parameters = [x.detach() for x in (module.c, module.threshold, *module.mlp.parameters())]

    def fused(q: Tensor, k: Tensor, v: Tensor, *p: Tensor) -> tuple[Tensor]:
        terms = torch.ops.posenc._fire_terms(*p, module.eps, q, k)
        names = ("fire_rate", "fire_norm", "fire_knots", "fire_offset", "fire_slope")
        return (torch.ops.posenc.attention(q, k, v, is_causal=True, **dict(zip(names, terms)))[0],)

    def bias(block: Block, *p: Tensor) -> Tensor:
        queries = torch.arange(block.queries.start, block.queries.stop)
        return peers.fire_bias(block.distances(), queries, module.eps, *p)

    def contenders() -> Mapping[str, Contender]:
        tolerance = 1000 * TOLERANCE[torch.float32]  # gradients of the parameters are sums over all pairs
        return {
            OP: plain(torch.float32),
            FIRE: Contender(fused, tolerance, FIRE),
            SDPA_FIRE: Contender(peers.sdpa_fire(size.keys, module.eps), tolerance, FIRE, temporaries=True),
        }

    comparisons = [Comparison(FIRE, OP, FIRE_TARGET), Comparison(FIRE, SDPA_FIRE)]
    inputs = [functools.partial(torch.clone, x) for x in parameters]
    return _case("FIRE", size, mode, torch.float32, contenders, comparisons, {FIRE: biased(bias)}, more_inputs=inputs)


def _bias(size: Size, mode: str, dtype: torch.dtype) -> Case:
    """A materialised bias for every head, query and key."""

    @functools.cache
    def tensor() -> Tensor:
        return torch.randn(size.heads, size.keys, size.keys, generator=torch.Generator().manual_seed(1))

    def contenders() -> Mapping[str, Contender]:
        tolerance = TOLERANCE[dtype]
        return {
            OP: plain(dtype),
            BIAS: Contender(functools.partial(attend, bias=tensor().to(dtype)), tolerance, BIAS),
            SDPA_BIAS: Contender(peers.sdpa_masked(tensor(), dtype), tolerance, BIAS),
        }

    def bias(block: Block) -> Tensor:
        return tensor()[block.heads, block.queries, : block.keys].double()

    comparisons = [Comparison(BIAS, OP), Comparison(BIAS, SDPA_BIAS)]
    return _case("bias", size, mode, dtype, contenders, comparisons, {BIAS: biased(bias)})


def _decode(size: Size, dtype: torch.dtype) -> Case:
    """One query, grouped heads and a filled cache, without gradients, as in generation."""

    def contenders() -> Mapping[str, Contender]:
        return {
            OP: plain(dtype),
            SDPA: Contender(peers.sdpa_decode, TOLERANCE[dtype]),
            READ: Contender(peers.read, None),
        }

    on_tiles = dtype == torch.bfloat16 and environment.bfloat16_products() == environment.AMX
    comparisons = [
        Comparison(OP, SDPA, None if on_tiles else DECODE_TARGETS[dtype]),
        Comparison(OP, READ, READ_TARGET),
    ]
    return _case("decode", size, "forward", dtype, contenders, comparisons)


def _random_table(size: Size) -> Tensor:
    return torch.randn(size.heads, 2 * RADIUS + 1, generator=torch.Generator().manual_seed(1))


def _look_up(offsets: Tensor, heads: Tensor, table: Tensor) -> Tensor:
    return table[heads][:, offsets.clamp(-RADIUS, RADIUS) + RADIUS]
