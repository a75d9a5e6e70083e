"""Pictures of what encodings do, with matplotlib (``pip install 'posenc[plot]'``).

Each function draws into ``ax``, or axes of a new figure, and returns the axes. All numbers come from the encoding
itself: what is drawn is what a call would do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc import scaling as _scaling
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.additive import AdditiveEncoding
from posenc.nn.axial_rotary import AxialRotary
from posenc.nn.cope import CoPE
from posenc.nn.decomposed_relative import DecomposedRelative
from posenc.nn.disentangled_relative import DisentangledRelative
from posenc.nn.forgetting_bias import ForgettingBias
from posenc.nn.grid_relative_bias import GridRelativeBias
from posenc.nn.multimodal_rotary import MultimodalRotary
from posenc.nn.rerope import ReRoPE
from posenc.nn.rotary import Rotary, RotaryEncoding
from posenc.nn.score import ScoreEncoding
from posenc.nn.self_extend import SelfExtend
from posenc.nn.shaw_relative import ShawRelative
from posenc.nn.transformer_xl import TransformerXL
from posenc.nn.xpos import XPos

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bias", "embedding", "rotation"]

_SEED = 0
_RELATIVE = (ShawRelative, TransformerXL, DisentangledRelative)


@torch.no_grad()
def bias(
    encoding: ScoreEncoding,
    length: int,
    *,
    ax: Axes | None = None,
    heads: Iterable[int] | None = None,
    query: Tensor | None = None,
    key: Tensor | None = None,
    gate_key: Tensor | None = None,
    x: Tensor | None = None,
    ahead: bool = False,
) -> Axes:
    """Draws what a score encoding does over the distance, for the last query of ``length`` tokens.

    ALiBi, T5, KERPLE, Sandwich, FIRE: what is added to the score, a line for each head. ShawRelative, TransformerXL:
    the same, for ``query``; DisentangledRelative: for ``query`` and ``key``; ForgettingBias: for ``x``. ReRoPE,
    SelfExtend: the distance that scores see against the true one. CoPE: the position of each key (left axis) and its
    gate (bars, right axis), for ``query`` and ``key``.

    Args:
        encoding: A score encoding of posenc.nn.
        length: Keys, in tokens.
        ax: Axes to draw into; None: those of a new figure.
        heads: Which heads to draw; None: all.
        query: (H, length, D), for ShawRelative, TransformerXL, DisentangledRelative and CoPE. None: standard normal
            numbers, the same ones in every call, of as many heads as the encoding tells apart, else of one.
        key: (G, length, D), for DisentangledRelative and CoPE, with G heads that divide the query's H. None: numbers as
            for ``query``.
        gate_key: As ``key``, for CoPE with ``gate="key"`` or ``"value"``; None: ``key``.
        x: (length, embed_dim), the layer's input, for ForgettingBias. None: numbers as for ``query``.
        ahead: Also keys that come after the query, at negative distances, for encodings with a bias by distance.

    Raises:
        ValueError: ``length`` is not positive, an argument has no use for this encoding, or a shape does not fit.
        TypeError: ``encoding`` is no score encoding of posenc.nn, or one of places on two axes.
        ImportError: matplotlib is missing.

    Example:
        >>> ax = posenc.plot.bias(posenc.nn.ALiBi(8), 256)
        >>> ax.figure.savefig("alibi.png")
    """
    if length < 1:
        raise ValueError(f"plot.bias: expected length to be at least 1, but got {length}")
    name = type(encoding).__name__
    if isinstance(encoding, (DecomposedRelative, GridRelativeBias)):
        raise TypeError(
            f"plot.bias: expected an encoding of distances on one axis, but got {name}, whose places have two"
        )
    contextual, tables = isinstance(encoding, CoPE), isinstance(encoding, _RELATIVE)
    _check_use("query", query, contextual or tables, name)
    _check_use("key", key, contextual or isinstance(encoding, DisentangledRelative), name)
    _check_use("gate_key", gate_key, contextual and encoding.gate != "logits", name)
    _check_use("x", x, isinstance(encoding, ForgettingBias), name)
    _check_use("ahead=True", True if ahead else None, tables or isinstance(encoding, AdditiveEncoding), name)
    if isinstance(encoding, (ReRoPE, SelfExtend)):
        _check_use("heads", heads, False, name)
        return _draw_distances(encoding, length, _axes(ax))
    if isinstance(encoding, CoPE):
        return _draw_contextual(encoding, length, _axes(ax), heads, query, key, gate_key)
    if isinstance(encoding, ForgettingBias):
        return _draw_bias(encoding, _axes(ax), heads, _forgotten(encoding, length, x), ahead)
    if isinstance(encoding, (AdditiveEncoding, *_RELATIVE)):
        return _draw_bias(encoding, _axes(ax), heads, _added(encoding, length, query, key), ahead)
    raise TypeError(f"plot.bias: expected a score encoding of posenc.nn, but got {name}")


@torch.no_grad()
def rotation(rotary: RotaryEncoding, *, ax: Axes | None = None, seq_len: int | None = None) -> Axes:
    """Draws the spectrum of angles, in radians per token by pair, before and after scaling or learning.

    XPos: also how much a pair's share of a score decays with each token (right axis). AxialRotary, MultimodalRotary:
    pairs by their axis.

    Args:
        rotary: A rotary encoding of posenc.nn.
        ax: Axes to draw into; None: those of a new figure.
        seq_len: Tokens, for scalings that depend on the length; None: the module's own.

    Raises:
        ValueError: ``seq_len`` is not positive or has no use for this encoding.
        TypeError: ``rotary`` is no rotary encoding of posenc.nn.
        ImportError: matplotlib is missing.

    Example:
        >>> rope = posenc.nn.Rotary(128, base=500000.0, scaling=posenc.scaling.Yarn(4.0, 8192))
        >>> ax = posenc.plot.rotation(rope)
    """
    name = type(rotary).__name__
    _check_use("seq_len", seq_len, isinstance(rotary, (Rotary, MultimodalRotary)), name, "plot.rotation")
    if seq_len is not None and seq_len < 1:
        raise ValueError(f"plot.rotation: expected seq_len to be at least 1, but got {seq_len}")
    if isinstance(rotary, (Rotary, MultimodalRotary)):
        axes = _axes(ax)
        _draw_scaled(rotary, axes, seq_len)
    elif isinstance(rotary, XPos):
        axes = _axes(ax)
        _draw_spectrum(axes, rotary.inv_freq, "angle")
        right = axes.twinx()
        right.plot(torch.exp(rotary._growth).tolist(), color="C1", linestyle="--", label="decay of scores")
        right.set_ylabel("factor on scores by token")
        right.legend(loc="lower left")
    elif isinstance(rotary, AxialRotary):
        axes = _axes(ax)
        _draw_axial(rotary, axes)
    else:
        raise TypeError(f"plot.rotation: expected a rotary encoding of posenc.nn, but got {name}")
    axes.set(xlabel="pair", ylabel="angle (radians per token)", yscale="log", title=name)
    axes.legend(loc="upper right")
    return axes


@torch.no_grad()
def embedding(encoding: AbsoluteEncoding, length: int, *, ax: Axes | None = None) -> Axes:
    """Draws what an absolute encoding adds to an embedding: columns from left to right, positions downwards.

    Args:
        encoding: An absolute encoding of posenc.nn, in the mode that it is in (CAPE moves positions in training).
        length: Positions, in tokens.
        ax: Axes to draw into; None: those of a new figure.

    Raises:
        ValueError: ``length`` is not positive, or more than a table holds, or positions have several axes.
        TypeError: ``encoding`` is no absolute encoding of posenc.nn.
        ImportError: matplotlib is missing.

    Example:
        >>> ax = posenc.plot.embedding(posenc.nn.Sinusoidal(64), 128)
    """
    if length < 1:
        raise ValueError(f"plot.embedding: expected length to be at least 1, but got {length}")
    if not isinstance(encoding, AbsoluteEncoding):
        raise TypeError(
            f"plot.embedding: expected an absolute encoding of posenc.nn, but got {type(encoding).__name__}"
        )
    if encoding.position_axes is not None:
        raise ValueError(
            f"plot.embedding: expected an encoding of one position axis, but got {type(encoding).__name__} over "
            f"{encoding.position_axes}"
        )
    parameter = next(encoding.parameters(), None)
    zeros = (
        torch.zeros(length, encoding.dim) if parameter is None else torch.zeros_like(parameter[:1]).expand(length, -1)
    )
    axes = _axes(ax)
    image = axes.imshow(encoding(zeros).float().cpu().numpy(), aspect="auto", interpolation="nearest", cmap="RdBu")
    axes.figure.colorbar(image, ax=axes, label="added to the embedding")
    axes.set(xlabel="column", ylabel="position (tokens)", title=type(encoding).__name__)
    return axes


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "posenc.plot needs matplotlib, which is not installed: run `pip install 'posenc[plot]'`"
        ) from error
    return pyplot.subplots(layout="constrained")[1]


def _check_use(argument: str, value: object, used: bool, name: str, function: str = "plot.bias") -> None:
    if value is not None and not used:
        raise ValueError(f"{function}: expected no {argument} for {name}, which has no use for it")


def _head_labels(heads: Iterable[int] | None, count: int) -> list[tuple[int, str]]:
    """(index, label) of the heads to draw."""
    chosen = range(count) if heads is None else list(heads)
    for head in chosen:
        if not 0 <= head < count:
            raise ValueError(f"plot.bias: expected heads from 0 to {count - 1}, but got {head}")
    return [(head, f"head {head}") for head in chosen]


def _check_heads(name: str, given: Tensor | None, query: Tensor | None, heads: int) -> None:
    """Raises unless the heads of ``given`` divide those of the query."""
    if given is None or (len(given) > 0 and heads % len(given) == 0):
        return
    beside = (
        f"no query, which then has {heads}: give a query of shape (heads, length, head_dim) too"
        if query is None
        else f"query of shape {list(query.shape)}"
    )
    raise ValueError(
        f"plot.bias: expected {name} to have as many heads as query, or a divisor of them, but got {name} of shape "
        f"{list(given.shape)} and {beside}"
    )


def _normal(given: Tensor | None, name: str, heads: int, length: int, width: int, offset: int) -> Tensor:
    """``given`` with a batch axis, else normal numbers, the same in every call."""
    if given is None:
        generator = torch.Generator().manual_seed(_SEED + offset)
        return torch.randn(1, heads, length, width, generator=generator)
    if given.dim() != 3 or given.shape[1:] != (length, width):
        raise ValueError(
            f"plot.bias: expected {name} of shape (heads, length, head_dim) with length {length} and head_dim {width}, "
            f"but got {list(given.shape)}"
        )
    return given.unsqueeze(0)


def _added(
    encoding: AdditiveEncoding | ShawRelative | TransformerXL | DisentangledRelative,
    length: int,
    query: Tensor | None,
    key: Tensor | None,
) -> Tensor:
    """(H, length, length)."""
    if isinstance(encoding, AdditiveEncoding):
        return encoding.bias(length)
    table = next(encoding.parameters())
    tables, width = encoding.num_heads or 1, encoding.head_dim
    q = _normal(query, "query", tables, length, width, 0).to(table)
    # Scores of keys that are zero: what the query adds alone.
    added = encoding.logits(q, torch.zeros_like(q))
    if isinstance(encoding, DisentangledRelative):
        added = added + encoding.logits(torch.zeros_like(q), _normal(key, "key", tables, length, width, 1).to(table))
    return added[0]


def _forgotten(encoding: ForgettingBias, length: int, x: Tensor | None) -> Tensor:
    """(H, length, length)."""
    shape = (length, encoding.embed_dim)
    if x is not None and x.shape != shape:
        raise ValueError(f"plot.bias: expected x of shape {list(shape)}, but got {list(x.shape)}")
    rows = _normal(None if x is None else x[None], "x", 1, *shape, 0)[0]
    decay = encoding(rows.to(encoding.weight))
    zeros = decay.new_zeros(1, encoding.num_heads, length, 1)
    return encoding.logits(zeros, zeros, log_decay=decay)[0]


def _draw_bias(encoding: ScoreEncoding, axes: Axes, heads: Iterable[int] | None, added: Tensor, ahead: bool) -> Axes:
    length = added.shape[-1]
    earlier, later = added[:, -1].flip(-1), added[:, 0, 1:].flip(-1)
    values = torch.cat([later, earlier], dim=-1) if ahead else earlier
    distances = range(1 - length if ahead else 0, length)
    for head, label in _head_labels(heads, len(values)):
        axes.plot(distances, values[head].tolist(), label=label)
    axes.set(
        xlabel="distance from key to query (tokens)",
        ylabel="added to the score",
        title=type(encoding).__name__,
    )
    axes.legend()
    return axes


def _draw_distances(encoding: ReRoPE | SelfExtend, length: int, axes: Axes) -> Axes:
    """Measured on the slowest pair: the angle between a rotated query and a rotated key over that pair's frequency."""
    pairs = len(encoding.inv_freq)
    columns = (2 * pairs - 2, 2 * pairs - 1) if encoding.interleaved else (pairs - 1, 2 * pairs - 1)
    probe = torch.zeros(1, 1, length, 2 * pairs, dtype=torch.float64)
    probe[..., columns[0]] = 1.0
    q_near, k_near, q_far, k_far = encoding.sides(probe, probe)

    def angles(q: Tensor, k: Tensor) -> Tensor:
        q_angle, k_angle = (torch.atan2(x[0, 0, :, columns[1]], x[0, 0, :, columns[0]]) for x in (q, k))
        return q_angle[-1] - k_angle

    true = torch.arange(length - 1, -1, -1)
    turned = torch.where(true < encoding.threshold, angles(q_near, k_near), angles(q_far, k_far)).flip(0)
    # Angles are known up to whole turns; from one distance to the next they hardly change.
    turns = torch.cat([turned.new_zeros(1), ((turned[1:] - turned[:-1]) / (2 * torch.pi)).round().cumsum(0)])
    seen = (turned - 2 * torch.pi * turns) / encoding.inv_freq[-1]
    axes.plot(range(length), seen.tolist(), label=type(encoding).__name__)
    axes.plot([0, length - 1], [0, length - 1], color="grey", linestyle=":", label="RoPE")
    axes.set(
        xlabel="distance from key to query (tokens)",
        ylabel="distance that scores see (tokens)",
        title=type(encoding).__name__,
    )
    axes.legend()
    return axes


