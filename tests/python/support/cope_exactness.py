"""How far cope_attention in float32 lies from float64, and how far the paper's listing does in float32.

As a script: the whole grid of lengths, entries, gates and tables, a line each (minutes): for out and every gradient the
largest error and how many times that of the listing the error is in the mean.
"""

import math
import time
from dataclasses import dataclass
from itertools import product

import torch

import cope_eager
import posenc

LENGTHS = (64, 256, 1024, 4096, 8192)
ENTRIES = (1, 2, 16, 64, 256, 1024)
GATES = (0.02, 0.1, 0.5, 1.0)


@dataclass(frozen=True)
class Grid:
    """One call.

    Attributes:
        queries, keys: Lengths.
        entries: Positions in the table.
        gate: What gates are on average.
        std: Standard deviation of the table.
        heads, width: Of query, key and value.
    """

    queries: int
    keys: int
    entries: int
    gate: float
    std: float = 0.1
    heads: int = 1
    width: int = 64

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}-{self.entries}-{self.gate}-{self.std}"

    def tensors(self):
        """Inputs in float32. Scores are normal, so that a bias sets the mean gate (the probit approximation)."""
        query = torch.randn(1, self.heads, self.queries, self.width)
        key, value = torch.randn(2, 1, self.heads, self.keys, self.width).unbind()
        bias = 40.0 if self.gate == 1.0 else math.log(self.gate / (1 - self.gate)) * math.sqrt(1 + math.pi / 8)
        return {
            "query": query,
            "key": key,
            "value": value,
            "pos_emb": self.std * torch.randn(1, self.width, self.entries),
            "gate_bias": torch.full((self.heads,), bias),
        }

    @property
    def margin(self) -> float:
        """How near to an integer positions count as being at it."""
        return 1e-5 if self.keys <= 512 else 1e-4


@dataclass(frozen=True)
class Error:
    """Of one tensor, relative to its largest value.

    Attributes:
        largest, mean: The largest error, and the root of the mean of their squares.
        eager_largest, eager_mean: Those of the listing.
    """

    largest: float
    mean: float
    eager_largest: float
    eager_mean: float

    @property
    def ratio(self) -> float:
        return self.mean / self.eager_mean if self.mean > 0 else 0.0


# The table's gradient is 0 where all positions are one, that of the gates where they are 1.
SMALLEST = 1e-3


def error(actual, eager, expected):
    scale = max(expected.abs().max().item(), SMALLEST)
    numbers = []
    for x in (actual, eager):
        off = (x.double() - expected) / scale
        numbers += [off.abs().max().item(), off.square().mean().sqrt().item()]
    return Error(*numbers)


def fused(tensors, grad):
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    out = posenc.ops.cope_attention(**leaves)
    return out.detach(), dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad), strict=True))


def measure(case: Grid) -> tuple[dict[str, Error], float]:
    """Errors of out and of the gradient of each tensor, and the share of queries that gradients are compared for."""
    tensors = case.tensors()
    wide = {name: x.double() for name, x in tensors.items()}
    grad = torch.randn_like(tensors["query"])
    # Gates of exactly 1 pass no gradient on, so that their positions may be whole.
    kinks = cope_eager.rows_near_kinks(wide, case.margin) if case.gate < 1 else torch.zeros(grad.shape[:3]).bool()
    grad = grad.masked_fill(kinks.unsqueeze(-1), 0.0)
    results = (
        fused(tensors, grad),
        cope_eager.attention_and_gradients(tensors, grad),
        cope_eager.attention_and_gradients(wide, grad.double()),
    )
    errors = {"out": error(*(out for out, _ in results))}
    errors |= {name: error(*(gradients[name] for _, gradients in results)) for name in tensors}
    return errors, 1 - kinks.double().mean().item()


def main():
    torch.set_num_threads(1)
    started = time.time()
    for length, entries, gate, std in product(LENGTHS, ENTRIES, GATES, (0.1, 1.0)):
        torch.manual_seed(0)
        errors, kept = measure(Grid(length, length, entries, gate, std))
        shown = "  ".join(f"{name} {e.largest:.1e} {e.ratio:.1f}" for name, e in errors.items())
        print(
            f"{length:5} {entries:5} {gate:4} {std:3}  {shown}  kept {kept:.2f}  {time.time() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
