"""What Attention refuses of modules and positions. Compiled graphs need the latter in Python: a pybind call would break
the graph."""

import torch
from torch import Tensor

from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.base import Encoding, check_dense
from posenc.nn.rotary import RotaryEncoding
from posenc.nn.score import ScoreEncoding


def check_encodings(encodings: list[Encoding], is_causal: bool, cross: bool) -> ScoreEncoding | None:
    """The score encoding, if there is one; raises where the encodings do not fit together."""
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
    if not scores:
        return None
    if len(scores) > 1:
        names = ", ".join(type(score).__name__ for score in scores)
        raise ValueError(f"Attention: expected at most one score encoding, but got {len(scores)}: {names}")
    [score] = scores
    if score.rotates and any(isinstance(encoding, RotaryEncoding) for encoding in encodings):
        raise ValueError(
            f"Attention: expected no rotary encoding beside {type(score).__name__}, "
            "which rotates queries and keys itself"
        )
    if score.always_causal and not is_causal:
        raise ValueError(
            f"Attention: expected is_causal to be true beside {type(score).__name__}, which is causal by definition"
        )
    return score


def check_norms(**norms: object) -> None:
    """Raises unless each is a module or None."""
    for name, norm in norms.items():
        if norm is not None and not isinstance(norm, torch.nn.Module):
            raise TypeError(f"Attention: expected {name} to be a module or None, but got {type(norm).__name__}")


def check_positions(positions: Tensor, x: Tensor, rotary: list[RotaryEncoding], has_score: bool) -> None:
    """Raises unless the layer can place the tokens of ``x`` at ``positions``."""
    check_dense("Attention", "positions", positions)
    shape, dims = list(positions.shape), positions.dim()
    fits = 1 <= dims <= 3 and shape[-1] == x.shape[1] and (dims == 1 or shape[-2] in (1, x.shape[0]))
    if not fits:
        raise ValueError(
            "Attention: expected positions of shape (length), (batch, length) or (axes, batch, length) beside x of "
            f"shape {list(x.shape)}, but got {shape}"
        )
    if dims == 3 and has_score:
        raise ValueError(
            "Attention: expected positions of shape (length) or (batch, length) beside a score encoding, whose "
            f"distances have one axis, but got {shape}"
        )
    if dims == 3 and not rotary:
        raise ValueError(
            "Attention: expected a rotary encoding that takes positions of several axes, beside positions of shape "
            f"{shape}"
        )
    for encoding in rotary:
        axes = encoding.position_axes
        if (dims == 3) != (axes is not None) or (dims == 3 and shape[0] != axes):
            expected = "(length) or (batch, length)" if axes is None else f"({axes}, batch, length)"
            raise ValueError(
                f"Attention: expected positions of shape {expected} for its rotary encoding, but got {shape}"
            )
