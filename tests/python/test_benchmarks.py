"""The benchmark program runs, checks what it times, and reports what it measured."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "python" / "run.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmarks") / "numbers.json"
    done = run("--quick", "--filter", "^tiny forward float32", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text())


def test_quick_run_writes_comparisons_with_their_ratios(quick):
    _, (section,) = quick
    assert {row["case"] for row in section["rows"]} == {"tiny forward float32 BHTD"}
    sides = {(row["ours"], row["peer"]) for row in section["rows"]}
    assert {("rotary_qk", "clone"), ("rotary_qk", "transformers eager"), ("rotary_qk", "apply_rotary_qk")} <= sides
    for row in section["rows"]:
        ours, peer = row["ours_timing"], row["peer_timing"]
        assert 0 < ours["minimum"] <= ours["median"]
        assert ours["samples"] == peer["samples"] == 3
        assert row["ratio"] == pytest.approx(ours["median"] / peer["median"])


def test_quick_run_says_what_the_numbers_depend_on(quick):
    _, (section,) = quick
    assert set(section["facts"]) >= {"CPU", "instruction set", "threads", "versions", "commit", "copy", "GEMM"}
    assert section["facts"]["threads"] == "1"


def test_quick_run_prints_the_table(quick):
    output, (section,) = quick
    lines = [re.split(r" *\| *", line.strip("| ")) for line in output.splitlines() if line.startswith("| tiny")]
    assert [line[:3] for line in lines] == [[row["case"], row["ours"], row["peer"]] for row in section["rows"]]
    assert [line[5] for line in lines] == [f"{row['ratio']:.3f}" for row in section["rows"]]


def test_filter_that_matches_nothing_is_an_error():
    done = run("--quick", "--filter", "no such case")
    assert done.returncode == 2
    assert "no case has a name that matches no such case" in done.stderr


def test_results_are_not_replaced_by_a_partial_run():
    done = run("--write", "--quick")
    assert done.returncode == 2
    assert "--write takes whole measurements" in done.stderr


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))


def test_wrong_outputs_are_not_timed(modules):
    import torch

    from case import Case, Comparison, Contender, measure
    from measure import Effort
    from shapes import SHAPES

    case = Case(
        SHAPES["tiny"],
        "forward",
        torch.float32,
        "BHTD",
        lambda: {"identity": Contender(lambda q, k: (q, k), tolerance=1e-3)},
        [Comparison("identity", "identity")],
    )
    with pytest.raises(AssertionError, match="tiny forward float32 BHTD: identity"):
        measure(case, Effort())


def test_targets_are_judged_by_the_ratio_of_medians(modules, tmp_path):
    import report
    from results import Bound, Row, Section, Timing, read, write

    one, two = Timing(1.0, 0.5, 7), Timing(2.0, 2.0, 7)
    section = Section(
        "Title",
        {"threads": "1"},
        [Row("a", "x", "y", one, two, 0.5), Row("b", "x", "y", two, one, 1.9)],
        [Bound("c", 2e-6, 1e-6)],
    )
    assert [row.verdict for row in section.rows] == ["pass", "miss"]
    assert report.summary([section]).splitlines()[0] == "1 of 3 targets met."

    write([section], tmp_path / "numbers.json")
    assert read(tmp_path / "numbers.json") == [section]

    results = tmp_path / "RESULTS.md"
    results.write_text(f"by hand\n\n{report.BEGIN}\n\nold\n")
    report.write_results([section], results)
    text = results.read_text()
    assert text.startswith("by hand\n") and "## Title" in text and "old" not in text
