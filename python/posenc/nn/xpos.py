import torch
from torch import Tensor

from posenc import _C, ops
from posenc.nn.base import check_dense, on_device_of
from posenc.nn.options import plain_numbers
from posenc.nn.rotary import RotaryEncoding


class XPos(RotaryEncoding):
    """xPos (arXiv 2212.10554): RoPE with scores that decay with the distance.

    Queries grow by ``zeta_k ** ((p - centre) / scale_base)`` and keys shrink by the same, with
    ``zeta_k = (2k/D + 0.4) / 1.4``, so the product of a query and a key ``n`` tokens before it carries
    ``zeta_k ** (n / scale_base)``. Meant for causal attention. The centre is a constant, so that cached keys stay
    valid. Scores do not depend on it, but the size of the numbers does: choose it near the positions in use. Keys of
    pair 0 overflow about 36000 tokens from it in float32, and about 4500 in float16.

    Args:
        head_dim: D, even.
        base: Base of the frequencies.
        scale_base: Tokens over which a pair decays by its zeta.
        centre: Position, in tokens, at which queries and keys are not scaled.
        interleaved: Pairs are (2k, 2k+1), as in the authors' code, instead of (k, k + D/2).

    Shape:
        q (B, H, T, D), k (B, G, T, D) -> (q', k'), or q', taken as queries, where k is None

    Example:
        >>> q, k = posenc.nn.XPos(64)(torch.randn(1, 8, 16, 64), torch.randn(1, 8, 16, 64))
    """

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        scale_base: float = 512.0,
        centre: float = 0.0,
        interleaved: bool = True,
    ) -> None:
        super().__init__()
        twin = _C.nn.XPos(head_dim, base=base, scale_base=scale_base, centre=centre, interleaved=interleaved)
        self.head_dim = head_dim
        self.base = base
        self.scale_base = scale_base
        self.centre = centre
        self.interleaved = interleaved
        self.inv_freq, self._growth = twin.constants()
        self._fix("head_dim", "base", "scale_base", "centre", "interleaved", "inv_freq", "_growth")

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.head_dim}, base={self.base}, scale_base={self.scale_base}, centre={self.centre}, "
            f"interleaved={self.interleaved}"
        )

    def _rotate(
        self, q: Tensor, k: Tensor | None, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if k is not None:
            check_dense("XPos", "k", k)
        if k is not None and (k.dim() != 4 or (q.shape[0], *q.shape[2:]) != (k.shape[0], *k.shape[2:])):
            raise ValueError(
                "XPos: expected q and k to have equal batch, length and head_dim, but got q of shape "
                f"{list(q.shape)} and k of shape {list(k.shape)}"
            )
        q_turned = self._turn(q, positions, offset)
        return q_turned if k is None else (q_turned, self._turn(k, positions, offset, inverse=True))

    def shift(self, key: Tensor, by: int) -> Tensor:
        """Rotates keys on by the angles of ``by`` tokens, and shrinks them by as many."""
        return self._turn(key, self._shifts(key, by), 0, inverse=True, centre=0.0)

    def _turn(
        self,
        x: Tensor,
        positions: Tensor | None,
        offset: int | Tensor,
        *,
        inverse: bool = False,
        centre: float | None = None,
    ) -> Tensor:
        growth = on_device_of(x, self._growth)
        cos, sin = ops.rotary_tables(
            positions,
            on_device_of(x, self.inv_freq),
            length=x.shape[-2],
            offset=offset,
            dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
            decay=-growth if inverse else growth,
            centre=self.centre if centre is None else centre,
        )
        return ops.apply_rotary(x, cos, sin, interleaved=self.interleaved)
