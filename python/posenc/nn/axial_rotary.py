import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import assign, on_device_of
from posenc.nn.options import plain_numbers
from posenc.nn.rotary import RotaryEncoding, at_least_float, check_axes
from posenc.ops.rotary import changed_options


class AxialRotary(RotaryEncoding):
    """Rotary embedding over several position axes (RoPE-ViT, arXiv 2403.13298), e.g. rows and columns of an image.

    The D/2 pairs are shared out evenly, axis by axis, and within its D/A columns each axis is a RoPE of its own,
    ``theta_t = base ** (-2t / (D/A))``. Coordinates are in whatever unit suits: patches with base 100, or floating
    ones. A token without a place (a class token) takes position 0 on every axis and passes through unchanged.

    With ``learnable`` the frequencies are "mixed" (eq. 14 there): the angle of each pair is the sum over axes of
    position times frequency. They start as the axial ones.

    Args:
        head_dim: D, a multiple of ``2 * num_axes``.
        num_axes: A.
        base: Base of each axis' frequencies.
        interleaved: Pairs are (2k, 2k+1) instead of (k, k + D/2).
        learnable: ``inv_freq`` is a parameter (A, D/2), or (A, H, D/2) with ``num_heads``.
        num_heads: With ``learnable``: H, for frequencies of each head's own (queries and keys then both have H heads).

    Shape:
        q (B, H, T, D), k (B, G, T, D), positions (A, T) or (A, B, T) -> (q', k'), or q' where k is None

    Example:
        >>> rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
        >>> positions = torch.stack([rows.flatten(), columns.flatten()])
        >>> q = posenc.nn.AxialRotary(64)(torch.randn(1, 8, 24, 64), positions=positions)
    """

    inv_freq: Tensor

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        *,
        num_axes: int = 2,
        base: float = 100.0,
        interleaved: bool = True,
        learnable: bool = False,
        num_heads: int | None = None,
    ) -> None:
        super().__init__()
        twin = _C.nn.AxialRotary(
            head_dim,
            num_axes=num_axes,
            base=base,
            interleaved=interleaved,
            learnable=learnable,
            num_heads=num_heads,
        )
        self.head_dim = head_dim
        self.num_axes = self.position_axes = num_axes
        self.base = base
        self.interleaved = interleaved
        self.learnable = learnable
        self.num_heads = num_heads
        self._initial_inv_freq = twin.initial_inv_freq()
        self._op_options = changed_options(interleaved=interleaved, axes=None if learnable else twin.axes())
        if learnable:
            self.inv_freq = torch.nn.Parameter(torch.empty(self._initial_inv_freq.shape))
            self.reset_parameters()
        else:
            self.inv_freq = self._initial_inv_freq
        constants = () if learnable else ("inv_freq",)
        self._fix("head_dim", "num_axes", "base", "interleaved", "learnable", "num_heads", *constants)

    def reset_parameters(self) -> None:
        """Sets learnable frequencies back to the axial ones."""
        if self.learnable:
            assign(self.inv_freq, self._initial_inv_freq)

    def extra_repr(self) -> str:
        """The options."""
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return (
            f"{self.head_dim}, num_axes={self.num_axes}, base={self.base}, interleaved={self.interleaved}, "
            f"learnable={self.learnable}{heads}"
        )

    def _frequencies_for(
        self, q: Tensor, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor:
        if positions is None:
            raise ValueError("AxialRotary: expected positions of shape (axes, length) or (axes, batch, length)")
        check_axes("AxialRotary", positions, self.num_axes)
        return at_least_float(self.inv_freq) if self.learnable else on_device_of(q, self.inv_freq)
