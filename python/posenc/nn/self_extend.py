import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import on_device_of
from posenc.nn.options import plain_numbers
from posenc.nn.piecewise import PiecewiseEncoding

_self_extend_qk = torch.ops.posenc._self_extend_qk.default


class SelfExtend(PiecewiseEncoding):
    """Self-Extend (arXiv 2401.01325, eq. 4): RoPE with distances in groups outside a window, for texts longer than
    trained on.

    The distance of query position i and key position j is ``i - j`` where that is below a window W, else
    ``floor(i/G) + W - W/G - floor(j/G)``, in groups of G tokens. W/G need not be whole. No training is needed.

    Queries and keys come unrotated, and a cache holds unrotated keys.

    Args:
        head_dim: D, the width of a head; even.
        group: G, in tokens.
        window: W, in tokens: distances below it are RoPE's.
        base: Base of the frequencies ``base ** (-2k/D)``.
        interleaved: Pairs are (2k, 2k+1) instead of (k, k + D/2).

    Attributes:
        inv_freq: (D/2) radians per token, float64.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit; positions are not integers.

    Example:
        >>> encoding = posenc.nn.SelfExtend(64, group=4, window=512)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        *,
        group: int = 8,
        window: int = 1024,
        base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        twin = _C.nn.SelfExtend(head_dim, group=group, window=window, base=base, interleaved=interleaved)
        self.head_dim = head_dim
        self.group = group
        self.window = self.threshold = window
        self.base = base
        self.interleaved = interleaved
        self.inv_freq = twin.inv_freq()
        self._fix("head_dim", "group", "window", "threshold", "base", "interleaved", "inv_freq")

    def sides(
        self, query: Tensor, key: Tensor, q_positions: Tensor | None = None, k_positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _self_extend_qk(
            query,
            key,
            on_device_of(query, self.inv_freq),
            group=self.group,
            window=self.window,
            interleaved=self.interleaved,
            q_positions=q_positions,
            k_positions=k_positions,
        )

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.head_dim}, group={self.group}, window={self.window}, base={self.base}, "
            f"interleaved={self.interleaved}"
        )
