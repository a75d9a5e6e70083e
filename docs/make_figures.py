"""Draws the pictures of docs/encodings.md into docs/figures: `python docs/make_figures.py [FOLDER]`."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from posenc import nn, plot
from posenc.scaling import NTK, Linear, Yarn

LENGTH = 256


def side_by_side(*draw: Callable) -> Figure:
    """One panel for each function of axes."""
    figure, axes = pyplot.subplots(1, len(draw), figsize=(4.2 * len(draw), 3.1), layout="constrained", squeeze=False)
    for ax, function in zip(axes[0], draw, strict=True):
        function(ax)
    return figure


def titled(title: str, draw: Callable) -> Callable:
    """`draw` under a title of its own."""

    def function(ax):
        draw(ax).set_title(title)

    return function


def scalings() -> Figure:
    return side_by_side(
        *(
            titled(
                type(scaling).__name__, lambda ax, scaling=scaling: plot.rotation(nn.Rotary(64, scaling=scaling), ax=ax)
            )
            for scaling in (Linear(8.0), NTK(8.0), Yarn(8.0, 2048))
        )
    )


def rotary() -> Figure:
    return side_by_side(
        lambda ax: plot.rotation(nn.XPos(64), ax=ax),
        lambda ax: plot.rotation(nn.AxialRotary(64), ax=ax),
        lambda ax: plot.rotation(nn.MultimodalRotary(64, (8, 12, 12)), ax=ax),
    )


def absolute() -> Figure:
    return side_by_side(
        titled("Sinusoidal, interleaved", lambda ax: plot.embedding(nn.Sinusoidal(64), 128, ax=ax)),
        titled(
            "Sinusoidal, concatenated",
            lambda ax: plot.embedding(nn.Sinusoidal(64, layout="concatenated"), 128, ax=ax),
        ),
    )


def additive() -> Figure:
    torch.manual_seed(0)
    heads = [0, 2, 4, 6]
    encodings = [nn.ALiBi(8), nn.T5RelativeBias(8), nn.Kerple(8), nn.Sandwich(8), nn.FIRE(8)]
    return side_by_side(
        *(lambda ax, encoding=encoding: plot.bias(encoding, LENGTH, ax=ax, heads=heads) for encoding in encodings)
    )


def contextual() -> Figure:
    torch.manual_seed(0)
    return side_by_side(
        lambda ax: plot.bias(nn.ShawRelative(64, 16), 64, ax=ax, ahead=True),
        titled("ReRoPE, leak 8", lambda ax: plot.bias(nn.ReRoPE(64, 64, leak=8.0), LENGTH, ax=ax)),
        lambda ax: plot.bias(nn.SelfExtend(64, group=8, window=64), LENGTH, ax=ax),
        lambda ax: plot.bias(nn.CoPE(64, 16), 48, ax=ax),
    )


FIGURES = {
    "scalings": scalings,
    "rotary": rotary,
    "absolute": absolute,
    "additive": additive,
    "contextual": contextual,
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        figure = draw()
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=80)
        # A palette of few colours, for small files that git keeps for ever.
        Image.open(drawn).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
            folder / f"{name}.png", optimize=True
        )
        pyplot.close(figure)


if __name__ == "__main__":
    main()
