"""Interleaved timing: contenders take turns in one process, so drift of a shared machine touches all of them alike.

Work on one thread is timed by the processor time of the process, page faults included, which does not grow while other
programs hold the core. Several threads are timed by the wall clock.
"""

import ctypes
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from results import Timing

Run = Callable[[], object]
Clock = Callable[[], float]

# A call of so many seconds finds nothing in the caches that an earlier one left.
LONG_CALL = 0.05

# glibc's way to give free memory back to the system; other C libraries lack it.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Samples of each contender, at least; `long_rounds` where a call of one takes longer than `long_seconds`.
        seconds: Further rounds are added until this much time has passed, up to `max_rounds`.
        sample_seconds: A sample repeats the call until it lasts about this long.
        warmup_seconds: Calls before the first sample, at least two of those that are not long.
    """

    rounds: int = 7
    long_rounds: int = 3
    long_seconds: float = 0.3
    max_rounds: int = 31
    seconds: float = 0.3
    sample_seconds: float = 2e-3
    warmup_seconds: float = 0.02


def interleave(contenders: Mapping[str, Run], effort: Effort, clock: Clock) -> dict[str, Timing]:
    """Times each contender once per round, in an order drawn anew: none always follows the same neighbour."""
    _trim(0)
    names = list(contenders)
    order = random.Random(0)
    expected = {name: _warm_up(contenders[name], effort, clock) for name in names}
    rounds = effort.long_rounds if max(expected.values()) > effort.long_seconds else effort.rounds
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        done = 0
        while done < rounds or (done < effort.max_rounds and time.perf_counter() - begin < effort.seconds):
            for name in order.sample(names, len(names)):
                calls = 1
                if expected[name] < LONG_CALL:
                    contenders[name]()  # leaves caches as repeated calls do, whoever had the turn before
                    calls = max(1, math.ceil(effort.sample_seconds / expected[name]))
                samples[name].append(_sample(contenders[name], calls, clock))
            done += 1
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(statistics.median(times), min(times), len(times)) for name, times in samples.items()}


def _warm_up(run: Run, effort: Effort, clock: Clock) -> float:
    """Says how many seconds a call takes."""
    begin = clock()
    seconds = _sample(run, 1, clock)
    if seconds >= LONG_CALL:
        return seconds
    while True:
        seconds = _sample(run, 1, clock)
        if clock() - begin >= effort.warmup_seconds:
            return seconds


def _sample(run: Run, calls: int, clock: Clock) -> float:
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls
