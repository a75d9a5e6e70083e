"""Rotary ops; :mod:`posenc.ops` offers and explains them."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

_ops = torch.ops.posenc
_rotary = _ops.rotary.default
_rotary_qk = _ops.rotary_qk.default
_rotary_qk_ = _ops.rotary_qk_.default
_rotary_tables = _ops.rotary_tables.default
_apply_rotary = _ops.apply_rotary.default
_apply_rotary_qk = _ops.apply_rotary_qk.default
_apply_rotary_qk_ = _ops.apply_rotary_qk_.default
_permute_rotary_weight = _ops.permute_rotary_weight.default


def changed_options(
    attention_scaling: float = 1.0,
    interleaved: bool = False,
    inverse: bool = False,
    axes: Sequence[int] | None = None,
    exact: bool = True,
) -> dict[str, Any]:
    """Options of a rotary op that differ from the defaults: each one passed takes time, which shows in decoding."""
    options: dict[str, Any] = {}
    if attention_scaling != 1.0:
        options["attention_scaling"] = attention_scaling
    if interleaved:
        options["interleaved"] = interleaved
    if inverse:
        options["inverse"] = inverse
    if axes is not None:
        options["axes"] = axes
    if not exact:
        options["exact"] = exact
    return options


def _options(offset: int | Tensor, *options: Any) -> dict[str, Any]:
    """:func:`changed_options`, and the offset under the name that ops have for its kind."""
    changed = changed_options(*options)
    changed["offsets" if isinstance(offset, Tensor) else "offset"] = offset
    return changed


def rotary(
    x: Tensor,
    positions: Tensor | None,
    inv_freq: Tensor,
    *,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
    inverse: bool = False,
    axes: Sequence[int] | None = None,
    exact: bool = True,
    offset: int | Tensor = 0,
) -> Tensor:
    """Rotary position embedding (RoFormer, arXiv 2104.09864, eq. 14), table-free.

    Each pair (a, b) of ``x`` becomes ``s * (a cos t - b sin t, b cos t + a sin t)`` with ``t = position * inv_freq[k]``
    and ``s = attention_scaling``. Columns R..D-1 pass through unchanged. Gradients to ``x``, and to ``inv_freq`` and
    floating ``positions`` where asked.

    Shape:
        x (B, H, T, D) -> (B, H, T, D)

    Example:
        >>> inv_freq, _ = posenc.scaling.frequencies(4)
        >>> posenc.ops.rotary(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4), torch.tensor([1]), inv_freq)
        tensor([[[[-1.9841,  1.9599,  2.4624,  4.0198]]]])
    """
    options = _options(offset, attention_scaling, interleaved, inverse, axes, exact)
    return _rotary(x, positions, inv_freq, **options)


def rotary_qk(
    q: Tensor,
    k: Tensor,
    positions: Tensor | None,
    inv_freq: Tensor,
    *,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
    inverse: bool = False,
    axes: Sequence[int] | None = None,
    exact: bool = True,
    offset: int | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """:func:`rotary` of ``q`` and ``k`` in one pass: angles, sines and cosines are formed once for both.

    Shape:
        q (B, H, T, D), k (B, G, T, D) -> the same
    """
    options = _options(offset, attention_scaling, interleaved, inverse, axes, exact)
    return _rotary_qk(q, k, positions, inv_freq, **options)


def rotary_qk_(
    q: Tensor,
    k: Tensor,
    positions: Tensor | None,
    inv_freq: Tensor,
    *,
    attention_scaling: float = 1.0,
    interleaved: bool = False,
    inverse: bool = False,
    axes: Sequence[int] | None = None,
    exact: bool = True,
    offset: int | Tensor = 0,
) -> None:
    """:func:`rotary_qk` in place, for inference.

    Raises:
        RuntimeError: Grad mode is on and an input requires a gradient, or ``q`` and ``k`` overlap.
    """
    options = _options(offset, attention_scaling, interleaved, inverse, axes, exact)
    _rotary_qk_(q, k, positions, inv_freq, **options)


def rotary_tables(
    positions: Tensor | None,
    inv_freq: Tensor,
    *,
    length: int | None = None,
    offset: int | Tensor = 0,
    attention_scaling: float = 1.0,
    axes: Sequence[int] | None = None,
    exact: bool = True,
    dtype: torch.dtype = torch.float32,
    decay: Tensor | None = None,
    centre: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """``attention_scaling * (cos, sin)`` of ``position * inv_freq``, for :func:`apply_rotary`.

    ``length`` is T where ``positions`` is None. ``decay`` (R/2) multiplies both by ``exp(decay[k] * (position -
    centre))``, as xPos needs. Gradients to ``inv_freq``, ``decay`` and floating ``positions``.

    Shape:
        -> two of (T, R/2), (B, T, R/2), or with frequencies per head (B or 1, H, T, R/2)
    """
    start, rows = (0, offset) if isinstance(offset, Tensor) else (offset, None)
    return _rotary_tables(
        positions,
        inv_freq,
        length=length,
        offset=start,
        offsets=rows,
        attention_scaling=attention_scaling,
        axes=axes,
        exact=exact,
        dtype=dtype,
        decay=decay,
        centre=centre,
    )


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, inverse: bool = False) -> Tensor:
    """Rotates ``x`` by given tables of half width, one entry per pair. Gradients to ``x``, ``cos`` and ``sin``.

    The tables of transformers are full width and hold each entry twice: pass ``cos[..., :R//2]``.

    Shape:
        x (B, H, T, D); cos, sin (T, R/2), (B or 1, T, R/2) or (B or 1, H or 1, T, R/2) -> (B, H, T, D)
    """
    return _apply_rotary(x, cos, sin, interleaved=interleaved, inverse=inverse)


def apply_rotary_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, inverse: bool = False
) -> tuple[Tensor, Tensor]:
    """:func:`apply_rotary` of ``q`` and ``k`` in one pass.

    Shape:
        q (B, H, T, D), k (B, G, T, D) -> the same
    """
    return _apply_rotary_qk(q, k, cos, sin, interleaved=interleaved, inverse=inverse)


def apply_rotary_qk_(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, inverse: bool = False
) -> None:
    """:func:`apply_rotary_qk` in place, for inference.

    Raises:
        RuntimeError: Grad mode is on and an input requires a gradient, or ``q`` and ``k`` overlap.
    """
    _apply_rotary_qk_(q, k, cos, sin, interleaved=interleaved, inverse=inverse)


def permute_rotary_weight(
    weight: Tensor, num_heads: int, to: Literal["half", "interleaved"] = "half", *, rotary_dim: int | None = None
) -> Tensor:
    """Rows of a query or key projection, reordered from one pair layout of RoPE to the other.

    A model whose q and k projections (weights and biases) are both permuted attends in the new layout as it did in the
    old one. ``to="half"`` reads interleaved rows (original Llama weights), ``to="interleaved"`` half ones
    (transformers).

    Args:
        weight: (num_heads * D, ..), or a bias (num_heads * D).
        num_heads: Heads in ``weight``: H for queries, G for keys.
        to: The layout to produce.
        rotary_dim: R where only the first R columns of each head are rotated.
    """
    return _permute_rotary_weight(weight, num_heads, to, rotary_dim)
