"""Training: AdamW, a warm-up, a cosine decay."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.functional import cross_entropy

from .data import training_batch
from .model import LanguageModel

BITS_PER_NAT = 1.0 / math.log(2.0)


class DivergedError(Exception):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class TrainOptions:
    """How long and how fast."""

    steps: int = 1200
    batch: int = 16
    context: int = 128
    learning_rate: float = 4e-3
    warm_up: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    time_limit: float = 200.0


@dataclass
class TrainResult:
    """What training did: `curve` holds (step, smoothed training loss in bits per byte)."""

    steps: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    stopped: str = ""


def train(
    model: LanguageModel,
    text: torch.Tensor,
    options: TrainOptions,
    on_step: Callable[[int, float], None],
    stop: Callable[[], bool],
) -> TrainResult:
    """Trains in place and reports (step, smoothed loss in bits per byte) after each step.

    Ends early, with the weights as they are, when `stop` says so or the time limit has passed.

    Raises:
        DivergedError: the loss became infinite or NaN.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=options.weight_decay
    )
    generator = torch.Generator().manual_seed(options.seed)
    result = TrainResult()
    smoothed = None
    begin = time.monotonic()
    model.train()
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * schedule(step, options)
        inputs, targets = training_batch(text, options.batch, options.context, generator)
        loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()

        bits = loss.item() * BITS_PER_NAT
        if not math.isfinite(bits):
            raise DivergedError(f"training diverged: the loss is {bits} at step {step}")
        smoothed = bits if smoothed is None else 0.95 * smoothed + 0.05 * bits
        result.steps, result.seconds = step, time.monotonic() - begin
        if step % 10 == 0 or step == options.steps:
            result.curve.append((step, smoothed))
        on_step(step, smoothed)
        if stop():
            result.stopped = "interrupted"
        elif result.seconds > options.time_limit:
            result.stopped = "time limit"
        if result.stopped:
            break
    return result


def schedule(step: int, options: TrainOptions) -> float:
    """Fraction of the learning rate at a step from 1 on: linear warm-up, cosine decay to a fiftieth."""
    cosine = 0.5 * (1.0 + math.cos(math.pi * (step - 1) / options.steps))
    return min(1.0, step / options.warm_up) * (0.02 + 0.98 * cosine)
