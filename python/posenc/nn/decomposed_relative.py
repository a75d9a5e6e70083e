from collections.abc import Sequence

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.heads import check_query
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_number, plain_numbers
from posenc.nn.score import ScoreEncoding

_grid_positions = torch.ops.posenc._grid_positions.default


class DecomposedRelative(ScoreEncoding):
    """Relative positions on two axes, a table for each (SAM, arXiv 2304.02643; ViTDet, arXiv 2203.16527; after MViTv2,
    arXiv 2112.01526, eq. 4).

    ``score(i, j) = q_i . k_j / sqrt(D) + q_i . (rel_y[h - 1 + y_i - y_j] + rel_x[w - 1 + x_i - x_j])``: ``scale`` does
    not act on the second part. Distances are clipped to the tables.

    ``q_positions`` and ``k_positions`` are integer coordinates (y, x), (2, T) or (2, B, T). Without them there must be
    ``h * w`` keys: the tokens of the grid, row by row, queries the last of them. Causality and windows go by index.

    Args:
        head_dim: D, the width of a head.
        size: (h, w), rows and columns of the grid of tokens, or of the window that a layer attends in.

    Attributes:
        rel_y: The parameter (2h-1, D), by query less key: ``rel_pos_h`` of SAM. Initially zeros, as in SAM and ViTDet.
        rel_x: The parameter (2w-1, D), ``rel_pos_w``.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.DecomposedRelative(64, (4, 8))
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    head_dim: int
    rel_y: Tensor
    rel_x: Tensor

    @plain_numbers
    def __init__(self, head_dim: int, size: Sequence[int]) -> None:
        super().__init__()
        self.size = tuple(plain_number("DecomposedRelative", "size", length, int) for length in size)
        _C.nn.check_decomposed_relative(head_dim, list(self.size))
        self.head_dim = head_dim
        self.rel_y = torch.nn.Parameter(torch.empty(2 * self.size[0] - 1, head_dim))
        self.rel_x = torch.nn.Parameter(torch.empty(2 * self.size[1] - 1, head_dim))
        self.reset_parameters()
        self._fix("head_dim", "size")

    def reset_parameters(self) -> None:
        """Zeroes the tables."""
        torch.nn.init.zeros_(self.rel_y)
        torch.nn.init.zeros_(self.rel_x)

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        check_query("DecomposedRelative", op.query, self.head_dim, None)
        # The tables go by query less key, those of the op by key less query.
        op.add(self, grid_rel_y=self.rel_y.flip(0), grid_rel_x=self.rel_x.flip(0), grid_rel_scale=1.0)
        if op.q_positions is None and op.k_positions is None:
            q, k = _grid_positions(op.query, op.key, self.size, False, "DecomposedRelative")
            op.keywords |= {"q_positions": q, "k_positions": k}

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.head_dim}, {self.size}"
