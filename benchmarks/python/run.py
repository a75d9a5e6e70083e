"""Measures posenc against other implementations and prints ratios: `make bench`, or this program in a built tree.

Every section is a process of its own, on one thread unless its title says otherwise: with the default allocator and
with one that keeps freed memory (eager code allocates much, and page faults are part of what it costs by default), at
the best instruction set and, where that is AVX-512, at AVX2 for torch and posenc alike. See benchmarks/RESULTS.md.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import cpp
from report import render, summary, write_results
from results import Section, read, write

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out"
DEFAULT_JSON = OUT / "benchmarks.json"

# glibc returns blocks of this size and more to the system when they are freed, and the next ones cost page faults.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
AVX2 = {"POSENC_CPU_CAPABILITY": "avx2", "ATEN_CPU_CAPABILITY": "avx2"}
# Cases with targets, and those of them that allocate enough to care where memory comes from.
JUDGED = r"^(llama3-8b|llama3-8b-decode|qwen2\.5-0\.5b) "
LARGE = r"^llama3-8b "
LARGE_FORWARD = r"^llama3-8b forward "
LARGE_FLOAT = r"^llama3-8b forward(\+backward)? float32 "


@dataclass(frozen=True)
class Setup:
    """One process.

    Attributes:
        select: Regular expression for the names of its cases.
    """

    title: str
    environment: dict[str, str] = field(default_factory=dict)
    select: str = ""
    threads: int = 1


def main() -> int:
    options = parse_options()
    sections: list[Section] = []

    def add(section: Section) -> None:
        if section.rows:
            sections.append(section)
            print(f"\n{render(section)}\n", flush=True)

    try:
        for setup in setups(options, sections):
            add(measure(setup, options))
        if options.cpp:
            add(cpp.measure(options.cpp, options.filter, quick=options.quick))
    except subprocess.CalledProcessError as error:
        print(f"run.py: error: {Path(error.cmd[0]).name} ended with status {error.returncode}", file=sys.stderr)
        return 1
    if not sections:
        print(f"run.py: error: no case has a name that matches {options.filter}", file=sys.stderr)
        return 2
    print(summary(sections))
    write(sections, options.json)
    print(f"JSON: {options.json}")
    if options.write:
        write_results(sections)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name contains a match")
    parser.add_argument("--quick", action="store_true", help="three samples, first section only: to try something out")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="threads of the last section (default: all cores; 1: no such)",
    )
    parser.add_argument("--cpp", type=Path, metavar="PROGRAM", help="also run the C++ benchmarks, posenc_benchmarks")
    parser.add_argument("--write", action="store_true", help="replace the numbers in benchmarks/RESULTS.md")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help="default: %(default)s")
    options = parser.parse_args()
    if options.write and (options.quick or options.filter):
        parser.error("--write takes whole measurements: leave out --quick and --filter")
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, but is {options.threads}")
    if options.cpp and not options.cpp.is_file():
        parser.error(f"--cpp: there is no program {options.cpp}")
    return options


def setups(options: argparse.Namespace, done: list[Section]) -> Iterator[Setup]:
    """What to run; the first section's facts decide whether AVX2 is a setup of its own."""
    yield Setup("Default allocator")
    if options.quick or not done:
        return
    yield Setup("Allocator that keeps memory", KEEP_MEMORY, LARGE)
    if "posenc avx512" in done[0].facts["instruction set"]:
        yield Setup("AVX2, default allocator", AVX2, JUDGED)
        yield Setup("AVX2, allocator that keeps memory", AVX2 | KEEP_MEMORY, LARGE_FORWARD)
    if options.threads > 1:
        yield Setup(f"{options.threads} threads, not judged", {}, LARGE_FLOAT, options.threads)


def measure(setup: Setup, options: argparse.Namespace) -> Section:
    """Runs worker.py. Threads and allocator are set before its libraries load: they read them once."""
    environment = os.environ | {"OMP_NUM_THREADS": str(setup.threads), "OMP_WAIT_POLICY": "passive"} | setup.environment
    # Code that torch.compile cached for another instruction set or thread count is reused without notice, and is wrong.
    level = environment.get("ATEN_CPU_CAPABILITY", "best")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(OUT / "inductor" / f"{level}-{setup.threads}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "section.json"
        command = [sys.executable, str(HERE / "worker.py"), "--title", setup.title, "--json", str(path)]
        command += ["--select", setup.select, "--filter", options.filter]
        command += ["--quick"] if options.quick else []
        command += ["--judged-peers"] if setup.select else []
        command += ["--unjudged"] if setup.threads > 1 else []
        print(setup.title, file=sys.stderr, flush=True)
        subprocess.run(command, env=environment, check=True)
        return read(path)[0]


if __name__ == "__main__":
    sys.exit(main())
