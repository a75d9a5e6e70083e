from collections.abc import Sequence

from torch import Tensor

def multimodal_positions(spans: Sequence[tuple[str, int | tuple[int, int, int]]]) -> Tensor: ...
