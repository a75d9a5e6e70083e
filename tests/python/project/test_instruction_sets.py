"""Which instruction-set levels there are, which one runs, and what POSENC_CPU_CAPABILITY may be."""

import os
import subprocess
import sys

import pytest

import posenc

LEVELS = posenc._C.cpu_capabilities()


def level_in_use(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "POSENC_CPU_CAPABILITY"}
    return subprocess.run(
        [sys.executable, "-c", "import posenc; print(posenc._C.cpu_capability())"],
        env=kept | environment,
        capture_output=True,
        text=True,
    )


def test_every_build_runs_the_default_level_and_names_it_first():
    assert LEVELS[0] == "default"
    assert len(set(LEVELS)) == len(LEVELS)


def test_the_best_level_is_used_unless_another_is_named():
    assert level_in_use().stdout.strip() == LEVELS[-1]
    assert level_in_use(POSENC_CPU_CAPABILITY="").stdout.strip() == LEVELS[-1]


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_of_this_machine_can_be_named(level):
    assert level_in_use(POSENC_CPU_CAPABILITY=level).stdout.strip() == level


def test_another_name_is_refused_with_all_names_of_this_architecture():
    failed = level_in_use(POSENC_CPU_CAPABILITY="AVX2")
    assert failed.returncode != 0
    assert "POSENC_CPU_CAPABILITY must be default" in failed.stderr
    assert ", but is 'AVX2'" in failed.stderr
    names = failed.stderr.split("must be ")[1].split(", but is")[0]
    assert set(LEVELS) <= set(names.replace(" or ", ", ").split(", "))
