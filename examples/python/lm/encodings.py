"""The positional encodings that the model can be trained with: one entry of `ENCODINGS` each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from posenc import nn as encodings
from posenc.scaling import Scaling

LINE = 16
"""Bytes in a row, where an encoding is told rows and columns."""


class EncodingError(Exception):
    """An encoding cannot be made for a model; the message is one line for the user."""


@dataclass(frozen=True)
class Sizes:
    """What encodings are made for: tokens in a training window, heads, and the widths of an embedding and of a head."""

    context: int
    heads: int
    width: int
    head_dim: int


class Attend(nn.Module):
    """Causal attention of one layer: a rotary encoding turns queries and keys, a score encoding attends.

    Without a score encoding torch attends; with neither, the causal mask alone tells order (NoPE).
    """

    def __init__(
        self,
        rotary: encodings.RotaryEncoding | None = None,
        score: encodings.ScoreEncoding | None = None,
        positions: Callable[[int], Tensor] = lambda length: None,
    ) -> None:
        super().__init__()
        self.rotary = rotary
        self.score = score
        self.positions = positions

    def rescale(self, scaling: Scaling) -> None:
        """Uses another context extension of RoPE, where there is one, from now on; no weight depends on it."""
        if isinstance(self.rotary, encodings.Rotary):
            self.rotary = encodings.Rotary(self.rotary.head_dim, scaling=scaling)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """Attends; q, k, v and the result are (B, H, T, D), x (B, T, width) is the input of the layer."""
        if self.rotary is not None:
            q, k = self.rotary(q, k, self.positions(q.shape[2]))
        if self.score is None:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        call: dict[str, Any] = {} if self.score.always_causal else {"is_causal": True}
        return self.score.attend(q, k, v, **self.score.token_state(x), **call)


@dataclass(frozen=True)
class Encoding:
    """How an encoding enters the model.

    Attributes:
        title: Name in tables and plots.
        attention: Makes the attention of a layer.
        embedding: Makes the module that maps token embeddings (B, T, width) to embeddings with positions.
        rescalable: The scalings of `scalings.py` apply.
        bounded: Not defined beyond the trained length.
    """

    title: str
    attention: Callable[[Sizes], Attend] = lambda sizes: Attend()
    embedding: Callable[[Sizes], nn.Module] = lambda sizes: nn.Identity()
    rescalable: bool = False
    bounded: bool = False


def rows_and_columns(length: int) -> Tensor:
    """Positions (2, length) of a text that is broken into lines of `LINE` bytes."""
    places = torch.arange(length)
    return torch.stack([places // LINE, places % LINE])


def sections(sizes: Sizes) -> tuple[int, int, int]:
    """Pairs for time, height and width, shared out as in Qwen2-VL: 16, 24 and 24 of 64."""
    side = sizes.head_dim * 3 // 16
    return sizes.head_dim // 2 - 2 * side, side, side


ENCODINGS: dict[str, Encoding] = {
    "rotary": Encoding("RoPE", lambda s: Attend(encodings.Rotary(s.head_dim)), rescalable=True),
    "nope": Encoding("NoPE"),
    "xpos": Encoding("xPos", lambda s: Attend(encodings.XPos(s.head_dim))),
    "axial": Encoding("axial RoPE", lambda s: Attend(encodings.AxialRotary(s.head_dim), positions=rows_and_columns)),
    "multimodal": Encoding("M-RoPE", lambda s: Attend(encodings.MultimodalRotary(s.head_dim, sections(s)))),
    "sinusoidal": Encoding("sinusoidal", embedding=lambda s: encodings.Sinusoidal(s.width)),
    "learned": Encoding("learned", embedding=lambda s: encodings.LearnedAbsolute(s.context, s.width), bounded=True),
    "cape": Encoding("CAPE", embedding=lambda s: encodings.CAPE(s.width)),
    "alibi": Encoding("ALiBi", lambda s: Attend(score=encodings.ALiBi(s.heads))),
    "t5": Encoding("T5", lambda s: Attend(score=encodings.T5RelativeBias(s.heads, scale=None))),
    "kerple": Encoding("KERPLE", lambda s: Attend(score=encodings.Kerple(s.heads))),
    "kerple-power": Encoding("KERPLE power", lambda s: Attend(score=encodings.Kerple(s.heads, kind="power"))),
    "sandwich": Encoding("Sandwich", lambda s: Attend(score=encodings.Sandwich(s.heads))),
    "fire": Encoding("FIRE", lambda s: Attend(score=encodings.FIRE(s.heads))),
    "shaw": Encoding("Shaw", lambda s: Attend(score=encodings.ShawRelative(s.head_dim, 16))),
    "deberta": Encoding(
        "DeBERTa", lambda s: Attend(score=encodings.DisentangledRelative(s.head_dim, s.heads, s.context, buckets=16))
    ),
    "transformer-xl": Encoding("Transformer-XL", lambda s: Attend(score=encodings.TransformerXL(s.head_dim, s.heads))),
    "rerope": Encoding("ReRoPE", lambda s: Attend(score=encodings.ReRoPE(s.head_dim, s.context // 2))),
    "rerope-leaky": Encoding(
        "leaky ReRoPE", lambda s: Attend(score=encodings.ReRoPE(s.head_dim, s.context // 2, leak=16.0))
    ),
    "self-extend": Encoding(
        "Self-Extend", lambda s: Attend(score=encodings.SelfExtend(s.head_dim, group=16, window=s.context // 2))
    ),
    "cope": Encoding("CoPE", lambda s: Attend(score=encodings.CoPE(s.head_dim, 64))),
    "rotary-cope": Encoding(
        "RoPE, CoPE", lambda s: Attend(encodings.Rotary(s.head_dim), encodings.CoPE(s.head_dim, 64))
    ),
    "fox": Encoding("FoX", lambda s: Attend(score=encodings.ForgettingBias(s.width, s.heads))),
}
"""Name -> encoding. Beyond half the trained length ReRoPE's distances stand still, and leaky ReRoPE's and Self-Extend's
grow a sixteenth as fast, in training too."""


def rescale(model: nn.Module, scaling: Scaling) -> None:
    """Gives every attention of the model another context extension."""
    for module in model.modules():
        if isinstance(module, Attend):
            module.rescale(scaling)
