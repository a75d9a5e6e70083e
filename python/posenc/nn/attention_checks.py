"""What Attention refuses of modules and positions. Compiled graphs need the latter in Python: a pybind call would break
the graph."""

import torch
from torch import Tensor

from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.base import Encoding, check_dense
from posenc.nn.rotary import RotaryEncoding
from posenc.nn.score import ScoreEncoding


def check_encodings(
    encodings: list[Encoding], is_causal: bool, cross: bool, scale: float | None
) -> list[ScoreEncoding]:
    """The score encodings; raises where the encodings do not fit together."""
    for encoding in encodings:
        if not isinstance(encoding, (AbsoluteEncoding, RotaryEncoding, ScoreEncoding)):
            raise TypeError(
                "Attention: expected encodings to be absolute, rotary or score encodings of posenc, but got "
                f"{type(encoding).__name__}"
            )
        if cross:
            raise ValueError(
                "Attention: expected no encodings with cross=True, as queries and keys are tokens of two sequences, "
                f"but got {type(encoding).__name__}"
            )
    scores = [encoding for encoding in encodings if isinstance(encoding, ScoreEncoding)]
    for score in scores:
        if score.rotates and any(isinstance(encoding, RotaryEncoding) for encoding in encodings):
            raise ValueError(
                f"Attention: expected no rotary encoding together with {type(score).__name__}, "
                "which rotates queries and keys itself"
            )
        if score.always_causal and not is_causal:
            raise ValueError(
                f"Attention: expected is_causal to be true with {type(score).__name__}, which is causal by definition"
            )
    if len(scores) > 1:
        _check_together(scores, scale)
    return scores


def _check_together(scores: list[ScoreEncoding], scale: float | None) -> None:
    """Raises where several score encodings cannot act in one attention."""
    names = [type(score).__name__ for score in scores]
    for score, name in zip(scores, names, strict=True):
        if type(score).add_terms is ScoreEncoding.add_terms:
            raise ValueError(
                f"Attention: expected no other score encoding with {name}, which attends by itself, but got {names}: "
                "give it the method add_terms()"
            )
    state = [name for score in scores for name in score.state_keywords]
    if len(set(state)) < len(state) or sum(score.needs_gate_key for score in scores) > 1:
        raise ValueError(
            f"Attention: expected at most one score encoding with state of tokens of a kind, but got {names}"
        )
    own = [(name, score.scale) for score, name in zip(scores, names, strict=True) if score.scale is not None]
    if scale is None and len({number for _, number in own}) > 1:
        raise ValueError(
            "Attention: expected scale, as the score encodings multiply q . k by different numbers, "
            f"{', '.join(f'{name} by {number}' for name, number in own)}, but got None"
        )


def check_norms(**norms: object) -> None:
    """Raises unless each is a module or None."""
    for name, norm in norms.items():
        if norm is not None and not isinstance(norm, torch.nn.Module):
            raise TypeError(f"Attention: expected {name} to be a module or None, but got {type(norm).__name__}")


def check_positions(
    positions: Tensor, x: Tensor, rotary: list[RotaryEncoding], scores: list[ScoreEncoding], axial: list[int]
) -> None:
    """Raises unless the layer can place the tokens of ``x`` at ``positions``. ``axial`` holds the number of axes of
    each absolute encoding over several."""
    check_dense("Attention", "positions", positions)
    shape, dims = list(positions.shape), positions.dim()
    fits = 1 <= dims <= 3 and shape[-1] == x.shape[1] and (dims == 1 or shape[-2] in (1, x.shape[0]))
    if not fits:
        raise ValueError(
            "Attention: expected positions of shape (length), (batch, length) or (axes, batch, length) with x of "
            f"shape {list(x.shape)}, but got {shape}"
        )
    by_index = [type(score).__name__ for score in scores if not score.takes_positions]
    if by_index and len(by_index) < len(scores):
        raise ValueError(
            f"Attention: expected no positions with {by_index[0]}, which goes by index, and a score encoding of "
            "distances: leave positions out, so that both count tokens"
        )
    if dims == 3 and scores:
        raise ValueError(
            "Attention: expected positions of shape (length) or (batch, length) with a score encoding, whose "
            f"distances have one axis, but got {shape}"
        )
    for own in axial:
        if dims != 3 or shape[0] != own:
            raise misplaced(own, shape)
    if dims == 3 and not rotary and not axial:
        raise ValueError(
            "Attention: expected a rotary or absolute encoding that takes positions of several axes, with "
            f"positions of shape {shape}"
        )
    for encoding in rotary:
        axes = encoding.position_axes
        if (dims == 3) != (axes is not None) or (dims == 3 and shape[0] != axes):
            expected = "(length) or (batch, length)" if axes is None else f"({axes}, batch, length)"
            raise ValueError(
                f"Attention: expected positions of shape {expected} for its rotary encoding, but got {shape}"
            )


def misplaced(axes: int, shape: list[int] | None) -> ValueError:
    """The error of a call without positions over the axes of an absolute encoding."""
    got = "none" if shape is None else shape
    return ValueError(
        f"Attention: expected positions of shape ({axes}, batch, length) for its absolute encoding, but got {got}"
    )
