"""What the cases of attention and of contextual encodings share: sizes, names, inputs, and attention without a bias."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import posenc
from attention_reference import Formula, Reference
from case import Case, Comparison, Contender, Data

OP = "attention"
SDPA = "SDPA"

DTYPES = (torch.float32, torch.bfloat16)
LENGTHS = (512, 1024, 2048, 4096)

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

    def case_name(self, family: str, kind: str, mode: str, dtype: torch.dtype) -> str:
        heads = {(8, 8): "", (1, 1): "1 head"}.get((self.heads, self.key_heads), f"{self.heads}/{self.key_heads} heads")
        words = [family, "tiny" if self.smoke else "", kind, heads, f"{self.keys}x{self.head_dim}", mode]
        return " ".join([*filter(None, words), str(dtype).removeprefix("torch.")])

    def query(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(1, self.heads, self.queries or self.keys, self.head_dim, dtype=dtype)

    def key(self, dtype: torch.dtype) -> Tensor:
        return torch.randn(1, self.key_heads, self.keys, self.head_dim, dtype=dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, *_: Tensor, **options: Tensor) -> tuple[Tensor]:
    """`posenc.ops.attention`, of the first three inputs of a case."""
    return (posenc.ops.attention(q, k, v, is_causal=True, **options),)


def plain(dtype: torch.dtype) -> Contender:
    return Contender(attend, TOLERANCE[dtype])


def attention_case(
    family: str,
    kind: str,
    size: Size,
    mode: str,
    dtype: torch.dtype,
    contenders: Callable[[], Mapping[str, Contender]],
    comparisons: Sequence[Comparison],
    formulas: Mapping[str, Formula] | None = None,
    more_inputs: Sequence[Callable[[], Tensor]] = (),
    kinks: Formula | None = None,
) -> Case:
    """Formulas are those of the variants; the inputs are q, k, v and what `more_inputs` draw.
    See `Reference` on kinks."""
    if size.smoke:
        comparisons = [replace(comparison, target=None) for comparison in comparisons]
    backward = mode == "forward+backward"

    def data() -> Data:
        inputs = (size.query(dtype), size.key(dtype), size.key(dtype), *(draw() for draw in more_inputs))
        for x in inputs:
            x.requires_grad_(backward)
        return Data(inputs, (size.query(dtype),) if backward else None)

    reference = Reference(size.heads, size.key_heads, size.keys, formulas or {}, kinks)
    name = size.case_name(family, kind, mode, dtype)
    return Case(name, data, reference, contenders, comparisons, reference.excerpt, reference.focused, smoke=size.smoke)
