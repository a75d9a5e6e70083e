"""A call of ``posenc.ops.attention`` while encodings add their terms to it."""

from typing import Any

import torch
from torch import Tensor

# Terms that two encodings may both have. The others would need an argument each.
_SUMS = ("bias", "alibi_slopes", "log_decay")
_TABLES = {"distance_bias": -1, "rel_k": -2, "rel_v": -2, "rel_q": -2}


class OpCall:
    """What encodings make of a call: queries, keys, and the keyword arguments of the op.

    Attributes:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv); None in ``logits``.
        keywords: What the op gets in addition.
        q_positions, k_positions: Those of the call, or None.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor | None, keywords: dict[str, Any]) -> None:
        self.query = query
        self.key = key
        self.value = value
        self.keywords = keywords
        self.q_positions: Tensor | None = keywords.get("q_positions")
        self.k_positions: Tensor | None = keywords.get("k_positions")

    def add(self, encoding: object, **terms: Any) -> None:
        """Adds terms of an encoding. Where one of another encoding is there already, their numbers add up: the ends of
        a table over clipped distances go on as far as the other table does.

        Raises:
            ValueError: The op has no place for both.
        """
        if any(name.startswith("grid_") for name in terms) and any(name.startswith("grid_") for name in self.keywords):
            raise ValueError(
                f"{type(encoding).__name__}: expected no other encoding with places on two axes in the same attention"
            )
        for name, term in terms.items():
            there = self.keywords.get(name)
            if there is not None and name in _SUMS:
                term = there + term
            elif there is not None and name in _TABLES and not ("rel_query" in self.keywords and name == "rel_k"):
                term = _sum_of_tables(there, term, _TABLES[name])
            elif there is not None:
                raise ValueError(
                    f"{type(encoding).__name__}: expected no other encoding with {name} in the same attention"
                )
            self.keywords[name] = term


def _sum_of_tables(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Of tables with 2R + 1 entries along ``dim``, as many as the longer one has."""
    radius = max(a.shape[dim], b.shape[dim]) // 2

    def widened(table: Tensor) -> Tensor:
        own = table.shape[dim] // 2
        places = torch.arange(-radius, radius + 1, device=table.device).clamp(-own, own) + own
        return table if own == radius else table.index_select(dim, places)

    return widened(a) + widened(b)
