"""Command line of train_lm."""

import argparse
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from .encodings import ENCODINGS
from .model import ModelOptions
from .scalings import SCALINGS
from .train import TrainOptions

DESCRIPTION = """\
Trains a small byte-level language model at a short context, one for each encoding, then reads the same text with the
same weights in longer and longer windows, with each context extension of rotary position embeddings. Ctrl-C ends
training early: the weights are kept and scored. A second Ctrl-C ends the scoring."""

LENGTH_FACTORS = (1, 2, 4, 8)
"""Window lengths of the evaluation, in trained contexts."""

MAX_THREADS = 1024

DEFAULT_SCALINGS = "none,linear,ntk,dynamic-ntk,yarn"


@dataclass(frozen=True)
class Options:
    """All that a run depends on."""

    data: Path | None
    out: Path
    weights: Path | None
    encodings: list[str]
    scalings: list[str]
    layers: int
    width: int
    heads: int
    windows: int
    threads: int
    training: TrainOptions

    def model(self, encoding: str) -> ModelOptions:
        """The model to train from nothing."""
        return ModelOptions(
            encoding=encoding,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            context=self.training.context,
        )


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps names with a hyphen whole."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse_options(arguments: list[str] | None = None) -> Options:
    """Reads the command line; exits with one line where it cannot be used."""
    parser = OneLineParser(
        prog="train_lm",
        description=DESCRIPTION,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    model, training = ModelOptions(), TrainOptions()
    add = parser.add_argument
    add("--data", type=Path, metavar="PATH", help="a file or a folder of any text (default: Python's standard library)")
    add("--out", type=Path, default=Path("out/train_lm"), metavar="FOLDER", help="weights, numbers, plot (%(default)s)")
    add("--weights", type=Path, metavar="FILE", help="start from saved weights; with --steps 0 only score them")
    add(
        "--encodings",
        type=_names(ENCODINGS),
        metavar="NAMES",
        help=f"positional encodings to train with, one model each: {', '.join(ENCODINGS)} (rotary)",
    )
    add(
        "--scalings",
        type=_names(SCALINGS),
        default=DEFAULT_SCALINGS,
        metavar="NAMES",
        help=f"context extensions to score: {', '.join(SCALINGS)} (%(default)s)",
    )
    add("--steps", type=_at_least(0), default=training.steps, metavar="N", help="training steps (%(default)s)")
    add("--seed", type=_at_least(0), default=training.seed, metavar="N", help="of weights and batches (%(default)s)")
    add(
        "--threads",
        type=_at_least(1, MAX_THREADS),
        default=torch.get_num_threads(),
        metavar="N",
        help="CPU threads (%(default)s)",
    )
    add(
        "--time-limit",
        type=_positive,
        default=training.time_limit,
        metavar="SECONDS",
        help="end training after this time, for each encoding (%(default)s)",
    )
    add("--context", type=_at_least(8), metavar="N", help=f"bytes in a training window ({training.context})")
    add("--layers", type=_at_least(1), metavar="N", help=f"transformer blocks ({model.layers})")
    add("--width", type=_at_least(1), metavar="N", help=f"of the embeddings ({model.width})")
    add("--heads", type=_at_least(1), metavar="N", help=f"attention heads ({model.heads})")
    add("--batch", type=_at_least(1), default=training.batch, metavar="N", help="windows in a step (%(default)s)")
    add(
        "--learning-rate", type=_positive, default=training.learning_rate, metavar="X", help="at its peak (%(default)s)"
    )
    add(
        "--windows",
        type=_at_least(1),
        default=32,
        metavar="N",
        help="held-out windows of the longest length to score (%(default)s)",
    )
    given = parser.parse_args(arguments)

    fixed_by_weights = [
        f"--{name}" for name in ("context", "layers", "width", "heads", "encodings") if getattr(given, name)
    ]
    if given.weights and fixed_by_weights:
        parser.error(f"{fixed_by_weights[0]} comes from the weights, leave it out with --weights")
    if not given.weights and given.steps < 1:
        parser.error("--steps must be at least 1 without --weights, got 0")
    width, heads = given.width or model.width, given.heads or model.heads
    if width % (2 * heads) != 0:
        parser.error(f"--width must be a multiple of twice --heads, got {width} and {heads}")
    return Options(
        data=given.data,
        out=given.out,
        weights=given.weights,
        encodings=given.encodings or ["rotary"],
        scalings=given.scalings,
        layers=given.layers or model.layers,
        width=width,
        heads=heads,
        windows=given.windows,
        threads=given.threads,
        training=TrainOptions(
            steps=given.steps,
            batch=given.batch,
            context=given.context or training.context,
            learning_rate=given.learning_rate,
            seed=given.seed,
            time_limit=given.time_limit,
        ),
    )


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise argparse.ArgumentTypeError(f"expected names; known: {', '.join(known)}")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; known: {', '.join(known)}")
        return list(dict.fromkeys(names))

    return parse


def _at_least(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {value}")
        if value > maximum:
            raise argparse.ArgumentTypeError(f"must be at most {maximum}, got {value}")
        return value

    return parse


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be positive and finite, got {text}")
    return value
