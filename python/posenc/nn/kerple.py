from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.options import plain_numbers

_kerple_table = torch.ops.posenc._kerple_table.default


class Kerple(AdditiveEncoding):
    """KERPLE (arXiv 2205.09921): kernels of the distance, learned for each head.

    Adds ``-r1 * ln(1 + r2 * n)`` (log) or ``-r1 * n ** r2`` (power) for the distance ``n = |i - j|``. Power with r2 = 1
    is ALiBi.

    Both are clamped to at least 0.01 where they are used, and r2 to at most 2 for power. Their gradients pass the clamp
    unchanged, so that training can move a parameter back into the range; with a plain clamp its gradient would be 0
    there.

    Given positions are read to find the length of the table of distances, which breaks a compiled graph. The length is
    the largest distance of a query to a key in its row, masked keys included, at most 2**24 tokens.

    Args:
        num_heads: H, the query heads.
        kind: "log" or "power".

    Attributes:
        r1: A parameter (H), initially U(0, 2).
        r2: A parameter (H), initially U(0, 1).

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit, or given positions are more than 2**24 tokens apart.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.Kerple(8)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, is_causal=True)
    """

    r1: Tensor
    r2: Tensor

    @plain_numbers
    def __init__(self, num_heads: int, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__()
        _C.nn.check_kerple(num_heads, kind=kind)
        self.num_heads = num_heads
        self.kind = kind
        self._power = kind == "power"
        self.r1 = torch.nn.Parameter(torch.empty(num_heads))
        self.r2 = torch.nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()
        self._fix("num_heads", "kind")

    def reset_parameters(self) -> None:
        """Draws ``r1`` and ``r2`` anew."""
        torch.nn.init.uniform_(self.r1, 0.0, 2.0)
        torch.nn.init.uniform_(self.r2, 0.0, 1.0)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.num_heads}, kind={self.kind!r}"

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        table = _kerple_table(
            self.r1,
            self.r2,
            call.query,
            call.key,
            power=self._power,
            q_positions=call.q_positions,
            k_positions=call.k_positions,
        )
        return ScoreTerms(distance_bias=table)
