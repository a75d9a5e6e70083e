"""Measures posenc against other implementations and prints ratios: `make bench`, or this program in a built tree.

Every section is a process of its own, on one thread unless its title says otherwise: with the default allocator and
with one that keeps freed memory (eager code allocates much, and page faults are part of what it costs by default), at
the best instruction set and, where that is AVX-512, at AVX2 for torch and posenc alike. See benchmarks/RESULTS.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cpp
import memory
import setups
from report import render, summary, write_results
from results import Section, read, write
from setups import FAMILIES, Setup

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out"
DEFAULT_JSON = OUT / "benchmarks.json"


def main() -> int:
    options = parse_options()
    sections: list[Section] = []

    try:
        for section in measure_all(options):
            if section.rows or section.bounds:
                sections.append(section)
                print(f"\n{render(section)}\n", flush=True)
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
    parser.add_argument("--only", choices=FAMILIES, help="only the cases of one family of ops")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name contains a match")
    parser.add_argument(
        "--quick", action="store_true", help="three samples, first section of each family only: to try something out"
    )
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
    if options.write and (options.quick or options.filter or options.only):
        parser.error("--write takes whole measurements: leave out --quick, --filter and --only")
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, but is {options.threads}")
    if options.cpp and not options.cpp.is_file():
        parser.error(f"--cpp: there is no program {options.cpp}")
    return options


def measure_all(options: argparse.Namespace) -> Iterator[Section]:
    """Section by section, as they are done; some may be empty."""
    for family in [options.only] if options.only else FAMILIES:
        section = measure(setups.first(family), options)
        yield section
        if section.rows and not options.quick:
            for setup in setups.further(family, section.facts["instruction set"], options.threads):
                yield measure(setup, options)
        if family == "rotary" and options.cpp:
            yield cpp.measure(options.cpp, options.filter, quick=options.quick)
        if family == "attention":
            yield measure_memory(options)


def measure(setup: Setup, options: argparse.Namespace) -> Section:
    """Runs worker.py. Threads and allocator are set before its libraries load: they read them once."""
    environment = threads_environment(setup.threads) | setup.environment
    # Code that torch.compile cached for another instruction set or thread count is reused without notice, and is wrong.
    level = environment.get("ATEN_CPU_CAPABILITY", "best")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(OUT / "inductor" / f"{level}-{setup.threads}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "section.json"
        command = [sys.executable, str(HERE / "worker.py"), "--title", setup.title, "--json", str(path)]
        command += ["--family", setup.family, "--select", setup.select, "--filter", options.filter]
        command += ["--quick"] if options.quick else []
        command += ["--judged-only"] if setup.judged_only else []
        command += [] if setup.judged else ["--unjudged"]
        print(setup.title, file=sys.stderr, flush=True)
        subprocess.run(command, env=environment, check=True)
        return read(path)[0]


def measure_memory(options: argparse.Namespace) -> Section:
    """With all threads, since each has memory of its own; a quick run leaves the large cases out."""
    smoke = "tiny" in options.filter
    cases = [names for names in memory.names(smoke) if re.search(options.filter, names[0]) and options.quick <= smoke]
    return memory.measure(cases, threads_environment(options.threads), options.threads, smoke)


def threads_environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


if __name__ == "__main__":
    sys.exit(main())
