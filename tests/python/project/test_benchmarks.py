"""The benchmark program runs, checks what it times, and reports what it measured."""

import json
import re
import subprocess
import sys

import pytest

from processes import ROOT

PROGRAM = ROOT / "benchmarks" / "python" / "run.py"


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
    assert "--write takes whole families" in done.stderr


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


def test_samples_are_as_many_as_the_results_say(modules):
    from measure import Effort

    effort = Effort()
    assert (effort.rounds, effort.long_rounds, effort.long_seconds) == (7, 3, 0.3)


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

    effort = Effort(rounds=7, long_rounds=3, long_seconds=0.3, seconds=0.0)
    assert samples(1.0, effort) == (3, 1 + 3)
    assert samples(0.2, effort) == (7, 1 + 7)
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
            f"FIRE 4/4 heads 40x16 {mode} float32": {
                ("attention FIRE", "attention"),
                ("attention FIRE", "SDPA, FIRE's MLP, math path"),
            }
            for mode in both
        },
        **{
            f"decode 4/2 heads 40x16 forward {dtype}": {("attention", "SDPA"), ("attention", "read of k and v")}
            for dtype in ("float32", "bfloat16")
        },
    }


def test_every_term_has_cases_that_run_and_are_correct(modules, tmp_path):
    import terms

    path = tmp_path / "numbers.json"
    done = run("--quick", "--only", "terms", "--filter", "^terms tiny", "--json", str(path))
    assert done.returncode == 0, done.stderr
    (section,) = json.loads(path.read_text())
    sides = {}
    for row in section["rows"]:
        sides.setdefault(row["case"], set()).add((row["ours"], row["peer"]))
    assert sides == {
        f"terms tiny {term} 4/4 heads 40x16 {mode} float32": {
            (f"attention {term}", "attention"),
            (f"attention {term}", "its formula, eager"),
        }
        for term in terms.TERMS
        for mode in ("forward", "forward+backward")
    }


def test_peak_memory_is_measured_without_inputs_outputs_and_gradients(attention):
    _, memory = attention
    assert memory["title"] == "Attention, peak memory of forward and backward"
    assert [bound["what"].split()[-1] for bound in memory["bounds"]] == ["attention", "attention", "SDPA"]
    for bound in memory["bounds"]:
        # Outputs and gradients alone are 2 MiB in float32; the scores of all heads, which eager code keeps, are too.
        assert bound["unit"] == "MiB" and 0 <= bound["value"] < 8
        assert bound["target"] is None


@pytest.fixture(scope="module")
def contextual_rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmarks") / "numbers.json"
    done = run("--quick", "--only", "contextual", "--filter", "^contextual tiny", "--json", str(path))
    assert done.returncode == 0, done.stderr
    (section,) = json.loads(path.read_text())
    return section["rows"]


def test_every_kind_of_contextual_case_runs_and_is_correct(contextual_rows):
    sides = {}
    for row in contextual_rows:
        sides.setdefault(row["case"].removeprefix("contextual tiny "), set()).add((row["ours"], row["peer"]))
        assert row["target"] is None
    expected = {"CoPE decode npos 64 4/2 heads 40x16 forward float32": {("CoPE", "attention")}}
    for mode in ("forward", "forward+backward"):
        size = f"4/4 heads 40x16 {mode}"
        for dtype in ("float32", "bfloat16"):
            expected[f"CoPE npos 8 {size} {dtype}"] = {("CoPE", "attention"), ("CoPE", "SDPA")}
        expected[f"CoPE selective npos 8 {size} float32"] = {("CoPE", "attention")}
        expected[f"CoPE eager {size} float32"] = {("CoPE", "CoPE eager")}
        expected[f"ReRoPE {size} float32"] = {("ReRoPE", "attention")}
        expected[f"Shaw {size} float32"] = {("Shaw", "attention")}
    assert sides == expected


def test_contextual_cases_have_the_targets_of_their_length(modules):
    import contextual

    targets = {}
    for case in contextual.cases():
        if not case.smoke:
            name = case.name.removeprefix("contextual ")
            targets |= {(name, c.peer): c.target for c in case.comparisons}
    assert targets["CoPE npos 64 512x64 forward float32", "attention"] == 1.65
    assert targets["CoPE npos 64 2048x128 forward+backward float32", "attention"] == 1.5
    assert targets["CoPE npos 256 4096x64 forward+backward float32", "attention"] == 1.8
    assert targets["CoPE npos 64 2048x64 forward bfloat16", "attention"] is None
    assert targets["CoPE selective npos 1024 2048x64 forward float32", "attention"] is None
    assert targets["CoPE eager 2048x64 forward float32", "CoPE compiled"] == 0.25
    assert targets["ReRoPE 4096x64 forward float32", "attention"] == 1.3
    assert targets["Shaw 1024x64 forward+backward float32", "attention"] == 1.8
    assert all(target is None for (_, peer), target in targets.items() if peer == "SDPA")


def test_curves_are_measured_over_a_few_lengths_at_once():
    done = run("--curves", "--quick")
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    modes = ("forward", "forward+backward")
    assert [row[:2] for row in cells if row[0] in modes] == [[mode, size] for mode in modes for size in ("32", "64")]
    (peaks,) = [row for row in cells if row[0] == "256"]
    assert len(peaks) == 3 and all(peak.endswith(" MiB") for peak in peaks[1:])


