from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, device, dtype
from torch.nn.cpp import ModuleWrapper

from posenc._C.scaling import _Scaling

class _Module(ModuleWrapper):
    def __getattr__(self, name: str) -> Any: ...  # what the C++ module has

class _RotaryModule(_Module):
    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        seq_len: int | None = None,
    ) -> Any: ...
    def shift(self, key: Tensor, by: int) -> Tensor: ...

class Rotary(_RotaryModule):
    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: _Scaling = None,
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
        sections: Sequence[int],
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        interleaved_sections: bool = False,
        scaling: _Scaling = None,
        exact: bool = True,
        seq_len: int | None = None,
    ) -> None: ...
    def frequencies(self, seq_len: int | None = None) -> tuple[Tensor, float]: ...
    def axes(self) -> list[int]: ...

class _AbsoluteModule(_Module):
    def forward(self, x: Tensor, positions: Tensor | None = None, *, offset: int | Tensor = 0) -> Tensor: ...

class Sinusoidal(_AbsoluteModule):
    def __init__(self, dim: int, *, base: float = 10000.0, layout: str = "interleaved", num_axes: int = 1) -> None: ...
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

class _PybindType(type): ...

class KVCache(metaclass=_PybindType):
    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_length: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        window: int | None = None,
        dtype: dtype = ...,
        device: device | str = ...,
    ) -> None: ...
    def append(
        self, k: Tensor, v: Tensor, *, positions: Tensor | None = None, **token_state: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...
    @property
    def length(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def keys(self) -> Tensor: ...
    @property
    def values(self) -> Tensor: ...
    @property
    def token_state(self) -> dict[str, Tensor]: ...
    @property
    def gate_keys(self) -> Tensor | None: ...
    @property
    def log_decay(self) -> Tensor | None: ...
    @property
    def positions(self) -> Tensor | None: ...
    def next_positions(self, tokens: int) -> Tensor | None: ...
    def reset(self) -> None: ...
    def crop(self, length: int) -> None: ...
    def evict(self, start: int, count: int, rotary: _RotaryModule | None = None) -> None: ...
    def reorder(self, index: Tensor) -> None: ...
    def copy(self) -> KVCache: ...

class Attention(_Module):
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        encodings: Iterable[Any] = (),
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        bias: bool = False,
        output_bias: bool | None = None,
        is_causal: bool | None = None,
        window: int | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        scale: float | None = None,
        sinks: bool = False,
        softcap: float | None = None,
        softcap_on: str = "content",
        value_dim: int | None = None,
        cross: bool = False,
    ) -> None: ...
    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        attn_mask: Tensor | None = None,
        block_ids: Tensor | None = None,
        bias: Tensor | None = None,
        context: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor: ...

def check_attention(
    embed_dim: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    encodings: Iterable[Any] = (),
    dropout: float = 0.0,
    output_dropout: float = 0.0,
    bias: bool = False,
    output_bias: bool | None = None,
    is_causal: bool | None = None,
    window: int | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    scale: float | None = None,
    sinks: bool = False,
    softcap: float | None = None,
    softcap_on: str = "content",
    value_dim: int | None = None,
    cross: bool = False,
) -> None: ...

class _ScoreModule(_Module):
    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        is_causal: bool | None = None,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        window: int | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        segment_ids: Tensor | None = None,
        q_segment_ids: Tensor | None = None,
        block_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        softcap_on: str = "content",
        sinks: Tensor | None = None,
        dropout_p: float = 0.0,
        return_lse: bool = False,
        **token_state: Tensor | None,
    ) -> Any: ...
    def logits(
        self,
        query: Tensor,
        key: Tensor,
        *,
        is_causal: bool | None = None,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        window: int | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        segment_ids: Tensor | None = None,
        q_segment_ids: Tensor | None = None,
        block_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        softcap_on: str = "content",
        **token_state: Tensor | None,
    ) -> Tensor: ...

class ShawRelative(_ScoreModule):
    def __init__(
        self, head_dim: int, max_distance: int, *, num_heads: int | None = None, values: bool = True
    ) -> None: ...

def shaw_relative_initial_bound(
    head_dim: int, max_distance: int, num_heads: int | None = None, values: bool = True
) -> float: ...

