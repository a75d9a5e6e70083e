"""Which instruction-set levels there are, which one runs, and what POSENC_CPU_CAPABILITY may be."""

import pytest

import posenc
from processes import python

LEVELS = posenc._C.cpu_capabilities()


def level_in_use(level=None, **options):
    code = "import posenc; print(posenc._C.cpu_capability())"
    return python(code, POSENC_CPU_CAPABILITY=level, **options).strip()


def test_every_build_runs_the_default_level_and_names_it_first():
    assert LEVELS[0] == "default"
    assert len(set(LEVELS)) == len(LEVELS)


def test_the_best_level_is_used_unless_another_is_named():
    assert level_in_use() == LEVELS[-1]
    assert level_in_use("") == LEVELS[-1]


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_of_this_machine_can_be_named(level):
    assert level_in_use(level) == level


def test_another_name_is_refused_with_all_names_of_this_architecture():
    printed = level_in_use("AVX2", expect_failure=True)
    assert "POSENC_CPU_CAPABILITY must be default" in printed
    assert ", but is 'AVX2'" in printed
    names = printed.split("must be ")[1].split(", but is")[0]
    assert set(LEVELS) <= set(names.replace(" or ", ", ").split(", "))
