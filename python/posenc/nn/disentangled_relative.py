import math

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import check_dense
from posenc.nn.heads import check_query
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.score import ScoreEncoding

_disentangled_table = torch.ops.posenc._disentangled_table.default


class DisentangledRelative(ScoreEncoding):
    """Disentangled attention of DeBERTa (He et al., arXiv 2006.03654, eq. 4).

    Learned vectors for each distance, or bucket of distances, that are multiplied with queries and with keys:
    ``score(i, j) = scale * (q_i . k_j + q_i . rel_k[r] + k_j . rel_q[r])`` with ``r = span + clip(i - j, -span, span -
    1)``; ``span`` is ``max_distance``, or with ``buckets`` the number of them, and then ``bucket(i - j)`` stands in the
    place of ``i - j``. ``scale`` is ``1 / sqrt(D * (1 + c2p + p2c))`` unless a call says otherwise.

    DeBERTa makes its tables for each layer: the projections, as keys and as queries, of one table for all layers,
    ``key_proj(rel_embeddings)`` and ``query_proj(rel_embeddings)``, split into heads.

    Args:
        head_dim: D, the width of a head.
        num_heads: H, the query heads.
        max_distance: In tokens, at most 65536; distances beyond it share the last rows. DeBERTa's
            ``max_relative_positions``, or ``max_position_embeddings`` where that is below 1.
        buckets: DeBERTa v2 and v3's ``position_buckets``, 256: even. Half of them for each direction: a row for each
            distance up to ``buckets / 2``, then rows whose width grows with the logarithm of the distance. None: a row
            for each distance (v1).
        c2p: Content to position: whether there is ``rel_k``.
        p2c: Position to content: whether there is ``rel_q``.

    Attributes:
        rel_k: The parameter (H, 2 * span, D); None where ``c2p`` is False. Initially N(0, 0.02^2), as in DeBERTa.
        rel_q: The same; None where ``p2c`` is False.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.DisentangledRelative(64, 12, 512, buckets=256)
        >>> q, k, v = torch.randn(3, 1, 12, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    head_dim: int
    num_heads: int
    rel_k: Tensor | None
    rel_q: Tensor | None

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        max_distance: int,
        *,
        buckets: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
    ) -> None:
        super().__init__()
        span = _C.nn.disentangled_relative_span(head_dim, num_heads, max_distance, buckets=buckets, c2p=c2p, p2c=p2c)
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.buckets = buckets
        self.c2p = c2p
        self.p2c = p2c
        self.scale = 1 / math.sqrt(head_dim * (1 + c2p + p2c))
        for name, there in (("rel_k", c2p), ("rel_q", p2c)):
            table = torch.nn.Parameter(torch.empty(num_heads, 2 * span, head_dim)) if there else None
            self.register_parameter(name, table)
        self.reset_parameters()
        self._fix("head_dim", "num_heads", "max_distance", "buckets", "c2p", "p2c", "scale")

    def reset_parameters(self) -> None:
        """Draws the tables anew."""
        for table in self.parameters(recurse=False):
            torch.nn.init.normal_(table, 0.0, _C.nn.DISENTANGLED_RELATIVE_INITIAL_STD)

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        check_query("DisentangledRelative", op.query, self.head_dim, self.num_heads)
        for name in ("rel_k", "rel_q"):
            table = getattr(self, name)
            if table is not None:
                check_dense("DisentangledRelative", name, table)
                op.add(self, **{name: _disentangled_table(table, self.max_distance, self.buckets)})

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.head_dim}, {self.num_heads}, {self.max_distance}, buckets={self.buckets}, c2p={self.c2p}, "
            f"p2c={self.p2c}"
        )
