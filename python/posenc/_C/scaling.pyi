from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias

from torch import Tensor
from typing_extensions import Self

class _PybindType(type): ...

class _Value(metaclass=_PybindType):
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: dict[Any, Any]) -> Self: ...

class Linear(_Value):
    __match_args__ = ("factor",)
    def __init__(self, factor: float) -> None: ...
    @property
    def factor(self) -> float: ...

class NTK(_Value):
    __match_args__ = ("factor",)
    def __init__(self, factor: float) -> None: ...
    @property
    def factor(self) -> float: ...

class DynamicNTK(_Value):
    __match_args__ = ("factor", "original_max_positions")
    def __init__(self, factor: float, original_max_positions: int) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...

class NTKByParts(_Value):
    __match_args__ = ("factor", "original_max_positions", "beta_fast", "beta_slow")
    def __init__(
        self, factor: float, original_max_positions: int, beta_fast: float = 32.0, beta_slow: float = 1.0
    ) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...

class Yarn(_Value):
    __match_args__ = (
        "factor",
        "original_max_positions",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "ramp",
    )
    def __init__(
        self,
        factor: float,
        original_max_positions: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
        truncate: bool = True,
        ramp: Literal["dims", "turns"] = "dims",
    ) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def attention_factor(self) -> float | None: ...
    @property
    def mscale(self) -> float | None: ...
    @property
    def mscale_all_dim(self) -> float | None: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def ramp(self) -> Literal["dims", "turns"]: ...
    def softmax_scale(self) -> float: ...

class LongRoPE(_Value):
    __match_args__ = ("short_factor", "long_factor", "original_max_positions", "factor", "attention_factor")
    def __init__(
        self,
        short_factor: Sequence[float],
        long_factor: Sequence[float],
        original_max_positions: int,
        factor: float | None = None,
        attention_factor: float | None = None,
    ) -> None: ...
    @property
    def short_factor(self) -> list[float]: ...
    @property
    def long_factor(self) -> list[float]: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def factor(self) -> float | None: ...
    @property
    def attention_factor(self) -> float | None: ...

class Llama3(_Value):
    __match_args__ = ("factor", "original_max_positions", "low_freq_factor", "high_freq_factor")
    def __init__(
        self, factor: float, original_max_positions: int, low_freq_factor: float = 1.0, high_freq_factor: float = 4.0
    ) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...

class Proportional(_Value):
    __match_args__ = ("fraction", "factor")
    def __init__(self, fraction: float, factor: float = 1.0) -> None: ...
    @property
    def fraction(self) -> float: ...
    @property
    def factor(self) -> float: ...

class PRoPE(_Value):
    __match_args__ = ("fraction",)
    def __init__(self, fraction: float) -> None: ...
    @property
    def fraction(self) -> float: ...

class TruncatedBasis(_Value):
    __match_args__ = ("length",)
    def __init__(self, length: int) -> None: ...
    @property
    def length(self) -> int: ...

class PowerBasis(_Value):
    __match_args__ = ("power",)
    def __init__(self, power: float) -> None: ...
    @property
    def power(self) -> float: ...

_Scaling: TypeAlias = (
    Linear
    | NTK
    | DynamicNTK
    | NTKByParts
    | Yarn
    | LongRoPE
    | Llama3
    | Proportional
    | PRoPE
    | TruncatedBasis
    | PowerBasis
    | None
)

class RopeConfig(metaclass=_PybindType):
    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn: ...  # read_rope makes them
    @property
    def head_dim(self) -> int: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def base(self) -> float: ...
    @property
    def scaling(self) -> _Scaling: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def mrope_section(self) -> list[int]: ...
    @property
    def mrope_interleaved(self) -> bool: ...

def frequencies(
    dim: int, base: float = 10000.0, scaling: _Scaling = None, seq_len: int | None = None, exact: bool = True
) -> tuple[Tensor, float]: ...
def attention_scaling(scaling: _Scaling) -> float: ...
def depends_on_length(scaling: _Scaling) -> bool: ...
def encode(scaling: _Scaling) -> list[float]: ...
def read_rope(
    rope: Mapping[str, Any],
    *,
    head_dim: int,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    rope_theta: float | None = None,
    partial_rotary_factor: float | None = None,
    rotary_dim: int | None = None,
    model_type: str = "",
    interleaved: bool | None = None,
) -> RopeConfig: ...
