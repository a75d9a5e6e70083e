"""Measures posenc against other implementations and prints ratios: `make bench`, or this program in a built tree.

Every section is a process of its own, on one thread unless its title says otherwise: with the default allocator and,
for what eager code is compared with, one that keeps freed memory (eager code allocates much, and page faults are part
of what it costs by default), at the best instruction set and, where that is AVX-512, at AVX2 for torch and posenc
alike. See benchmarks/RESULTS.md.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cpp
import memory
import setups
from launch import OUT, measure
from report import render, summary, write_results
from results import Section, write
from setups import FAMILIES

DEFAULT_JSON = OUT / "benchmarks.json"


def main() -> int:
    options = parse_options()
    sections: list[Section] = []

    try:
        if options.curves:
            return draw_curves(quick=options.quick)
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
    parser.add_argument(
        "--write", action="store_true", help="replace the numbers of what is measured in benchmarks/RESULTS.md"
    )
    parser.add_argument(
        "--curves",
        action="store_true",
        help="instead, draw how CoPE grows with the length; with --quick, only print it",
    )
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="PATH", help="default: %(default)s")
    options = parser.parse_args()
    if options.write and (options.quick or options.filter):
        parser.error("--write takes whole families: leave out --quick and --filter")
    if options.curves and (options.write or options.filter or options.only):
        parser.error("--curves measures cases of its own: leave out --write, --filter and --only")
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, but is {options.threads}")
    if options.cpp and not options.cpp.is_file():
        parser.error(f"--cpp: there is no program {options.cpp}")
    return options


def draw_curves(*, quick: bool) -> int:
    import curves  # needs matplotlib, and nothing else here does

    return curves.main(quick=quick)


def measure_all(options: argparse.Namespace) -> Iterator[Section]:
    """Section by section, as they are done; some may be empty."""
    for family in [options.only] if options.only else FAMILIES:
        section = measure(setups.first(family), options.filter, quick=options.quick)
        yield section
        if section.rows and not options.quick:
            for setup in setups.further(family, section.facts["instruction set"], options.threads):
                yield measure(setup, options.filter)
        if family == "rotary" and options.cpp:
            yield cpp.measure(options.cpp, options.filter, quick=options.quick)
        if family == "attention":
            yield measure_memory(options)


def measure_memory(options: argparse.Namespace) -> Section:
    """With all threads, since each has memory of its own; a quick run leaves the large cases out."""
    smoke = "tiny" in options.filter
    cases = [names for names in memory.names(smoke) if re.search(options.filter, names[0]) and options.quick <= smoke]
    return memory.measure(cases, options.threads, smoke)


if __name__ == "__main__":
    sys.exit(main())