class DecomposedRelative(_ScoreModule):
    def __init__(self, head_dim: int, size: Sequence[int]) -> None: ...

def check_decomposed_relative(head_dim: int, size: Sequence[int]) -> None: ...

class DisentangledRelative(_ScoreModule):
    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        max_distance: int,
        *,
        buckets: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
    ) -> None: ...

def disentangled_relative_span(
    head_dim: int,
    num_heads: int,
    max_distance: int,
    buckets: int | None = None,
    c2p: bool = True,
    p2c: bool = True,
) -> int: ...

DISENTANGLED_RELATIVE_INITIAL_STD: float

class TransformerXL(_ScoreModule):
    def __init__(
        self, head_dim: int, num_heads: int, *, pos_dim: int | None = None, layout: str = "concatenated"
    ) -> None: ...

def transformer_xl_inv_freq(
    head_dim: int, num_heads: int, pos_dim: int | None = None, layout: str = "concatenated"
) -> Tensor: ...

TRANSFORMER_XL_INITIAL_STD: float

class ReRoPE(_ScoreModule):
    def __init__(
        self,
        head_dim: int,
        window: int = 512,
        *,
        leak: float | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        log_scale_length: int | None = None,
    ) -> None: ...
    def inv_freq(self) -> Tensor: ...
    def far_inv_freq(self) -> Tensor | None: ...

class SelfExtend(_ScoreModule):
    def __init__(
        self,
        head_dim: int,
        *,
        group: int = 8,
        window: int = 1024,
        base: float = 10000.0,
        interleaved: bool = False,
    ) -> None: ...
    def inv_freq(self) -> Tensor: ...

class CoPE(_ScoreModule):
    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        *,
        num_heads: int | None = None,
        scale_position_logits: bool = False,
        gate: str = "logits",
        gate_bias: float | None = None,
    ) -> None: ...
    def forward(self, query: Tensor, attn_logits: Tensor) -> Tensor: ...

def check_cope(
    head_dim: int,
    max_positions: int,
    num_heads: int | None = None,
    scale_position_logits: bool = False,
    gate: str = "logits",
    gate_bias: float | None = None,
) -> None: ...

class ForgettingBias(_ScoreModule):
    def __init__(self, embed_dim: int, num_heads: int, *, kind: str = "fox") -> None: ...
    def forward(self, x: Tensor) -> Tensor: ...

def check_forgetting_bias(embed_dim: int, num_heads: int, kind: str = "fox") -> None: ...

class _AdditiveModule(_ScoreModule):
    def bias(self, q_len: int, k_len: int | None = None) -> Tensor: ...

class ALiBi(_AdditiveModule):
    def __init__(self, num_heads: int, *, slopes: Sequence[float] | None = None, learnable: bool = False) -> None: ...
    def initial_slopes(self) -> Tensor: ...

class T5RelativeBias(_AdditiveModule):
    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        scale: float | None = 1.0,
    ) -> None: ...

def t5_relative_bias_initial_std(
    num_heads: int,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = False,
    scale: float | None = 1.0,
) -> float: ...

class Kerple(_AdditiveModule):
    def __init__(self, num_heads: int, *, kind: str = "log") -> None: ...

def check_kerple(num_heads: int, kind: str = "log") -> None: ...

class Sandwich(_AdditiveModule):
    def __init__(self, num_heads: int, *, dim: int = 128) -> None: ...
    def inv_freq(self) -> Tensor: ...

class FIRE(_AdditiveModule):
    def __init__(
        self, num_heads: int, *, hidden_dim: int = 32, c: float = 0.1, threshold: float = 512.0, eps: float = 1e-6
    ) -> None: ...

def check_fire(
    num_heads: int, hidden_dim: int = 32, c: float = 0.1, threshold: float = 512.0, eps: float = 1e-6
) -> None: ...

class GridRelativeBias(_AdditiveModule):
    def __init__(
        self, num_heads: int, window: Sequence[int], *, kind: str = "table", class_token: bool = False
    ) -> None: ...

GRID_RELATIVE_BIAS_INITIAL_STD: float
GRID_RELATIVE_BIAS_HIDDEN: int

def check_grid_relative_bias(
    num_heads: int, window: Sequence[int], kind: str = "table", class_token: bool = False
) -> None: ...
