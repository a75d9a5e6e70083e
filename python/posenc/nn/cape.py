import torch
from torch import Tensor

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.base import on_device_of
from posenc.nn.options import plain_numbers

_add_cape = torch.ops.posenc._add_cape.default


class CAPE(AbsoluteEncoding):
    """CAPE (arXiv 2106.03143): sinusoidal encoding whose positions move at random in training.

    ``p' = scale * (p + shift + local)``. Each sequence has one shift, uniform up to ``max_global_shift`` either way,
    and one scale, its logarithm uniform up to that of ``max_global_scaling`` either way; each token has a local shift,
    uniform up to ``max_local_shift`` either way. Every call draws anew from torch's generator. After ``eval()`` the
    encoding equals :class:`Sinusoidal`.

    Args:
        dim: Width of an embedding; may be odd.
        max_global_shift: Largest shift of a sequence, in tokens.
        max_local_shift: Largest shift of a single token, in tokens; up to 0.5 keeps the order of tokens.
        max_global_scaling: Largest factor by which positions are multiplied or divided, at least 1.
        base: Base of the frequencies.
        centre: Subtracts the mean position of a call's tokens first. A call must then hold a whole sequence, and an
            ``offset``, which would cancel out, raises.

    Shape:
        x (B, T, dim) or (T, dim) -> the same

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.CAPE(64)
        >>> y = encoding(torch.randn(2, 16, 64))  # encoding.eval() for inference
    """

    @plain_numbers
    def __init__(
        self,
        dim: int,
        *,
        max_global_shift: float = 5.0,
        max_local_shift: float = 0.5,
        max_global_scaling: float = 1.03,
        base: float = 10000.0,
        centre: bool = False,
    ) -> None:
        super().__init__()
        self._augmentation = {
            "max_global_shift": max_global_shift,
            "max_local_shift": max_local_shift,
            "max_global_scaling": max_global_scaling,
        }
        self.dim = dim
        self.max_global_shift = max_global_shift
        self.max_local_shift = max_local_shift
        self.max_global_scaling = max_global_scaling
        self.base = base
        self.centre = centre
        self.inv_freq = _C.nn.CAPE(dim, base=base, centre=centre, **self._augmentation).inv_freq()
        self._fix("dim", "max_global_shift", "max_local_shift", "max_global_scaling", "base", "centre", "inv_freq")

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.dim}, max_global_shift={self.max_global_shift}, max_local_shift={self.max_local_shift}, "
            f"max_global_scaling={self.max_global_scaling}, base={self.base}, centre={self.centre}"
        )

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        return _add_cape(
            x,
            positions,
            on_device_of(x, self.inv_freq),
            self.dim,
            training=self.training,
            centre=self.centre,
            offset=offset,
            offsets=offsets,
            **self._augmentation,
        )
