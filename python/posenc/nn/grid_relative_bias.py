from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.base import made, made_inside
from posenc.nn.options import plain_number, plain_numbers

_continuous_grid_rows = torch.ops.posenc._continuous_grid_rows.default
_grid_positions = torch.ops.posenc._grid_positions.default
_grid_table = torch.ops.posenc._grid_table.default


class GridRelativeBias(AdditiveEncoding):
    """A bias by the distance on two axes, for each head (Swin, arXiv 2103.14030, eq. 4; BEiT, arXiv 2106.08254).

    With ``dy = y_i - y_j`` and ``dx = x_i - x_j``, query less key, each clipped to the window, scores add
    ``table[(dy + h - 1) * (2w - 1) + dx + w - 1, head]``.

    Of kind "cpb" (Swin v2, arXiv 2111.09883, eq. 3 and 4) these entries are ``16 * sigmoid(mlp(u(dy), u(dx)))`` with
    ``u(d) = sign(d) * log2(1 + 8 * |d| / (window - 1)) / 3``. Swin v2's scores are cosines times a learned scale:
    normalise queries and keys, multiply queries by the scale of their head, and call with ``scale=1.0``.

    ``q_positions`` and ``k_positions`` are integer coordinates (y, x), (2, T) or (2, B, T). Without them there must be
    ``h * w`` keys, one more with a class token: the tokens of the window, row by row, queries the last of them. With a
    class token positions are refused: its place is that of the first token. Causality and windows go by index.

    Args:
        num_heads: H, the query heads.
        window: (h, w), rows and columns of the window that a layer attends in.
        kind: "table": a learned table. "cpb": an MLP, whose entries can be those of any window.
        class_token: The first token is a class token, with entries of its own, as in BEiT. Of kind "table" alone.

    Attributes:
        table: The parameter ((2h-1)(2w-1), num_heads) as Swin and BEiT lay it out; with ``class_token`` three rows
            follow, for pairs (query, key) of class token and other, other and class token, class token and itself.
            Initially N(0, 0.02**2), as in Swin. None of kind "cpb".
        mlp: ``Linear(2, 512)``, ``ReLU``, ``Linear(512, num_heads, bias=False)`` of kind "cpb", else None.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.GridRelativeBias(8, (4, 8))
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    table: Tensor | None
    mlp: torch.nn.Sequential | None

    @plain_numbers
    def __init__(
        self,
        num_heads: int,
        window: Sequence[int],
        *,
        kind: Literal["table", "cpb"] = "table",
        class_token: bool = False,
    ) -> None:
        super().__init__()
        self.window = tuple(plain_number("GridRelativeBias", "window", length, int) for length in window)
        _C.nn.check_grid_relative_bias(num_heads, list(self.window), kind, class_token)
        self.num_heads = num_heads
        self.kind = kind
        self.class_token = class_token
        height, width = (2 * length - 1 for length in self.window)
        rows = height * width + (3 if class_token else 0)
        continuous = kind == "cpb"
        self.register_parameter("table", None if continuous else torch.nn.Parameter(torch.empty(rows, num_heads)))
        hidden = _C.nn.GRID_RELATIVE_BIAS_HIDDEN
        self.mlp = (
            torch.nn.Sequential(
                made(torch.nn.Linear(2, hidden)),
                torch.nn.ReLU(),
                made(torch.nn.Linear(hidden, num_heads, bias=False)),
            )
            if continuous
            else None
        )
        self._reset_own()
        self._fix("num_heads", "window", "kind", "class_token")

    def reset_parameters(self) -> None:
        """Draws ``table``, or the MLP, anew."""
        self._reset_own()
        for layer in made_inside(self):
            layer.reset_parameters()

    def _reset_own(self) -> None:
        if self.table is not None:
            torch.nn.init.normal_(self.table, 0.0, _C.nn.GRID_RELATIVE_BIAS_INITIAL_STD)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.num_heads}, {self.window}, kind={self.kind!r}, class_token={self.class_token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        rows = self._rows(call.query)
        table = _grid_table(rows, call.query, self.window, self.class_token)
        if call.q_positions is None and call.k_positions is None:
            q, k = _grid_positions(call.query, call.key, self.window, self.class_token, "GridRelativeBias")
            return ScoreTerms(grid_bias=table, q_positions=q, k_positions=k)
        if self.class_token:
            raise ValueError(
                "GridRelativeBias: expected no q_positions or k_positions with class_token, whose tokens are the class "
                "token and those of the window"
            )
        return ScoreTerms(grid_bias=table)

    def _rows(self, query: Tensor) -> Tensor:
        """The entries in the order of ``table``."""
        if self.table is not None:
            return self.table
        layers = [layer for layer in self.mlp or [] if isinstance(layer, torch.nn.Linear)]
        if self.mlp is None or len(layers) != 2 or len(self.mlp) != 3:
            raise ValueError(
                "GridRelativeBias: expected mlp to be a Linear, a ReLU and a Linear, whose weights the op reads, but "
                f"got {[type(layer).__name__ for layer in self.mlp or []]}: merge adapters into the weights"
            )
        first, last = layers
        return _continuous_grid_rows(first.weight, first.bias, last.weight, query, self.window)
