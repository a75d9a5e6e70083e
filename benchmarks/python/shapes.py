"""The shapes that are measured, under the names that the C++ benchmarks use too (shapes.csv)."""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LAYOUTS = ("BHTD", "BTHD")


@dataclass(frozen=True)
class Shape:
    """Queries (batch, heads, tokens, head_dim) and keys (batch, key_heads, tokens, head_dim) of one model.

    Attributes:
        rotary_dim: Columns that turn, at most `head_dim`.
        base: Base of the rotary frequencies.
    """

    name: str
    batch: int
    heads: int
    key_heads: int
    tokens: int
    head_dim: int
    rotary_dim: int
    base: float

    def tensors(self, dtype: torch.dtype, layout: str, *, requires_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Random q and k: contiguous for "BHTD", transposed views of (B, T, H, D) memory for "BTHD"."""
        return tuple(
            self._tensor(heads, dtype, layout).requires_grad_(requires_grad) for heads in (self.heads, self.key_heads)
        )

    def _tensor(self, heads: int, dtype: torch.dtype, layout: str) -> Tensor:
        if layout == "BTHD":
            return torch.randn(self.batch, self.tokens, heads, self.head_dim, dtype=dtype).transpose(1, 2)
        return torch.randn(self.batch, heads, self.tokens, self.head_dim, dtype=dtype)


def _read() -> dict[str, Shape]:
    with open(Path(__file__).parents[1] / "shapes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("batch", "heads", "key_heads", "tokens", "head_dim", "rotary_dim")
    return {
        row["name"]: Shape(row["name"], *(int(row[number]) for number in numbers), base=float(row["base"]))
        for row in rows
    }


SHAPES = _read()
