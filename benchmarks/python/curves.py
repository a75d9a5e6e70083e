"""How the time and memory of CoPE grow with the length, as tables in RESULTS.md and as benchmarks/cope.svg.

`make bench ARGS=--curves`, or this program in a built tree.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import launch
import memory
from report import RESULTS, duration, replace_part, table
from results import Row, Section
from setups import Setup

FIGURE = RESULTS.with_name("cope.svg")
BEGIN = "<!-- From here on written by `make bench ARGS=--curves`. -->"
END = "<!-- Up to here. -->"

OURS = "CoPE"
PLAIN = "attention"
PEERS = (PLAIN, "SDPA", "CoPE eager", "CoPE compiled")
# Of one head: lengths for each implementation. Eager code keeps tensors of all pairs, 3.5 GiB at the longest.
MEMORY_LENGTHS = {OURS: tuple(1024 << doubling for doubling in range(7)), "CoPE eager": (1024, 2048, 4096, 8192)}
SMOKE_MEMORY_LENGTHS = {OURS: (256,), "CoPE eager": (256,)}
COLORS = {
    OURS: "#c1272d",
    PLAIN: "#0060a8",
    "SDPA": "#5a5a5a",
    "CoPE eager": "#b06000",
    "CoPE compiled": "#007a4d",
}

# A quantity by length.
Curve = Mapping[int, float]


@dataclass(frozen=True)
class Curves:
    """All that was measured.

    Attributes:
        section: Times.
        memory: MiB by implementation and length.
    """

    section: Section
    memory: Mapping[str, Curve]

    def rows(self) -> dict[tuple[str, int], dict[str, Row]]:
        """By mode and length, then by the peer."""
        found: dict[tuple[str, int], dict[str, Row]] = {}
        for row in self.section.rows:
            length, mode = re.findall(r" (\d+)x\d+ (\S+) ", row.case)[0]
            found.setdefault((mode, int(length)), {})[row.peer] = row
        return found

    def seconds(self, mode: str) -> dict[str, dict[int, float]]:
        """By implementation and length, of one mode."""
        of_mode = {length: rows for (its_mode, length), rows in self.rows().items() if its_mode == mode}
        found = {
            peer: {length: rows[peer].peer_timing.median for length, rows in of_mode.items() if peer in rows}
            for peer in PEERS
        }
        return {**found, OURS: {length: rows[PLAIN].ours_timing.median for length, rows in of_mode.items()}}


def main(*, quick: bool = False) -> int:
    """Quick: a few short lengths, printed only."""
    curves = measure(quick)
    text = render(curves)
    print(text)
    if not quick:
        replace_part(text, BEGIN, END)
        draw(curves, FIGURE)
    return 0


def measure(quick: bool) -> Curves:
    setup = Setup("cope_lengths", "CoPE by length", judged_only=False)
    section = launch.measure(setup, "tiny" if quick else "", quick=quick)
    peaks: dict[str, Curve] = {}
    for implementation, lengths in (SMOKE_MEMORY_LENGTHS if quick else MEMORY_LENGTHS).items():
        print(f"peak memory of {implementation}", file=sys.stderr, flush=True)
        peaks[implementation] = {
            length: memory.peak(implementation, "float32", 1, length, threads=1) / memory.MIB for length in lengths
        }
    return Curves(section, peaks)


def render(curves: Curves) -> str:
    """Facts, ratios and memory as Markdown."""
    facts = "\n".join(f"- {name}: {value}" for name, value in curves.section.facts.items())
    ratios = [
        [mode, str(length), duration(rows[PLAIN].ours_timing.median)]
        + [f"{rows[peer].ratio:.3f}" if peer in rows else "" for peer in PEERS]
        for (mode, length), rows in curves.rows().items()
    ]
    peaks = [
        [str(length), *(f"{curve[length]:.1f} MiB" if length in curve else "" for curve in curves.memory.values())]
        for length in curves.memory[OURS]
    ]
    return "\n\n".join(
        [
            facts,
            table(["", "tokens", OURS, *(f"/ {peer}" for peer in PEERS)], ratios, left=1),
            table(["tokens", *(f"peak memory of {name}" for name in curves.memory)], peaks, left=0),
        ]
    )


def draw(curves: Curves, path: Path) -> None:
    """Three panels: time of forward, of forward and backward, and memory."""
    panels = [
        ("forward, seconds", curves.seconds("forward")),
        ("forward and backward, seconds", curves.seconds("forward+backward")),
        ("peak memory of both, MiB, one head", curves.memory),
    ]
    # Names of ids and a date would differ from run to run.
    with rc_context({"svg.hashsalt": "posenc", "font.size": 9}):
        figure = Figure(figsize=(12.0, 3.8), layout="constrained", facecolor="white")
        axes = figure.subplots(1, len(panels))
        for ax, (title, lines) in zip(axes, panels, strict=True):
            _panel(ax, title, lines)
        figure.savefig(path, metadata={"Date": None})


def _panel(ax: Axes, title: str, lines: Mapping[str, Curve]) -> None:
    for name, curve in lines.items():
        ax.plot(
            list(curve), list(curve.values()), color=COLORS[name], marker=".", linewidth=2.2 if name == OURS else 1.4
        )
    lengths = sorted({length for curve in lines.values() for length in curve})
    ax.set(xscale="log", yscale="log", title=title, xlabel="tokens")
    ax.set_xticks(lengths, [f"{length // 1024}k" if length >= 1024 else str(length) for length in lengths])
    ax.minorticks_off()
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.autoscale_view()
    to_fractions = ax.transData + ax.transAxes.inverted()
    ends = to_fractions.transform([max(curve.items()) for curve in lines.values()])
    for name, x, y in zip(lines, ends[:, 0], _apart(ends[:, 1]), strict=True):
        ax.annotate(
            name,
            (x, y),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            color=COLORS[name],
            fontweight="bold" if name == OURS else "normal",
        )


def _apart(heights: Sequence[float], gap: float = 0.055) -> list[float]:
    """The same heights, moved up where a label would cover the next lower one."""
    moved = list(heights)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for below, above in zip(order, order[1:]):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


if __name__ == "__main__":
    sys.exit(main())
