"""Measures the selected cases in this process and writes them as JSON. run.py starts it with the right environment."""

import argparse
import importlib
import os
import re
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--title", required=True)
    parser.add_argument("--family", required=True, help="module with the cases")
    parser.add_argument("--select", default="", help="regular expression for the names of cases")
    parser.add_argument("--filter", default="", help="a further one")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--judged-only", action="store_true", help="only comparisons that have a target")
    parser.add_argument("--unjudged", action="store_true", help="targets do not count")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    import environment
    from case import measure
    from measure import Effort
    from results import Section, write

    effort = Effort(rounds=3, seconds=0, warmup_seconds=0) if options.quick else Effort()
    selected = [
        case
        for case in importlib.import_module(options.family).cases()
        if re.search(options.select, case.name) and re.search(options.filter, case.name)
        if not case.smoke or "tiny" in options.filter
        if case.selected(judged_only=options.judged_only)
    ]
    facts = environment.facts() if selected else {}
    rows = []
    for number, case in enumerate(selected, 1):
        print(f"{number}/{len(selected)} {case.name}", end="", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        rows += measure(case, effort, judged_only=options.judged_only)
        print(f": {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    write([Section(options.title, facts, rows, judged=not options.unjudged)], options.json)


if __name__ == "__main__":
    main()
