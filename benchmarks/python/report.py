"""The numbers as tables: on the terminal and in RESULTS.md."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from results import Bound, Row, Section

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
BEGIN = "<!-- {}: from here on written by `make bench ARGS=--write`. -->"
END = "<!-- {}: up to here. -->"
HEADINGS = ("case", "measured", "against", "time (min)", "against (min)", "ratio", "of minima", "target", "")


def render(section: Section) -> str:
    """One section as Markdown whose columns are aligned, so that it reads well on a terminal too."""
    parts = [f"## {section.title}", "\n".join(f"- {name}: {value}" for name, value in section.facts.items())]
    if section.rows:
        parts.append(table(HEADINGS, (_cells(row, section.judged) for row in section.rows), left=3))
    if section.bounds:
        parts.append(
            table(("what", "measured", "target", ""), (_bound_cells(bound) for bound in section.bounds), left=1)
        )
    return "\n\n".join(parts)


def summary(sections: Sequence[Section]) -> str:
    """How many targets are met, and which are not."""
    judged = [
        (section.title, row)
        for section in sections
        if section.judged
        for row in (*section.rows, *section.bounds)
        if row.verdict
    ]
    missed = [f"- {title}: {_describe(row)}" for title, row in judged if row.verdict == "miss"]
    return "\n".join([f"{len(judged) - len(missed)} of {len(judged)} targets met.", *missed])


def write_results(sections: Sequence[Section], path: Path = RESULTS) -> None:
    """Replaces the generated parts of RESULTS.md of the families measured; all else stays. A title begins with the
    family."""
    families: dict[str, list[Section]] = {}
    for section in sections:
        families.setdefault(section.title.split(",")[0], []).append(section)
    for family, measured in families.items():
        parts = [f"## {family}: targets", summary(measured), *(render(section) for section in measured)]
        replace_part("\n\n".join(parts), BEGIN.format(family), END.format(family), path)


def replace_part(text: str, begin: str, end: str, path: Path = RESULTS) -> None:
    """Writes `text` between two lines of the file."""
    head, found, rest = path.read_text().partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path}: a line around a generated part is missing: {begin if not found else end}")
    path.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}")


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A Markdown table; the first `left` columns are flush left, the others right."""
    rows = list(rows)
    widths = [max(3, *map(len, column)) for column in zip(headings, *rows)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        padded = (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths)))
        return f"| {' | '.join(padded)} |"

    return "\n".join(line(cells) for cells in (headings, rule, *rows))


def _describe(row: Row | Bound) -> str:
    if isinstance(row, Bound):
        return f"{row.what}: {_quantity(row.value, row.unit)}, target {_quantity(row.target, row.unit)}"
    ratios = f"{row.ratio:.2f}, of minima {row.ratio_of_minima:.2f}, target {row.target:g}"
    return f"{row.case}: {row.ours} / {row.peer} {ratios}"


def _cells(row: Row, judged: bool) -> tuple[str, ...]:
    judged = judged and row.target is not None
    return (
        row.case,
        row.ours,
        row.peer,
        f"{duration(row.ours_timing.median)} ({duration(row.ours_timing.minimum)})",
        f"{duration(row.peer_timing.median)} ({duration(row.peer_timing.minimum)})",
        f"{row.ratio:.3f}",
        f"{row.ratio_of_minima:.3f}",
        f"{row.target:g}" if judged else "",
        row.verdict if judged else "",
    )


def _bound_cells(bound: Bound) -> tuple[str, ...]:
    return bound.what, _quantity(bound.value, bound.unit), _quantity(bound.target, bound.unit), bound.verdict


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return duration(value) if unit == "s" else f"{value:.1f} {unit}"
