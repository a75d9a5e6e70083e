"""What tests share that run programs: the repository, processes, and the dynamic section of a library."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(*command, expect_failure=False, cwd=None, **environment):
    """Runs a command and returns what it printed; an unexpected exit status is an error that shows it."""
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: str(value) for name, value in environment.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (done.returncode != 0) == expect_failure, f"exit status {done.returncode} of {command}:\n{done.stdout}"
    return done.stdout


def python(code, **options):
    return run(sys.executable, "-c", code, **options)


def needed(library):
    """Names of the libraries that a library names."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library))


def search_path(library):
    """Folders in which the loader looks for them."""
    [path] = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", run("readelf", "-d", library))
    return path.split(":")
