"""What was measured, as plain values: no torch here, so that the program that reports need not load it."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds per call over the samples."""

    median: float
    minimum: float
    samples: int


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        case: What both sides did.
        ours: Name of the side above the fraction bar.
        peer: Name of the other side.
        target: The most that the ratio of their times should be, None where none is set.
    """

    case: str
    ours: str
    peer: str
    ours_timing: Timing
    peer_timing: Timing
    target: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours_timing.median / self.peer_timing.median

    @property
    def ratio_of_minima(self) -> float:
        return self.ours_timing.minimum / self.peer_timing.minimum

    @property
    def verdict(self) -> str:
        """By the medians."""
        return verdict(self.ratio, self.target)


@dataclass(frozen=True)
class Bound:
    """A quantity with a target of its own, where a ratio would not say it.

    Attributes:
        value: In `unit`.
        target: The most that it should be, None where none is set.
        unit: "s" or "MiB".
    """

    what: str
    value: float
    target: float | None
    unit: str = "s"

    @property
    def verdict(self) -> str:
        return verdict(self.value, self.target)


@dataclass(frozen=True)
class Section:
    """The comparisons of one process.

    Attributes:
        title: What distinguishes the process.
        facts: Processor, versions and rates, by name.
        judged: Whether targets count here.
    """

    title: str
    facts: dict[str, str]
    rows: Sequence[Row]
    bounds: Sequence[Bound] = ()
    judged: bool = True


def verdict(value: float, target: float | None) -> str:
    """ "pass", "miss", or nothing without a target."""
    if target is None:
        return ""
    return "pass" if value <= target else "miss"


def write(sections: Sequence[Section], path: Path) -> None:
    """Writes everything as JSON, ratios and verdicts too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([_plain(section) for section in sections], indent=1) + "\n")


def read(path: Path) -> list[Section]:
    """The inverse of `write`."""
    return [
        Section(
            content["title"],
            content["facts"],
            [_row(row) for row in content["rows"]],
            [_bound(bound) for bound in content["bounds"]],
            content["judged"],
        )
        for content in json.loads(path.read_text())
    ]


def _plain(section: Section) -> dict[str, Any]:
    content = dataclasses.asdict(section)
    for plain, row in zip(content["rows"], section.rows):
        plain.update(ratio=row.ratio, ratio_of_minima=row.ratio_of_minima, verdict=row.verdict)
    for plain, bound in zip(content["bounds"], section.bounds):
        plain.update(verdict=bound.verdict)
    return content


def _row(content: dict[str, Any]) -> Row:
    timings = (Timing(**content[side]) for side in ("ours_timing", "peer_timing"))
    return Row(content["case"], content["ours"], content["peer"], *timings, target=content["target"])


def _bound(content: dict[str, Any]) -> Bound:
    return Bound(content["what"], content["value"], content["target"], content["unit"])
