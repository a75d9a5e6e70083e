from typing import Any, Literal

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
    Over several axes each has an encoding of its own that is ``dim / num_axes`` wide, one after the other: the tables
    of MAE (arXiv 2111.06377) and DiT (arXiv 2212.09748) are those of positions (columns, rows) in the layout
    "concatenated".

    Args:
        dim: Width of an embedding; may be odd. With several axes a multiple of ``2 * num_axes``.
        base: Base of the frequencies.
        layout: "interleaved", the paper's; "concatenated": all sines, then all cosines; "tensor2tensor": the same with
            frequencies ``base ** (-k / (dim/2 - 1))``, as in that library, which adds nothing to the last column of an
            odd ``dim``; "cosines_first": all cosines, then all sines, with frequencies
            ``base ** (-k / (dim // 2))``, as time steps of diffusion models are embedded; an odd ``dim`` has a last
            column to which nothing is added.
        num_axes: A, e.g. 2 for the rows and columns of an image. With more than one, positions must be given.

    Attributes:
        inv_freq: Radians per token of the pairs of one axis, float64.

    Shape:
        x (B, T, dim) or (T, dim) -> the same; with several axes positions are (A, T) or (A, B, T)

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
        layout: Literal["interleaved", "concatenated", "tensor2tensor", "cosines_first"] = "interleaved",
        num_axes: int = 1,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = base
        self.layout = layout
        self.num_axes = num_axes
        self.position_axes = None if num_axes == 1 else num_axes
        self.inv_freq = _C.nn.Sinusoidal(dim, base=base, layout=layout, num_axes=num_axes).inv_freq()
        self._columns: dict[str, Any] = {
            "interleaved": layout == "interleaved",
            "cosines_first": layout == "cosines_first",
        }
        if num_axes != 1:
            self._columns["num_axes"] = num_axes
        self._fix("dim", "base", "layout", "num_axes", "position_axes", "inv_freq")

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.dim}, base={self.base}, layout={self.layout!r}, num_axes={self.num_axes}"

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        return _add_sinusoidal(
            x,
            positions,
            on_device_of(x, self.inv_freq),
            self.dim,
            offset=offset,
            offsets=offsets,
            **self._columns,
        )
