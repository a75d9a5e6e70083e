from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.base import assign, fake_mode, on_device_of
from posenc.nn.options import plain_number, plain_numbers

_alibi_terms = torch.ops.posenc._alibi_terms.default


class ALiBi(AdditiveEncoding):
    """Attention with linear biases (arXiv 2108.12409, section 3).

    Adds ``-slope_h * |i - j|`` to the score of query position i and key position j.

    Args:
        num_heads: H, the query heads.
        slopes: One for each head. None: those of :func:`posenc.ops.alibi_slopes`.
        learnable: Makes the slopes a parameter.

    Attributes:
        slopes: (H). A parameter where ``learnable``; else a buffer that is not in the ``state_dict``. The buffer moves
            to the module's device but stays float64, so that ``.half().float()`` does not round it.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.ALiBi(8)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, is_causal=True)
    """

    slopes: Tensor

    @plain_numbers
    def __init__(self, num_heads: int, *, slopes: Sequence[float] | Tensor | None = None, learnable: bool = False):
        super().__init__()
        numbers = None if slopes is None else [plain_number("ALiBi", "slopes", slope, float) for slope in slopes]
        self._initial_slopes = _C.nn.ALiBi(num_heads, slopes=numbers).initial_slopes()
        self._given_slopes = None if numbers is None else tuple(numbers)
        self.num_heads = num_heads
        self.learnable = learnable
        if learnable:
            self.slopes = torch.nn.Parameter(torch.empty(num_heads))
            self.reset_parameters()
        else:
            mode = fake_mode()
            slopes = self._initial_slopes.clone() if mode is None else mode.from_tensor(self._initial_slopes)
            self.register_buffer("slopes", slopes, persistent=False)
        self._fix("num_heads", "learnable", *(() if learnable else ("slopes",)))

    def reset_parameters(self) -> None:
        """Sets learnable slopes to their initial values."""
        if self.learnable:
            assign(self.slopes, self._initial_slopes)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.num_heads}, slopes={self._given_slopes}, learnable={self.learnable}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        slopes = self._buffers.pop("slopes", None)
        try:
            result = super()._apply(fn, recurse)
            if slopes is not None:
                device = fn(torch.empty(0, device=slopes.device)).device
                if device.type == "meta":  # would lose the numbers; a call moves the slopes to its own device anyway
                    device = slopes.device
                dtype = torch.float32 if device.type == "mps" else slopes.dtype  # MPS has no float64
                slopes = slopes.to(device, dtype)
        finally:
            if slopes is not None:
                self._buffers["slopes"] = slopes
        return result

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        slopes = self.slopes
        if not self.learnable:
            if isinstance(slopes, FakeTensor):  # of a mode that may have ended since
                slopes = self._initial_slopes
            slopes = on_device_of(call.query, slopes)
        return ScoreTerms(slopes=_alibi_terms(slopes, call.query, call.key))