def test_curves_go_with_nothing_that_selects():
    done = run("--curves", "--only", "attention")
    assert done.returncode == 2
    assert "--curves measures cases of its own" in done.stderr


def test_curves_are_drawn_the_same_again(modules, tmp_path):
    import curves
    from results import Row, Section, Timing

    timing = Timing(1.0, 1.0, 7)
    rows = [
        Row(f"CoPE {length}x64 {mode} float32", "CoPE", peer, timing, Timing(ratio * length, 1.0, 7))
        for mode in ("forward", "forward+backward")
        for length in (512, 1024)
        for peer, ratio in (("attention", 1), ("SDPA", 2), ("CoPE eager", 3), ("CoPE compiled", 4))
        if length == 512 or "CoPE" not in peer
    ]
    drawn = curves.Curves(Section("Title", {}, rows), {"CoPE": {1024: 1.0, 2048: 2.0}, "CoPE eager": {1024: 9.0}})
    assert "| forward          |   1024 | 1000.00 ms |       0.001 |  0.000 |              |                 |" in (
        curves.render(drawn)
    )
    pictures = []
    for name in ("first.svg", "second.svg"):
        curves.draw(drawn, tmp_path / name)
        pictures.append((tmp_path / name).read_text())
    assert pictures[0] == pictures[1] and pictures[0].rstrip().endswith("</svg>")


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

    for products, expected in (
        (environment.AMX, [None, None, None, 0.84]),
        (environment.AVX512_BF16, [0.8, None, 0.15, 0.84]),
        (environment.VECTORS, [0.8, 0.25, 0.15, 0.84]),
    ):
        monkeypatch.setattr(environment, "bfloat16_products", lambda products=products: products)
        assert [
            target("attention causal 2048x64 forward bfloat16"),
            target("attention causal 2048x64 forward+backward bfloat16"),
            target("attention decode 32/8 heads 4096x128 forward bfloat16"),
            target("attention causal 2048x64 forward float32"),
        ] == expected


@pytest.mark.parametrize(
    ("flags", "limit", "products"),
    [
        ("avx2 avx512f avx512_bf16 amx_bf16", None, "AMX"),
        ("avx2 avx512f avx512_bf16 amx_bf16", "AVX512_CORE_BF16", "AVX512_BF16"),
        ("avx2 avx512f avx512_bf16 amx_bf16", "AVX2", "VECTORS"),
        ("avx2 avx512f avx512_bf16", None, "AVX512_BF16"),
        ("avx2 avx512f avx512_bf16", "AVX512_CORE", "VECTORS"),
        ("avx2", None, "VECTORS"),
    ],
)
def test_bfloat16_is_multiplied_with_what_the_processor_has(modules, monkeypatch, flags, limit, products):
    import environment

    monkeypatch.setattr(environment, "_cpu_info", {"flags": flags}.get)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if limit:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert environment.bfloat16_products() == getattr(environment, products)


def test_selections_of_repeated_cases_match_names(modules):
    """A renamed case must not drop out of a section unnoticed."""
    import re

    import attention
    import contextual
    import rotary
    from setups import SELECTIONS

    for module in (rotary, attention, contextual):
        family = module.__name__
        names = [case.name for case in module.cases() if not case.smoke]
        assert len(set(names)) == len(names)
        for field in ("avx2", "kept", "threads"):
            chosen = [name for name in names if re.search(getattr(SELECTIONS[family], field), name)]
            # At AVX2 all contextual cases are repeated that have a target.
            assert 0 < len(chosen) < len(names) or (family, field) == ("contextual", "avx2"), (family, field)
    attended = [case.name for case in attention.cases() if re.search(SELECTIONS["attention"].avx2, case.name)]
    assert "attention causal 4096x64 forward float32" in attended
    assert "attention causal 4096x128 forward+backward float32" in attended
    assert "attention causal 2048x64 forward bfloat16" in attended
    assert "attention causal 1024x64 forward+backward bfloat16" in attended
    assert "attention causal 2048x64 forward+backward bfloat16" not in attended
    assert "attention decode 32/8 heads 4096x128 forward bfloat16" in attended


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


def test_results_of_one_family_leave_the_others(modules, tmp_path):
    import report
    from results import Row, Section, Timing

    results, timing = tmp_path / "RESULTS.md", Timing(1.0, 0.5, 7)
    first, second = (f"{report.BEGIN.format(name)}\n\nold {name}\n\n{report.END.format(name)}\n" for name in "AB")
    results.write_text(f"by hand\n\n{first}\n{second}the end\n")
    sections = [Section(f"B, {title}", {}, [Row("a", "x", "y", timing, timing, 0.5)]) for title in ("one", "two")]
    report.write_results(sections, results)
    text = results.read_text()
    assert text.startswith(f"by hand\n\n{first}\n") and text.endswith("the end\n") and "old B" not in text
    assert "0 of 2 targets met." in text and text.index("## B, one") < text.index("## B, two")
    report.write_results(sections, results)
    assert results.read_text() == text
    with pytest.raises(ValueError, match="a line around a generated part is missing: <!-- C: from here on"):
        report.write_results([Section("C, default", {}, [])], results)
