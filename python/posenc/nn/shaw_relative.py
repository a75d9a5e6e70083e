import torch
from torch import Tensor

from posenc import _C
from posenc.nn.heads import check_query, check_width
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.score import ScoreEncoding


class ShawRelative(ScoreEncoding):
    """Relative position representations (Shaw et al., arXiv 1803.02155, eq. 3 and 4).

    Learned vectors for each clipped distance ``r = R + clip(k_position - q_position, -R, R)``, added to keys and to
    values: ``score(i, j) = q_i . (k_j + rel_k[r]) / sqrt(D)`` and ``out_i = sum over j of weight(i, j) (v_j +
    rel_v[r])``.

    Tables start uniform within ``sqrt(6 / (2R + 1 + D))``, Glorot's bound. The paper names no initialisation; this is
    the default that the authors' code in tensor2tensor uses.

    Args:
        head_dim: D, the width of a head.
        max_distance: R, in tokens; larger distances share the last entries. The paper uses 16.
        num_heads: H: tables per head. None: tables that all heads share, as in the paper.
        values: False: no ``rel_v``, relative positions act on the scores alone.

    Attributes:
        rel_k: The parameter (2R+1, D) or (H, 2R+1, D).
        rel_v: The same for values, which are then D wide; None where ``values`` is False.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.ShawRelative(64, 16)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, is_causal=True)
    """

    head_dim: int
    rel_k: Tensor
    rel_v: Tensor | None

    @plain_numbers
    def __init__(self, head_dim: int, max_distance: int, *, num_heads: int | None = None, values: bool = True) -> None:
        super().__init__()
        self._bound = _C.nn.shaw_relative_initial_bound(head_dim, max_distance, num_heads, values)
        self.head_dim = head_dim
        self.max_distance = max_distance
        self.num_heads = num_heads
        self.values = values
        per_head = () if num_heads is None else (num_heads,)
        sizes = (*per_head, 2 * max_distance + 1, head_dim)
        self.rel_k = torch.nn.Parameter(torch.empty(sizes))
        self.register_parameter("rel_v", torch.nn.Parameter(torch.empty(sizes)) if values else None)
        self.reset_parameters()
        self._fix("head_dim", "max_distance", "num_heads", "values")

    def reset_parameters(self) -> None:
        """Draws the tables anew."""
        for table in self.parameters(recurse=False):
            torch.nn.init.uniform_(table, -self._bound, self._bound)

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`. The weights also multiply ``rel_v``, where there is one, in :meth:`attend`."""
        check_query("ShawRelative", op.query, self.head_dim, self.num_heads)
        op.add(self, rel_k=self.rel_k)
        if self.rel_v is not None and op.value is not None:
            check_width("ShawRelative", "value", op.value, self.head_dim)
            op.add(self, rel_v=self.rel_v)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.head_dim}, {self.max_distance}, num_heads={self.num_heads}, values={self.values}"
