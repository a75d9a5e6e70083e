"""CoPE in float32 against float64, and against the paper's listing in float32: a thin grid of cope_exactness.py."""

import functools
import math
from statistics import mean

import pytest
import torch

import cope_eager
import posenc
from cope_exactness import ENTRIES, GATES, Grid, measure

pytestmark = pytest.mark.kernels

SHORT = [Grid(64, 64, entries, gate) for entries in ENTRIES for gate in GATES]
LONG = [Grid(1024, 1024, entries, gate) for entries, gate in ((1, 0.5), (16, 0.1), (64, 0.02), (256, 0.5), (1024, 1.0))]
# The last queries of long rows.
LONGEST = [Grid(64, 8192, entries, gate) for entries in (64, 256, 1024) for gate in GATES]
every_case = pytest.mark.parametrize("case", [*SHORT, *LONG, *LONGEST], ids=str)
steep_tables = pytest.mark.parametrize(
    "case",
    [Grid(c.queries, c.keys, c.entries, c.gate, std=1.0) for c in (*SHORT[8:16], *LONG, *LONGEST)],
    ids=str,
)


@functools.cache
def errors_of(case):
    torch.manual_seed(0)
    return measure(case)


@pytest.mark.parametrize("case", [c for c in (*SHORT, *LONG, *LONGEST) if c.entries <= 256], ids=str)
def test_float32_is_near_float64(case):
    errors, _ = errors_of(case)
    for name, error in errors.items():
        assert error.largest < (1e-5 if name == "out" else 1e-4), name


def row_error(actual, expected):
    return ((actual.double() - expected).abs().amax(-1) / expected.abs().amax(-1)).max()


def assert_no_worse_than_the_listing(case, times=2):
    """In the mean, where it shows beside that of plain attention; the gradient of the gates' bias is one number, whose
    error is chance."""
    errors, _ = errors_of(case)
    worse = {name: e for name, e in errors.items() if e.ratio > times and e.largest > 5e-6 and name != "gate_bias"}
    assert not worse, worse


@every_case
def test_errors_are_at_most_twice_those_of_the_listing(case):
    assert_no_worse_than_the_listing(case)


@steep_tables
def test_errors_with_steep_tables_are_at_most_twice_those_of_the_listing(case):
    """Where an error of a position is multiplied by the slope between two entries, as in a trained table."""
    assert_no_worse_than_the_listing(case)


@pytest.mark.parametrize("entries", [2, 16, 64, 1024])
def test_errors_with_few_gates_and_steep_tables(entries):
    """Nearly all weight on few keys: the gradients are small differences. Few numbers decide,
    so the mean is over inputs."""
    found = []
    for seed in range(20):
        torch.manual_seed(seed)
        found.append(measure(Grid(64, 64, entries, 0.02, std=1.0))[0])
    for name in set(found[0]) - {"gate_bias"}:
        off, of_listing = (
            math.sqrt(mean(x**2 for x in numbers))
            for numbers in zip(*((errors[name].mean, errors[name].eager_mean) for errors in found), strict=True)
        )
        assert off <= 2.5 * of_listing, name


@pytest.mark.parametrize("gate", [0.02, 0.5])
def test_entries_that_nobody_reaches_cost_no_digits(gate):
    """A table that grows steadily, of which short rows meet the beginning."""
    tensors = Grid(128, 128, 1024, gate).tensors()
    tensors["pos_emb"] = 0.03 * torch.arange(1024) * torch.randn(1, 64, 1)
    wide = {name: x.double() for name, x in tensors.items()}
    expected = cope_eager.attention(wide)
    off, of_listing = (
        row_error(x, expected) for x in (posenc.ops.cope_attention(**tensors), cope_eager.attention(tensors))
    )
    assert off <= 2 * of_listing


@pytest.mark.parametrize("case", LONGEST, ids=str)
def test_enough_queries_are_away_from_kinks(case):
    _, kept = errors_of(case)
    assert kept > 0.1
