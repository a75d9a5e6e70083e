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


@pytest.fixture
def identity_case(modules):
    """A case of the identity, with the outputs and gradients that its reference claims."""
    import torch

    from case import Case, Comparison, Contender, Data

    def make(outputs, gradients, tolerance=1e-3):
        return Case(
            "name",
            lambda: Data((torch.ones(3, requires_grad=True),), (torch.ones(3),)),
            lambda data, variant: [outputs, gradients],
            lambda: {"identity": Contender(lambda x: (x * 1,), tolerance)},
            [Comparison("identity", "identity")],
        )

    return make


def test_wrong_outputs_and_gradients_are_not_timed(identity_case):
    import torch

    from case import measure
    from measure import Effort

    effort = Effort(rounds=3, seconds=0, warmup_seconds=0)
    right, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 2.0])
    assert len(measure(identity_case(right, right), effort)) == 1
    for outputs, gradients in ((wrong, right), (right, wrong), (right, right * torch.nan)):
        with pytest.raises(AssertionError, match="name: identity: wrong by"):
            measure(identity_case(outputs, gradients), effort)
    with pytest.raises(AssertionError, match="name: identity: has a needless gradient"):
        measure(identity_case(right, None), effort)


def test_long_calls_get_fewer_rounds_and_no_second_warm_up(modules):
    from measure import Effort, interleave

    def samples(seconds, effort):
        now, calls = [0.0], [0]

        def run():
            now[0] += seconds
            calls[0] += 1

        timing = interleave({"x": run}, effort, lambda: now[0])["x"]
        assert timing.median == pytest.approx(seconds)
        return timing.samples, calls[0]

    effort = Effort(rounds=7, long_rounds=5, long_seconds=0.0, seconds=0.0)
    assert samples(1.0, effort) == (5, 1 + 5)
    assert samples(1.0, Effort(rounds=7, long_seconds=60.0, seconds=0.0)) == (7, 1 + 7)
    # A sample of 2 ms has two calls, after one that is not timed.
    assert samples(1e-3, Effort(rounds=7, seconds=0.0, warmup_seconds=0)) == (7, 2 + 7 * 3)


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmarks") / "numbers.json"
    done = run("--quick", "--only", "attention", "--filter", "^attention tiny", "--threads", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_every_kind_of_attention_case_runs_and_is_correct(attention):
    timed, _ = attention
    sides = {}
    for row in timed["rows"]:
        sides.setdefault(row["case"].removeprefix("attention tiny "), set()).add((row["ours"], row["peer"]))
    both = ["forward", "forward+backward"]
    assert sides == {
        **{f"causal 4/4 heads 40x16 {m} {d}": {("attention", "SDPA")} for m in both for d in ("float32", "bfloat16")},
        **{
            f"{bias} 4/4 heads 40x16 {mode} float32": {
                (f"attention {bias}", "attention"),
                (f"attention {bias}", f"SDPA, {bias} as mask"),
            }
            for bias in ("ALiBi", "table", "bias")
            for mode in both
        },
        "trained table 4/4 heads 40x16 forward+backward float32": {
            ("attention table", "SDPA, math path"),
            ("attention table", "attention"),
        },
        **{
            f"decode 4/2 heads 40x16 forward {dtype}": {("attention", "SDPA"), ("attention", "read of k and v")}
            for dtype in ("float32", "bfloat16")
        },
    }


def test_peak_memory_is_measured_without_inputs_outputs_and_gradients(attention):
    _, memory = attention
    assert memory["title"] == "Attention, peak memory of forward and backward"
    assert [bound["what"].split()[-1] for bound in memory["bounds"]] == ["attention", "attention", "SDPA"]
    for bound in memory["bounds"]:
        # Outputs and gradients alone are 2 MiB in float32; the scores of all heads, which eager code keeps, are too.
        assert bound["unit"] == "MiB" and 0 <= bound["value"] < 8
        assert bound["target"] is None


def test_attention_reference_is_the_formula(modules):
    """Of heads that share keys, by loops over queries and keys: outputs, and a gradient by finite differences."""
    import math

    import torch

    from attention_reference import Reference, biased
    from case import Data

    heads, key_heads, queries, keys, width = 6, 3, 2, 4, 3
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, h, t, width).double() for h, t in ((heads, queries), (key_heads, keys), (key_heads, keys))
    )
    table = torch.randn(heads, keys).double()
    reference = Reference(heads, key_heads, {"distance": biased(lambda d, _, table: table[:, -d.clamp(max=0)])})

    def out(h, i, v=v):
        g, position = h // 2, keys - queries + i
        weights = [
            math.exp(q[0, h, i] @ k[0, g, j] / math.sqrt(width) + table[h, position - j]) for j in range(position + 1)
        ]
        return sum(w * v[0, g, j] for j, w in enumerate(weights)) / sum(weights)

    gradient = torch.randn(1, heads, queries, width).double()
    results = reference(Data((q, k, v, table), (gradient,)), "distance")
    assert [tuple(x.shape) for x in results] == [
        (1, 4, queries, width),
        (1, 4, queries, width),
        (1, 2, keys, width),
        (1, 2, keys, width),
        (4, keys),
    ]
    expected = torch.stack([torch.stack([out(h, i) for i in range(queries)]) for h in (0, 1, 4, 5)])
    torch.testing.assert_close(results[0][0], expected)

    moved = v.clone()
    moved[0, 2, 1, 0] += 1.0  # outputs are linear in values
    change = sum(gradient[0, h, i] @ (out(h, i, moved) - out(h, i)) for h in (4, 5) for i in range(queries))
    torch.testing.assert_close(results[3][0, 1, 1, 0], change)


