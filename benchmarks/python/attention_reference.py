"""Attention by its formula in float64, for some heads, a block of queries at a time:
what contenders are compared with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from case import Data

# Scores of a block: they and what is made of them stay in the caches.
BLOCK = 1 << 19
# With so many keys one key head is compared, with fewer the first and the last.
MANY_KEYS = 2048


@dataclass(frozen=True)
class Block:
    """Some queries of some heads, and the keys that they see.

    Attributes:
        heads: Their numbers among all heads.
        queries: Their rows.
        keys: How many keys the last of them sees: it stands at the last one.
    """

    heads: Tensor
    queries: slice
    keys: int

    def of_queries(self, x: Tensor) -> Tensor:
        """(B, H, Tq, D) -> the rows of this block."""
        return x[:, :, self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        """(B, G, Tk, D) -> (B, H, keys, D), for every head those of its group."""
        return x[:, :, : self.keys].repeat_interleave(len(self.heads) // x.shape[1], 1)

    def distances(self) -> Tensor:
        """(queries, keys): key position less query position."""
        return distances(self.queries.stop - self.queries.start, self.keys)

    def steps(self, width: int) -> tuple[Tensor, Tensor]:
        """The same on two axes, where tokens are those of a picture with rows of ``width``: along y, and along x."""
        keys, queries = torch.arange(self.keys), torch.arange(self.queries.start, self.queries.stop)[:, None]
        return keys // width - queries // width, keys % width - queries % width


# (block, *inputs of its heads) -> what these queries give, (B, heads, queries, ..).
Formula = Callable[..., Tensor]
# (block, *inputs after the value) -> (heads, queries, keys), what is added to the scores.
Bias = Callable[..., Tensor]


class Reference:
    """Outputs and gradients of some heads.

    Args:
        heads: H, of queries (B, H, Tq, D) and of tables (H, ..); other tables are shared by the heads.
        key_heads: G, of keys and values (B, G, Tk, D).
        keys: Tk.
        formulas: By variant; attention without more is what has no entry.
        kinks: (block, *inputs) -> (B, heads, queries), whose gradients a rounding error may change beyond measure.
    """

    def __init__(
        self,
        heads: int,
        key_heads: int,
        keys: int,
        formulas: Mapping[str, Formula],
        kinks: Formula | None = None,
    ) -> None:
        self._formulas = formulas
        self._kinks = kinks
        self._key_heads = torch.tensor(sorted({0 if keys < MANY_KEYS else key_heads - 1, key_heads - 1}))
        share = heads // key_heads
        self._heads = (self._key_heads[:, None] * share + torch.arange(share)).flatten()
        self._count = heads

    def excerpt(self, x: Tensor) -> Tensor:
        """The heads that are compared; the whole of a table that all share."""
        if x.dim() == 4:
            return x.index_select(1, self._heads if x.shape[1] == self._count else self._key_heads)
        return x.index_select(0, self._heads) if x.shape[0] == self._count else x

    def focused(self, data: Data) -> Data:
        """The same work, but only what is compared has a gradient,
        so that those of shared tables come from it alone."""
        if data.gradients is None:
            return data
        (gradient,) = data.gradients
        compared = self.excerpt(gradient)
        if self._kinks is not None:
            inputs = self._inputs(data)
            near = [self._kinks(block, *inputs) for block in self._blocks(data)]
            compared = compared.masked_fill(torch.cat(near, 2)[..., None], 0.0)
        return replace(data, gradients=(torch.zeros_like(gradient).index_copy(1, self._heads, compared),))

    def __call__(self, data: Data, variant: str) -> Sequence[Tensor | None]:
        formula = self._formulas.get(variant, attend)
        inputs = self._inputs(data)
        if data.gradients is None:
            return [torch.cat([formula(block, *inputs) for block in self._blocks(data)], 2)]
        gradient = self.excerpt(data.gradients[0]).double()
        for x in inputs:
            x.requires_grad_()
        outs = []
        for block in self._blocks(data):
            out = formula(block, *inputs)
            out.backward(block.of_queries(gradient))
            outs.append(out.detach())
        return [torch.cat(outs, 2), *(x.grad for x in inputs)]

    def _inputs(self, data: Data) -> list[Tensor]:
        return [self.excerpt(x.detach()).double() for x in data.inputs]

    def _blocks(self, data: Data) -> Iterator[Block]:
        queries, keys = (x.shape[2] for x in data.inputs[:2])
        rows = max(1, BLOCK // (len(self._heads) * keys))
        for begin in range(0, queries, rows):
            end = min(begin + rows, queries)
            yield Block(self._heads, slice(begin, end), keys - queries + end)


def attend(block: Block, query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
    """Causal attention."""
    return weights(block, scores(block, query, key)) @ block.of_keys(value)


def biased(bias: Bias) -> Formula:
    """Causal attention with something added to its scores."""

    def formula(block: Block, query: Tensor, key: Tensor, value: Tensor, *more: Tensor) -> Tensor:
        return weights(block, scores(block, query, key) + bias(block, *more)) @ block.of_keys(value)

    return formula


def sunk(block: Block, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
    """Causal attention with a logit (H) for each head in the softmax, without a value (gpt-oss)."""
    logits = hide(block, scores(block, query, key))
    sink = sinks.reshape(-1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, sink], -1).softmax(-1)[..., :-1] @ block.of_keys(value)


def capped(cap: float) -> Formula:
    """Causal attention of scores cap * tanh(score / cap) (Gemma 2)."""

    def formula(block: Block, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return weights(block, cap * torch.tanh(scores(block, query, key) / cap)) @ block.of_keys(value)

    return formula


def relative(block: Block, query: Tensor, key: Tensor, value: Tensor, rel_query: Tensor, rel_k: Tensor) -> Tensor:
    """Causal attention with a table (T, D) over distances T - 1 to 0 and a query of its own (Transformer-XL)."""
    by_row = block.of_queries(rel_query) @ rel_k.t() * query.shape[-1] ** -0.5
    row = (block.distances().clamp(max=0) + rel_k.shape[0] - 1).expand(*by_row.shape[:-1], block.keys)
    return weights(block, scores(block, query, key) + by_row.gather(-1, row)) @ block.of_keys(value)


def disentangled(block: Block, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor) -> Tensor:
    """Causal attention with tables (H, 2R + 1, D) over distances: the last multiplies keys, one before it queries
    (DeBERTa)."""
    added = scores(block, query, key)
    radius = tables[0].shape[1] // 2
    row = (block.distances().clamp(-radius, radius) + radius).expand(added.shape)
    scale = query.shape[-1] ** -0.5
    if len(tables) > 1:
        added = added + (block.of_queries(query) @ tables[0].transpose(1, 2) * scale).gather(-1, row)
    by_key = tables[-1] @ block.of_keys(key).transpose(-1, -2) * scale
    return weights(block, added + by_key.gather(-2, row)) @ block.of_keys(value)


def grid_bias(block: Block, table: Tensor) -> Tensor:
    """A table (H, 2h-1, 2w-1) over distances in a picture (Swin)."""
    height, width = (length // 2 + 1 for length in table.shape[1:])
    dy, dx = block.steps(width)
    return table[:, dy + height - 1, dx + width - 1]


def on_axes(block: Block, query: Tensor, key: Tensor, value: Tensor, *tables: Tensor) -> Tensor:
    """Causal attention with tables (2h-1, D) and (2w-1, D) over distances in a picture (SAM)."""
    logits, rows = scores(block, query, key), block.of_queries(query)
    for step, table in zip(block.steps(len(tables[1]) // 2 + 1), tables, strict=True):
        entry = (step + len(table) // 2).expand(*logits.shape)
        logits = logits + (rows @ table.t()).gather(-1, entry)
    return weights(block, logits) @ block.of_keys(value)


def scores(block: Block, query: Tensor, key: Tensor) -> Tensor:
    """Of every key, hidden ones too."""
    return block.of_queries(query) @ block.of_keys(key).transpose(-1, -2) * query.shape[-1] ** -0.5


def weights(block: Block, of: Tensor) -> Tensor:
    """Softmax of scores over the keys that a query sees."""
    return hide(block, of).softmax(-1)


def hide(block: Block, logits: Tensor) -> Tensor:
    """-infinity at keys later than the query."""
    return logits.masked_fill(block.distances() > 0, -torch.inf)


def distances(queries: int, keys: int) -> Tensor:
    """(Tq, Tk): key position less query position; the last query is at the last key."""
    return torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
