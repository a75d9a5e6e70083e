from typing import Any

from torch import Tensor

from posenc._C.scaling import Scaling

class _RotaryModule:
    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        seq_len: int | None = None,
    ) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...  # of torch::nn::Module

class Rotary(_RotaryModule):
    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: Scaling = None,
        exact: bool = True,
        seq_len: int | None = None,
        learnable: bool = False,
    ) -> None: ...
    def frequencies(self, seq_len: int | None = None) -> tuple[Tensor, float]: ...

class XPos(_RotaryModule):
    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        scale_base: float = 512.0,
        centre: float = 0.0,
        interleaved: bool = True,
    ) -> None: ...
    def constants(self) -> tuple[Tensor, Tensor]: ...

class AxialRotary(_RotaryModule):
    def __init__(
        self,
        head_dim: int,
        *,
        num_axes: int = 2,
        base: float = 100.0,
        interleaved: bool = True,
        learnable: bool = False,
        num_heads: int | None = None,
    ) -> None: ...
    def initial_inv_freq(self) -> Tensor: ...
    def axes(self) -> list[int]: ...

class MultimodalRotary(_RotaryModule):
    def __init__(
        self,
        head_dim: int,
        sections: list[int],
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        interleaved_sections: bool = False,
        scaling: Scaling = None,
        exact: bool = True,
        seq_len: int | None = None,
    ) -> None: ...
    def frequencies(self, seq_len: int | None = None) -> tuple[Tensor, float]: ...
    def axes(self) -> list[int]: ...

class _AbsoluteModule:
    def forward(self, x: Tensor, positions: Tensor | None = None, *, offset: int | Tensor = 0) -> Tensor: ...
    def __getattr__(self, name: str) -> Any: ...  # of torch::nn::Module

class Sinusoidal(_AbsoluteModule):
    def __init__(self, dim: int, *, base: float = 10000.0, layout: str = "interleaved") -> None: ...
    def inv_freq(self) -> Tensor: ...

class LearnedAbsolute(_AbsoluteModule):
    def __init__(self, max_positions: int, dim: int) -> None: ...

LEARNED_ABSOLUTE_INITIAL_STD: float

def check_learned_absolute(max_positions: int, dim: int) -> None: ...

class CAPE(_AbsoluteModule):
    def __init__(
        self,
        dim: int,
        *,
        max_global_shift: float = 5.0,
        max_local_shift: float = 0.5,
        max_global_scaling: float = 1.03,
        base: float = 10000.0,
        centre: bool = False,
    ) -> None: ...
    def inv_freq(self) -> Tensor: ...
