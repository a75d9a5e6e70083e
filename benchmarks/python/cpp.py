"""Runs the C++ benchmarks and reads their numbers."""

import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path

from results import Bound, Row, Section, Timing

TITLE = "Rotary, C++"
OP = "rotary_qk"
TABLES = "apply_rotary_qk"
CLONE = "clone"
ALLOCATION = "two empty_like"
DECODE_TARGET = 2.5e-6
CLONE_TARGETS = {"llama3-8b forward float32": 1.25, "llama3-8b forward bfloat16": 1.6}


def measure(program: Path, filter_regex: str, *, quick: bool) -> Section:
    """Benchmarks are named "case: contender"; the program interleaves their repetitions itself."""
    command = [str(program.resolve()), "--benchmark_format=json", "--benchmark_display_aggregates_only=false"]
    command += [f"--benchmark_filter={filter_regex or '.'}"]
    if quick:
        command += ["--benchmark_repetitions=3", "--benchmark_min_time=0.001"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Nothing is written where no name matches.
    return _section(json.loads(output)) if output else Section(TITLE, {}, [])


def _section(content: Mapping) -> Section:
    samples: dict[str, dict[str, list[float]]] = {}
    for run in content["benchmarks"]:
        if run["run_type"] == "iteration":
            case, contender = run["run_name"].split(": ")
            samples.setdefault(case, {}).setdefault(contender, []).append(run["cpu_time"] * _UNITS[run["time_unit"]])
    rows, bounds = [], []
    for case, contenders in sorted(samples.items()):
        timings = {name: Timing(statistics.median(times), min(times), len(times)) for name, times in contenders.items()}
        pairs = [(OP, TABLES, None), (OP, CLONE, _clone_target(case)), (OP, ALLOCATION, None)]
        rows += [
            Row(case, ours, peer, timings[ours], timings[peer], target)
            for ours, peer, target in pairs
            if ours in timings and peer in timings
        ]
        if ALLOCATION in timings and OP in timings:
            seconds = timings[OP].median - timings[ALLOCATION].median
            bounds.append(Bound(f"{case}: {OP} less {ALLOCATION}", seconds, DECODE_TARGET))
    return Section(TITLE, _facts(content["context"]), rows, bounds)


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def _clone_target(case: str) -> float | None:
    return next((target for prefix, target in CLONE_TARGETS.items() if case.startswith(prefix)), None)


def _facts(context: Mapping) -> dict[str, str]:
    names = ("instruction set", "threads")
    return {name: context[name] for name in names if name in context}
