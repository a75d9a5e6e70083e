from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.base import on_device_of
from posenc.nn.options import plain_numbers

_add_sinusoidal = torch.ops.posenc._add_sinusoidal.default


class Sinusoidal(AbsoluteEncoding):
    """Sinusoidal encoding (Attention Is All You Need, arXiv 1706.03762, section 3.5), added to embeddings.

    ``PE[p, 2k] = sin(p * base ** (-2k/dim))`` and ``PE[p, 2k+1] = cos(the same)``; an odd ``dim`` has no last cosine.
    Angles are formed in float64, whatever the dtype of ``x``. There is nothing to learn and no limit to the length.

    Args:
        dim: Width of an embedding; may be odd.
        base: Base of the frequencies.
        layout: "interleaved", the paper's; "concatenated": all sines, then all cosines; "tensor2tensor": the same with
            frequencies ``base ** (-k / (dim/2 - 1))``, as in that library, which adds nothing to the last column of an
            odd ``dim``.

    Shape:
        x (B, T, dim) or (T, dim) -> the same

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> posenc.nn.Sinusoidal(4)(torch.zeros(2, 4))
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    @plain_numbers
    def __init__(
        self,
        dim: int,
        *,
        base: float = 10000.0,
        layout: Literal["interleaved", "concatenated", "tensor2tensor"] = "interleaved",
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = base
        self.layout = layout
        self.inv_freq = _C.nn.Sinusoidal(dim, base=base, layout=layout).inv_freq()
        self._interleaved = layout == "interleaved"
        self._fix("dim", "base", "layout", "inv_freq")

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.dim}, base={self.base}, layout={self.layout!r}"

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        return _add_sinusoidal(
            x,
            positions,
            on_device_of(x, self.inv_freq),
            self.dim,
            interleaved=self._interleaved,
            offset=offset,
            offsets=offsets,
        )
