import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import on_device_of
from posenc.nn.options import plain_numbers
from posenc.nn.piecewise import PiecewiseEncoding

_rerope_qk = torch.ops.posenc._rerope_qk.default
_leaky_rerope_qk = torch.ops.posenc._leaky_rerope_qk.default


class ReRoPE(PiecewiseEncoding):
    """RoPE whose distance n stops growing at a window w (Su, kexue.fm 9708), for texts longer than a model was trained
    on.

    Plain: ``min(n, w)``. Leaky, with a leak k: n below w, else ``w + (n - w) / k``. No training is needed.

    For near keys (n < w) query and key are rotated by their positions. For far keys, plain: the query is rotated by the
    constant position w and the key is not rotated. Leaky: the query is rotated by its position + w (k - 1) and the key
    by its own, both with frequencies divided by k.

    Queries and keys come unrotated, and a cache holds unrotated keys.

    Args:
        head_dim: D, the width of a head; even.
        window: w, in tokens: distances below it are RoPE's.
        leak: k, at least 1. None: plain.
        base: Base of the frequencies ``base ** (-2k/D)``.
        interleaved: Pairs are (2k, 2k+1) instead of (k, k + D/2).
        log_scale_length: L0, in tokens, usually the trained length: queries are multiplied by
            ``max(1, ln(position + 1) / ln L0)``. None: not scaled.

    Attributes:
        inv_freq: (D/2) radians per token, float64.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit; positions are not integers.

    Example:
        >>> encoding = posenc.nn.ReRoPE(64, 512, log_scale_length=4096)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        window: int = 512,
        *,
        leak: float | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        log_scale_length: int | None = None,
    ) -> None:
        super().__init__()
        twin = _C.nn.ReRoPE(
            head_dim,
            window,
            leak=leak,
            base=base,
            interleaved=interleaved,
            log_scale_length=log_scale_length,
        )
        self.head_dim = head_dim
        self.window = self.threshold = window
        self.leak = leak
        self.base = base
        self.interleaved = interleaved
        self.log_scale_length = log_scale_length
        self.inv_freq = twin.inv_freq()
        self._far_inv_freq = twin.far_inv_freq()
        self._fix(
            "head_dim",
            "window",
            "threshold",
            "leak",
            "base",
            "interleaved",
            "log_scale_length",
            "inv_freq",
            "_far_inv_freq",
        )

    def sides(
        self, query: Tensor, key: Tensor, q_positions: Tensor | None = None, k_positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inv_freq = on_device_of(query, self.inv_freq)
        if self._far_inv_freq is None:
            q_near, k_near, q_far = _rerope_qk(
                query,
                key,
                inv_freq,
                window=self.window,
                interleaved=self.interleaved,
                log_scale_length=self.log_scale_length,
                q_positions=q_positions,
                k_positions=k_positions,
            )
            return q_near, k_near, q_far, key
        return _leaky_rerope_qk(
            query,
            key,
            inv_freq,
            on_device_of(query, self._far_inv_freq),
            window=self.window,
            leak=self.leak,
            interleaved=self.interleaved,
            log_scale_length=self.log_scale_length,
            q_positions=q_positions,
            k_positions=k_positions,
        )

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.head_dim}, {self.window}, leak={self.leak}, base={self.base}, interleaved={self.interleaved}, "
            f"log_scale_length={self.log_scale_length}"
        )
