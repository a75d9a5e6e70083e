"""Attention by its formula in float64, for the first and the last key head: what contenders are compared with."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from case import Data

# (heads, *inputs of these heads) -> their output (B, heads, Tq, Dv).
Formula = Callable[..., Tensor]
# (distances (Tq, Tk), heads, *inputs after the value) -> (heads, Tq, Tk), what is added to the scores of these heads.
Bias = Callable[..., Tensor]


class Reference:
    """Outputs and gradients of some heads.

    Args:
        heads: H, of queries (B, H, Tq, D) and of tables (H, ..).
        key_heads: G, of keys and values (B, G, Tk, D).
        formulas: By variant; attention without more is what has no entry.
    """

    def __init__(self, heads: int, key_heads: int, formulas: Mapping[str, Formula]) -> None:
        self._formulas = formulas
        self._key_heads = torch.tensor(sorted({0, key_heads - 1}))
        share = heads // key_heads
        self._heads = (self._key_heads[:, None] * share + torch.arange(share)).flatten()
        self._count = heads

    def excerpt(self, x: Tensor) -> Tensor:
        """The heads that are compared."""
        dim = 1 if x.dim() == 4 else 0
        return x.index_select(dim, self._heads if x.shape[dim] == self._count else self._key_heads)

    def __call__(self, data: Data, variant: str) -> Sequence[Tensor | None]:
        formula = self._formulas.get(variant, _plain)
        inputs = [self.excerpt(x.detach()).double() for x in data.inputs]
        if data.gradients is None:
            return [formula(self._heads, *inputs)]
        for x in inputs:
            x.requires_grad_()
        out = formula(self._heads, *inputs)
        (gradient,) = data.gradients
        return [out.detach(), *torch.autograd.grad(out, inputs, self.excerpt(gradient).double(), allow_unused=True)]


def biased(bias: Bias) -> Formula:
    """Attention with something added to its scores."""

    def formula(heads: Tensor, query: Tensor, key: Tensor, value: Tensor, *more: Tensor) -> Tensor:
        return attend(query, key, value, bias(distances(query.shape[2], key.shape[2]), heads, *more))

    return formula


def attend(query: Tensor, key: Tensor, value: Tensor, added: Tensor | float = 0.0) -> Tensor:
    """Causal attention; `added` to the scores."""
    share = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(share, 1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + added
    return scores.masked_fill(distances(*scores.shape[-2:]) > 0, -torch.inf).softmax(-1) @ value


def distances(queries: int, keys: int) -> Tensor:
    """(Tq, Tk): key position less query position; the last query is at the last key."""
    return torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]


def _plain(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *more: Tensor) -> Tensor:
    return attend(query, key, value)
