"""What contextual positions count: a picture of trained heads reading a passage."""

from pathlib import Path

import torch
from matplotlib import pyplot
from torch import Tensor

import posenc
from posenc.nn import CoPE

from .encodings import Attend
from .model import LanguageModel

PASSAGE = 48
"""Bytes of the passage; the last of them is the query."""


def counts(model: LanguageModel) -> bool:
    """Whether the model's attention counts."""
    return any(isinstance(block.attention.attend.score, CoPE) for block in model.blocks)


@torch.no_grad()
def draw_counting(model: LanguageModel, text: Tensor, path: Path) -> None:
    """Draws, layer by layer, the position of every byte of a passage for each head,
    and the gates that it is the sum of.

    Args:
        model: One that counts.
        text: Bytes (T) int64, whose first `PASSAGE` are read.
        path: The picture, a PNG file.
    """
    passage = text[:PASSAGE]
    layers = attended(model, passage)
    figure, rows = pyplot.subplots(len(layers), 1, figsize=(12, 3.6 * len(layers)), layout="constrained", squeeze=False)
    for layer, (attend, query, key) in enumerate(layers):
        axes = rows[layer][0]
        posenc.plot.bias(attend.score, len(passage), ax=axes, query=query, key=key)
        # From the query back, as the encoding counts.
        axes.set_xticks(range(len(passage)), [shown(byte) for byte in passage.flip(0).tolist()], family="monospace")
        axes.set(title=f"layer {layer + 1}", xlabel="bytes of the passage, from the last one back")
    figure.suptitle("What the heads count: positions (lines) and gates (bars)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def attended(model: LanguageModel, passage: Tensor) -> list[tuple[Attend, Tensor, Tensor]]:
    """The attention of each layer, with the queries and keys (H, T, D) that it gets."""
    layers: list[tuple[Attend, Tensor, Tensor]] = []

    def keep(attend: Attend, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        q, k, _ = inputs
        if attend.rotary is not None:
            q, k = attend.rotary(q, k, attend.positions(q.shape[2]))
        layers.append((attend, q[0], k[0]))

    hooks = [block.attention.attend.register_forward_pre_hook(keep) for block in model.blocks]
    try:
        model(passage[None])
    finally:
        for hook in hooks:
            hook.remove()
    return layers


def shown(byte: int) -> str:
    """A byte as a character that takes room."""
    return {10: "\u21b5", 32: "\u2423"}.get(byte, chr(byte) if 32 < byte < 127 else "\u00b7")