def test_a_family_is_measured_alone():
    done = run("--quick", "--only", "rotary", "--filter", "^attention tiny")
    assert done.returncode == 2
    assert "no case has a name that matches" in done.stderr


def test_targets_of_bfloat16_depend_on_how_torch_multiplies(modules, monkeypatch):
    import attention
    import environment

    def target(name):
        (case,) = (case for case in attention.cases() if case.name == name)
        return case.comparisons[0].target

    for amx, expected in ((True, [None, None, 0.84]), (False, [0.25, 0.15, 0.84])):
        monkeypatch.setattr(environment, "torch_uses_amx", lambda amx=amx: amx)
        assert [
            target("attention causal 2048x64 forward+backward bfloat16"),
            target("attention decode 32/8 heads 4096x128 forward bfloat16"),
            target("attention causal 2048x64 forward float32"),
        ] == expected


def test_amx_is_not_used_where_onednn_is_held_back(modules, monkeypatch):
    import environment

    flags = {"flags": "avx2 avx512f amx_bf16"}
    monkeypatch.setattr(environment, "_cpu_info", flags.get)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert environment.torch_uses_amx()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not environment.torch_uses_amx()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    flags["flags"] = "avx2"
    assert not environment.torch_uses_amx()


def test_selections_of_repeated_cases_match_names(modules):
    """A renamed case must not drop out of a section unnoticed."""
    import re

    import attention
    import rotary
    from setups import SELECTIONS

    for family, cases in (("attention", attention.cases()), ("rotary", rotary.cases())):
        names = [case.name for case in cases if not case.smoke]
        assert len(set(names)) == len(names)
        for field in ("avx2", "kept", "kept_avx2", "threads"):
            pattern = getattr(SELECTIONS[family], field)
            alternatives = [name for name in names if re.search(pattern, name)]
            assert 0 < len(alternatives) < len(names), (family, field)
    attended = [case.name for case in attention.cases() if re.search(SELECTIONS["attention"].avx2, case.name)]
    assert "attention causal 4096x64 forward float32" in attended
    assert "attention causal 2048x64 forward bfloat16" in attended
    assert "attention causal 2048x128 forward bfloat16" not in attended


def test_targets_are_judged_by_the_ratio_of_medians(modules, tmp_path):
    import report
    from results import Bound, Row, Section, Timing, read, write

    one, two = Timing(1.0, 0.5, 7), Timing(2.0, 2.0, 7)
    section = Section(
        "Title",
        {"threads": "1"},
        [Row("a", "x", "y", one, two, 0.5), Row("b", "x", "y", two, one, 1.9)],
        [Bound("c", 2e-6, 1e-6), Bound("d", 3.0, 4.0, "MiB"), Bound("e", 3.0, None, "MiB")],
    )
    assert [row.verdict for row in section.rows] == ["pass", "miss"]
    assert report.summary([section]).splitlines()[0] == "2 of 4 targets met."

    write([section], tmp_path / "numbers.json")
    assert read(tmp_path / "numbers.json") == [section]

    results = tmp_path / "RESULTS.md"
    results.write_text(f"by hand\n\n{report.BEGIN}\n\nold\n")
    report.write_results([section], results)
    text = results.read_text()
    assert text.startswith("by hand\n") and "## Title" in text and "old" not in text
