"""CoPE over a range of lengths: the cases that curves.py draws.

Two heads only, so that the longest take seconds: on one thread time grows with the heads.
"""

from collections.abc import Iterator

from attention_case import OP, SDPA, Size
from case import MODES, Case, Comparison
from contextual import COMPILED, COPE, EAGER, cope_case

LENGTHS = tuple(512 << doubling for doubling in range(6))
SMOKE_LENGTHS = (32, 64)
# Eager code keeps a dozen tensors of all pairs.
EAGER_LENGTH = 4096
POSITIONS = 64


def cases() -> Iterator[Case]:
    for mode in MODES:
        for length in LENGTHS:
            peers = [OP, SDPA] + ([EAGER, COMPILED] if length <= EAGER_LENGTH else [])
            yield _case(Size(length, 64, heads=2, key_heads=2), mode, peers)
        for length in SMOKE_LENGTHS:
            yield _case(Size(length, 16, heads=2, key_heads=2, smoke=True), mode, [OP, SDPA, EAGER])


def _case(size: Size, mode: str, peers: list[str]) -> Case:
    return cope_case("CoPE", size, POSITIONS, mode, [Comparison(COPE, peer) for peer in peers])
