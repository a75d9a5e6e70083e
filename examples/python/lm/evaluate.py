"""Evaluation: the same weights and the same bytes, read in windows of several lengths."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from .encodings import ENCODINGS, rescale
from .model import LanguageModel
from .scalings import SCALINGS
from .train import BITS_PER_NAT

TOKENS_PER_BATCH = 4096
POSITION_BUCKET = 32
"""Losses by position are averaged over this many neighbouring positions."""


@dataclass(frozen=True)
class Score:
    """Mean loss of one model under one scaling, read in windows of one length; None where it is not defined there."""

    encoding: str
    scaling: str
    length: int
    bits_per_byte: float | None
    by_position: list[float]


def evaluate(
    model: LanguageModel,
    segments: torch.Tensor,
    scalings: list[str],
    lengths: list[int],
    stop: Callable[[], bool],
) -> Iterator[Score]:
    """Yields a score for each scaling and length; ends early when `stop` says so.

    Every length predicts the same bytes: a segment of 1024 is one window of 1024 or eight of 128.
    """
    model.eval()
    encoding, trained = model.options.encoding, model.options.context
    for scaling in scalings:
        for length in lengths:
            if ENCODINGS[encoding].bounded and length > trained:
                yield Score(encoding, scaling, length, None, [])
                continue
            rescale(model, SCALINGS[scaling](trained, length))
            losses = window_losses(model, segments, length, stop)
            rescale(model, None)
            if losses is None:
                return
            bits = losses.double() * BITS_PER_NAT
            buckets = [part.mean().item() for part in bits.mean(dim=0).split(POSITION_BUCKET)]
            yield Score(encoding, scaling, length, bits.mean().item(), buckets)


@torch.no_grad()
def window_losses(
    model: LanguageModel, segments: torch.Tensor, length: int, stop: Callable[[], bool] = lambda: False
) -> torch.Tensor | None:
    """Loss in nats of every predicted byte, (windows, length); None when stopped."""
    inputs = segments[:, :-1].reshape(-1, length)
    targets = segments[:, 1:].reshape(-1, length)
    rows = max(1, TOKENS_PER_BATCH // length)
    losses = []
    for some_inputs, some_targets in zip(inputs.split(rows), targets.split(rows), strict=True):
        logits = model(some_inputs)
        losses.append(cross_entropy(logits.flatten(0, 1), some_targets.flatten(), reduction="none").view(-1, length))
        if stop():
            return None
    return torch.cat(losses)