def _draw_contextual(
    encoding: CoPE,
    length: int,
    axes: Axes,
    heads: Iterable[int] | None,
    query: Tensor | None,
    key: Tensor | None,
    gate_key: Tensor | None,
) -> Axes:
    count, width = encoding.num_heads or (1 if query is None else len(query)), encoding.head_dim
    q = _normal(query, "query", count, length, width, 0)
    k = _normal(key, "key", count, length, width, 1)
    _check_heads("key", key, query, count)
    gates_from = k if gate_key is None else _normal(gate_key, "gate_key", count, length, width, 2)
    _check_heads("gate_key", gate_key, query, count)
    logits = torch.ops.posenc._attention_logits(q.float(), gates_from.float(), is_causal=True)
    bias = None if encoding.gate_bias is None else encoding.gate_bias.float().cpu()

    def counted(positions: int) -> Tensor:
        # A table whose entry p is p: what is read from it is the position itself.
        ramp = torch.arange(positions, dtype=torch.float32).view(1, 1, positions)
        ones = torch.ones(*logits.shape[:3], 1)
        return torch.ops.posenc._cope_position_logits(ones, logits, ramp, gate_bias=bias)[0, :, -1].flip(-1)

    places, unbounded = counted(encoding.max_positions), counted(length + 1)
    gates = unbounded.diff(dim=-1, prepend=torch.zeros(len(unbounded), 1))
    right = axes.twinx()
    labels = _head_labels(heads, len(places))
    for index, (head, label) in enumerate(labels):
        axes.plot(range(length), places[head].tolist(), label=label)
        share = 0.8 / len(labels)
        left = [distance - 0.4 + share * (index + 0.5) for distance in range(length)]
        right.bar(left, gates[head].tolist(), width=share, alpha=0.3, label=f"gates of {label}")
    axes.axhline(encoding.max_positions - 1, color="grey", linestyle=":", label="last position")
    right.set(ylabel="gate", ylim=(0, 1))
    axes.set(xlabel="distance from key to query (tokens)", ylabel="position", title="CoPE")
    axes.legend(loc="upper left")
    return axes


