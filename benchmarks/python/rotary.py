"""The cases of the rotary ops, and the ratios that they are to reach."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

import posenc
import rotary_peers as peers
from case import MODES, Case, Comparison, Contender, Data
from shapes import LAYOUTS, SHAPES, Shape

OP = "rotary_qk"
MODULE = "nn.Rotary"
TABLES = "apply_rotary_qk"
INTERLEAVED = "rotary_qk interleaved"
IN_PLACE = "rotary_qk_"
AXES = "rotary_qk 3 axes"
EAGER = "transformers eager"
EAGER_TABLES = "transformers eager, tables too"
COMPILED = "transformers compiled"
PACKAGE = "rotary-embedding-torch"
CLONE = "clone"

DTYPES = (torch.float32, torch.bfloat16)
DECODE_POSITION = 1000
MROPE_SECTIONS = (16, 24, 24)

# Absolute errors for normal inputs (largest about 6). Ours: rounding of the result. Peers: float32 angles at position
# 2047, or tables and products in bfloat16.
OUR_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
PEER_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2}


def cases() -> Iterator[Case]:
    """All of them, in the order of the report."""
    for dtype in DTYPES:
        for layout in LAYOUTS:
            yield _prefill(SHAPES["llama3-8b"], "forward", dtype, layout)
    for dtype in DTYPES:
        for layout in LAYOUTS:
            yield _prefill(SHAPES["llama3-8b"], "forward+backward", dtype, layout)
    for name in ("qwen2.5-0.5b", "gpt-neox-20b", "pythia-1.4b", "tiny"):
        for mode in MODES:
            for dtype in DTYPES:
                yield _prefill(SHAPES[name], mode, dtype, "BHTD")
    for dtype in DTYPES:
        yield _multi_axis(SHAPES["qwen2-vl-7b"], dtype)
    for dtype in DTYPES:
        yield _decode(SHAPES["llama3-8b-decode"], dtype)


def _prefill(shape: Shape, mode: str, dtype: torch.dtype, layout: str) -> Case:
    backward = mode == "forward+backward"
    contenders = functools.partial(_prefill_contenders, shape, dtype, backward)
    llama = shape.name == "llama3-8b"
    clone_target = {torch.float32: 1.25, torch.bfloat16: 1.6}[dtype]
    comparisons = [Comparison(OP, EAGER, 1 / 4 if llama else None)]
    if not backward:
        comparisons += [Comparison(OP, CLONE, clone_target if llama else None)]
    comparisons += [
        Comparison(OP, COMPILED, 1 / 2 if llama and not backward and dtype == torch.float32 else None),
        Comparison(INTERLEAVED, PACKAGE),
        Comparison(OP, TABLES, {"llama3-8b": 1.10, "qwen2.5-0.5b": 1.15}.get(shape.name)),
        Comparison(INTERLEAVED, OP, 1.15 if llama else None),
        Comparison(IN_PLACE, OP),
    ]
    return _case(shape, mode, dtype, layout, contenders, comparisons)


def _prefill_contenders(shape: Shape, dtype: torch.dtype, backward: bool) -> Mapping[str, Contender]:
    inv_freq, _ = posenc.scaling.frequencies(shape.rotary_dim, shape.base)
    cos, sin = posenc.ops.rotary_tables(None, inv_freq, length=shape.tokens)
    ours, theirs = OUR_TOLERANCE[dtype], PEER_TOLERANCE[dtype]
    contenders = {
        OP: Contender(lambda q, k: posenc.ops.rotary_qk(q, k, None, inv_freq), ours),
        TABLES: Contender(lambda q, k: posenc.ops.apply_rotary_qk(q, k, cos, sin), ours),
        INTERLEAVED: Contender(
            lambda q, k: posenc.ops.rotary_qk(q, k, None, inv_freq, interleaved=True), ours, variant=INTERLEAVED
        ),
    }
    if not backward:
        contenders[IN_PLACE] = _in_place(inv_freq, ours)
        contenders[CLONE] = Contender(peers.clone, None)
    if peers.installed("transformers"):
        contenders[EAGER] = Contender(peers.transformers_eager(shape, dtype), theirs, temporaries=True)
        # Compiling takes seconds: only for a whole and for a partial rotation.
        if shape.name in ("llama3-8b", "gpt-neox-20b"):
            contenders[COMPILED] = Contender(peers.transformers_compiled(shape, dtype), theirs, temporaries=True)
    # Half a second per backward, and no target rests on it.
    if peers.installed("rotary_embedding_torch") and not backward:
        contenders[PACKAGE] = Contender(
            peers.rotary_embedding_torch(shape), theirs, variant=INTERLEAVED, temporaries=True
        )
    return contenders


def _in_place(inv_freq: Tensor, tolerance: float) -> Contender:
    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        posenc.ops.rotary_qk_(q, k, None, inv_freq)
        return q, k

    return Contender(rotate, tolerance, in_place=True)


def _multi_axis(shape: Shape, dtype: torch.dtype) -> Case:
    """Three equal axes of positions, so that one reference serves: the work does not depend on their values."""

    def contenders() -> Mapping[str, Contender]:
        inv_freq, _ = posenc.scaling.frequencies(shape.rotary_dim, shape.base)
        axes = [axis for axis, pairs in enumerate(MROPE_SECTIONS) for _ in range(pairs)]
        positions = torch.arange(shape.tokens)
        three = positions.expand(3, -1)
        tolerance = OUR_TOLERANCE[dtype]
        return {
            OP: Contender(lambda q, k: posenc.ops.rotary_qk(q, k, positions, inv_freq), tolerance),
            AXES: Contender(lambda q, k: posenc.ops.rotary_qk(q, k, three, inv_freq, axes=axes), tolerance),
            CLONE: Contender(peers.clone, None),
        }

    return _case(shape, "forward", dtype, "BHTD", contenders, [Comparison(AXES, OP), Comparison(AXES, CLONE)])


def _decode(shape: Shape, dtype: torch.dtype) -> Case:
    """One token, without gradients, as in generation."""

    def contenders() -> Mapping[str, Contender]:
        inv_freq, _ = posenc.scaling.frequencies(shape.rotary_dim, shape.base)
        module = posenc.nn.Rotary(shape.head_dim, base=shape.base)
        ours, theirs = OUR_TOLERANCE[dtype], PEER_TOLERANCE[dtype]
        here = {
            OP: Contender(lambda q, k: posenc.ops.rotary_qk(q, k, None, inv_freq, offset=DECODE_POSITION), ours),
            MODULE: Contender(lambda q, k: module(q, k, offset=DECODE_POSITION), ours),
            CLONE: Contender(peers.clone, None),
        }
        if peers.installed("transformers"):
            here[EAGER] = Contender(peers.transformers_eager(shape, dtype, DECODE_POSITION), theirs, temporaries=True)
            here[EAGER_TABLES] = Contender(
                peers.transformers_with_tables(shape, dtype, DECODE_POSITION), theirs, temporaries=True
            )
        return here

    comparisons = [
        Comparison(OP, EAGER, 1 / 5),
        Comparison(MODULE, EAGER, 1 / 4),
        Comparison(OP, EAGER_TABLES, 1 / 5),
        Comparison(MODULE, EAGER_TABLES, 1 / 4),
        Comparison(OP, CLONE),
    ]
    return _case(shape, "forward", dtype, "BHTD", contenders, comparisons, offset=DECODE_POSITION)


def _case(
    shape: Shape,
    mode: str,
    dtype: torch.dtype,
    layout: str,
    contenders: Callable[[], Mapping[str, Contender]],
    comparisons: Sequence[Comparison],
    offset: int = 0,
) -> Case:
    """The tokens are at positions `offset` and after."""
    name = " ".join((shape.name, mode, str(dtype).removeprefix("torch."), layout))
    backward = mode == "forward+backward"

    def data() -> Data:
        inputs = shape.tensors(dtype, layout, requires_grad=backward)
        return Data(inputs, shape.tensors(dtype, layout) if backward else None)

    reference = functools.partial(_reference, shape, offset)
    return Case(name, data, reference, contenders, comparisons, smoke=shape.name == "tiny")


@torch.no_grad()
def _reference(shape: Shape, offset: int, data: Data, variant: str) -> list[Tensor]:
    """Outputs and gradients, rotated in float32 by angles formed in float64."""
    width = shape.rotary_dim
    positions = torch.arange(offset, offset + shape.tokens, dtype=torch.float64)
    inv_freq = shape.base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(positions, inv_freq)
    cos, sin = angles.cos().float(), angles.sin().float()
    interleaved = variant == INTERLEAVED
    turned = [_rotate(x, cos, sin, interleaved) for x in data.inputs]
    return turned + [_rotate(g, cos, -sin, interleaved) for g in data.gradients or ()]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    out = x.float().clone()
    first, second = (
        (out[..., 0:width:2], out[..., 1:width:2])
        if interleaved
        else (out[..., : width // 2], out[..., width // 2 : width])
    )
    turned = first * cos - second * sin, second * cos + first * sin
    first.copy_(turned[0])
    second.copy_(turned[1])
    return out
