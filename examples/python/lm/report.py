"""What the user sees and keeps: progress, a table, a plot and the numbers."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .encodings import ENCODINGS
from .evaluate import POSITION_BUCKET, Score
from .train import TrainResult


class OnStep(Protocol):
    """Called with the step and what is known after it."""

    def __call__(self, step: int, note: str) -> None: ...


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[OnStep]:
    """A bar with a note and the time left; where the output is no terminal, about ten plain lines instead."""
    if not console.is_terminal:
        interval = max(1, total // 10)
        begin = time.monotonic()

        def line(step: int, note: str) -> None:
            if step == 1 or step % interval == 0 or step == total:
                left = (time.monotonic() - begin) * (total - step) / step
                console.print(f"{title} {step}/{total}  {note}  {left:.0f} s left", highlight=False, soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", style="cyan"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda step, note: bar.update(task, completed=step, note=note)


def print_table(console: Console, scores: list[Score], trained: int, lengths: list[int]) -> None:
    """Bits per byte by scaling and window length; the best of each length is bold, what was not scored a dash."""
    table = Table(
        title="Bits per byte by window length, lower is better",
        caption=f"the same weights, trained on windows of {trained}",
    )
    table.add_column("encoding")
    table.add_column("scaling")
    for length in lengths:
        table.add_column(str(length), justify="right")
    defined = [score for score in scores if score.bits_per_byte is not None]
    best = {length: min((s.bits_per_byte for s in defined if s.length == length), default=0.0) for length in lengths}
    rows: dict[tuple[str, str], dict[int, float | None]] = {}
    for score in scores:
        rows.setdefault((score.encoding, score.scaling), {})[score.length] = score.bits_per_byte
    for (encoding, scaling), by_length in rows.items():
        cells = []
        for length in lengths:
            if length not in by_length:
                cells.append("-")
            elif (value := by_length[length]) is None:
                cells.append("not defined")
            else:
                cells.append(f"[bold green]{value:.3f}[/]" if value == best[length] else f"{value:.3f}")
        table.add_row(ENCODINGS[encoding].title, scaling, *cells)
    console.print(table)


def plot(scores: list[Score], trained: int, path: Path) -> None:
    """Draws loss against window length, and against the position inside the longest window."""
    figure, (by_length, by_position) = pyplot.subplots(1, 2, figsize=(12, 5.6), layout="constrained")
    longest = max(score.length for score in scores)
    scores = [score for score in scores if score.bits_per_byte is not None]
    for encoding, scaling in dict.fromkeys((score.encoding, score.scaling) for score in scores):
        series = [score for score in scores if (score.encoding, score.scaling) == (encoding, scaling)]
        label = f"{ENCODINGS[encoding].title}, {scaling}"
        (line,) = by_length.plot(
            [score.length for score in series], [score.bits_per_byte for score in series], marker="o", label=label
        )
        for score in series:
            if score.length == longest:
                middles = [POSITION_BUCKET * (index + 0.5) for index in range(len(score.by_position))]
                by_position.plot(middles, score.by_position, color=line.get_color(), label=label)
    by_length.set_xscale("log", base=2)
    lengths = sorted({score.length for score in scores})
    by_length.set_xticks(lengths, [str(length) for length in lengths])
    by_length.set(xlabel="window length (bytes)", ylabel="loss (bits per byte)", title="Same weights, same bytes")
    by_position.axvline(trained, color="grey", linestyle=":", label=f"trained length {trained}")
    by_position.set(
        xlabel=f"position in a window of {longest} (bytes)",
        ylabel="loss (bits per byte)",
        title="Where the loss arises",
    )
    for axes in (by_length, by_position):
        axes.grid(alpha=0.3)
    handles, labels = by_length.get_legend_handles_labels()
    mark, mark_label = by_position.get_legend_handles_labels()
    figure.legend([*handles, mark[0]], [*labels, mark_label[0]], loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_json(path: Path, facts: dict[str, Any], trained: dict[str, TrainResult], scores: list[Score]) -> None:
    """Writes the run: what it was given, how training went, every score."""
    content = {
        **facts,
        "training": {
            name: {
                "steps": result.steps,
                "seconds": round(result.seconds, 3),
                "stopped": result.stopped,
                "curve": [{"step": step, "bits_per_byte": bits} for step, bits in result.curve],
            }
            for name, result in trained.items()
        },
        "position_bucket": POSITION_BUCKET,
        "scores": [vars(score) for score in scores],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
