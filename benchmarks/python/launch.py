"""Starts the processes that measure, each in an environment of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from results import Section, read
from setups import Setup

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out"


def measure(setup: Setup, name_regex: str = "", *, quick: bool = False) -> Section:
    """Runs worker.py on the cases of the setup whose names match too."""
    environment = dict(setup.environment)
    # Code that torch.compile cached for another instruction set or thread count is reused without notice, and is wrong.
    level = environment.get("ATEN_CPU_CAPABILITY", "best")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(OUT / "inductor" / f"{level}-{setup.threads}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "section.json"
        arguments = ["--title", setup.title, "--family", setup.family, "--select", setup.select, "--json", str(path)]
        arguments += ["--filter", name_regex]
        arguments += ["--quick"] if quick else []
        arguments += ["--judged-only"] if setup.judged_only else []
        arguments += [] if setup.judged else ["--unjudged"]
        print(setup.title, file=sys.stderr, flush=True)
        run("worker.py", arguments, setup.threads, environment)
        return read(path)[0]


def run(program: str, arguments: Sequence[str], threads: int, environment: Mapping[str, str]) -> str:
    """What a program of this folder prints. Threads and allocator are set before its libraries load:
    they read them once."""
    command = [sys.executable, str(HERE / program), *arguments]
    everything = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **environment}
    return subprocess.run(command, env=everything, check=True, stdout=subprocess.PIPE, text=True).stdout