def _draw_spectrum(axes: Axes, frequencies: Tensor, label: str, **style: Any) -> None:
    axes.plot(range(len(frequencies)), frequencies.double().cpu().tolist(), label=label, **style)


def _draw_scaled(rotary: Rotary | MultimodalRotary, axes: Axes, seq_len: int | None) -> None:
    plain, _ = _scaling.frequencies(rotary.rotary_dim, rotary.base)
    magnitude = rotary.attention_scaling
    if rotary.learnable:
        used, label = rotary.inv_freq, "learned"
    else:
        length = rotary.seq_len if seq_len is None else seq_len
        used, magnitude = _scaling.frequencies(rotary.rotary_dim, rotary.base, rotary.scaling, length)
        label = "in use" if rotary.scaling is None else type(rotary.scaling).__name__
    if rotary.scaling is not None or rotary.learnable:
        _draw_spectrum(axes, plain, "before", color="grey", linestyle="--")
        label = label if magnitude == 1.0 else f"{label}, magnitude {magnitude:.4g}"
    if isinstance(rotary, MultimodalRotary):
        _draw_by_axis(axes, used, rotary._op_options["axes"], label)
    else:
        _draw_spectrum(axes, used, label)


def _draw_by_axis(axes: Axes, frequencies: Tensor, owners: list[int], label: str) -> None:
    for axis in sorted(set(owners)):
        pairs = [pair for pair, owner in enumerate(owners) if owner == axis]
        values = frequencies.double().cpu()[pairs].tolist()
        axes.plot(pairs, values, marker=".", linestyle="", label=f"{label}, axis {axis}")


def _draw_axial(rotary: AxialRotary, axes: Axes) -> None:
    if not rotary.learnable:
        _draw_by_axis(axes, rotary.inv_freq, rotary._op_options["axes"], "angle")
        return
    # (A, D/2) or (A, H, D/2), of either sign.
    spectra = rotary.inv_freq.abs().reshape(rotary.num_axes, -1, rotary.head_dim // 2)
    for axis, of_heads in enumerate(spectra):
        for head, spectrum in enumerate(of_heads):
            label = f"learned, axis {axis}" if len(of_heads) == 1 else f"learned, axis {axis}, head {head}"
            _draw_spectrum(axes, spectrum, label, color=f"C{axis}")
