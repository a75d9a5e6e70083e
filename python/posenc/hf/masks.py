"""transformers' mask functions, read as :class:`posenc.hf.visibility.Visibility`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import masking_utils

from posenc.hf.devices import has_kernels
from posenc.hf.traced import window_of
from posenc.hf.visibility import LazyMask, TracedMask, Visibility

__all__ = ["posenc_mask"]


@dataclass
class _Rules:
    """What a mask function says; all rules hold together, but ``blocks``, which shows what the first two hide."""

    causal: bool = False
    windows: list[tuple[int | None, int | None]] = field(default_factory=list)
    blocks: Tensor | None = None
    chunk: tuple[int, Tensor] | None = None
    packed: Tensor | None = None
    positions: Tensor | None = None
    padding: list[Tensor] = field(default_factory=list)


class _Unknown(Exception):
    """A rule that posenc does not know."""


def posenc_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **options: Any,
) -> Any:
    """The mask of a batch, registered with transformers as "posenc"; arguments are those of its mask functions.

    Returns:
        On devices with kernels a :class:`LazyMask`, in a traced graph a :class:`TracedMask`; else what
        scaled_dot_product_attention takes.
    """
    device = torch.device(device)
    shared: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "device": device,
        "use_vmap": use_vmap,
    }
    if not has_kernels(device):
        return masking_utils.sdpa_mask(**shared, **options)
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        return masking_utils.eager_mask(**shared, dtype=dtype)
    shape = (batch_size, 1, q_length, kv_length)
    compiling = torch.compiler.is_compiling()
    try:
        rules = _Rules()
        if use_vmap or isinstance(kv_offset, Tensor) or (attention_mask is not None and attention_mask.dim() != 2):
            raise _Unknown
        if not compiling or not _read_traced(mask_function, rules, attention_mask, options):
            _read(mask_function, rules, compiling)
        visibility = _visibility(rules, shape, device, q_offset, kv_offset, attention_mask, compiling)
    except _Unknown:
        made = masking_utils.sdpa_mask(**shared, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        visibility = Visibility(shape, device, attn_mask=made)
    return TracedMask(visibility, dtype) if compiling else LazyMask(visibility, dtype)


def _read(function: Callable[..., Any], rules: _Rules, compiling: bool) -> None:
    """Adds what ``function`` demands to ``rules``."""
    if function is masking_utils.causal_mask_function:
        _by_place(rules)
        rules.causal = True
        return
    if function is masking_utils.bidirectional_mask_function:
        return
    if compiling:
        raise _Unknown  # a traced graph shows no closures
    maker = _maker(function)
    if maker not in _READERS:
        raise _Unknown
    _READERS[maker](_held(function), rules)


def _read_traced(
    function: Callable[..., Any], rules: _Rules, attention_mask: Tensor | None, options: dict[str, Any]
) -> bool:
    """Reads a sliding window in a graph; False where this is none for sure."""
    config, size = options.get("config"), options.get("local_size")
    # With a mask of tokens transformers looks for no packed sequences, and an intersection of no user's function is
    # that of a window or of chunks.
    if attention_mask is None or size is None or not function.__qualname__.startswith("and_masks."):
        return False
    if getattr(config, "sliding_window", None) != size or getattr(config, "attention_chunk_size", None) == size:
        return False
    found = window_of(function, size)
    if found is None:
        return False
    rules.causal = found[0]
    rules.windows.append(found[1])
    return True


def _maker(function: Callable[..., Any]) -> str:
    """The function of transformers that made a mask function, "" for others."""
    ours = getattr(function, "__module__", None) == masking_utils.__name__ and hasattr(function, "__code__")
    return function.__qualname__.partition(".")[0] if ours else ""


def _held(function: Callable[..., Any]) -> dict[str, Any]:
    """What a closure holds, by name."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def _by_place(rules: _Rules) -> None:
    """Raises where blocks would lift a rule that holds beside them."""
    if rules.blocks is not None:
        raise _Unknown


def _read_all(held: dict[str, Any], rules: _Rules) -> None:
    for part in held["mask_functions"]:
        _read(part, rules, False)


def _read_any(held: dict[str, Any], rules: _Rules) -> None:
    """A union: only that of blocks with causality and windows."""
    rest, block = held["mask_functions"]
    inner = _Rules()
    _read(rest, inner, False)
    allowed = _Rules(causal=inner.causal, windows=inner.windows, positions=inner.positions)
    if _maker(block) != "blockwise_overlay" or inner != allowed:
        raise _Unknown
    if rules.blocks is not None or rules.causal or rules.windows:
        raise _Unknown  # an intersection with rules that blocks do not lift
    rules.causal, rules.windows, rules.blocks = inner.causal, inner.windows, _held(block)["block_sequence_ids"]
    _read_positions(inner.positions, rules)


def _read_window(held: dict[str, Any], rules: _Rules) -> None:
    _by_place(rules)
    rules.windows.append((held["sliding_window"] - 1, None))


def _read_two_sided_window(held: dict[str, Any], rules: _Rules) -> None:
    _by_place(rules)
    rules.windows.append((held["sliding_window"], held["sliding_window"]))


def _read_chunk(held: dict[str, Any], rules: _Rules) -> None:
    if rules.chunk is not None:
        raise _Unknown
    rules.chunk = (held["chunk_size"], held["left_padding"])


def _read_packed(held: dict[str, Any], rules: _Rules) -> None:
    if rules.packed is not None:
        raise _Unknown
    rules.packed = held["packed_sequence_mask"]


def _read_remapped(held: dict[str, Any], rules: _Rules) -> None:
    inner = _Rules()
    _read(held["mask_function"], inner, False)
    if inner.causal or inner.windows:
        _by_place(rules)
    if inner.blocks is not None or inner.packed is not None or inner.padding or inner.positions is not None:
        raise _Unknown  # by index, but here by position
    rules.causal |= inner.causal
    rules.windows += inner.windows
    if inner.chunk is not None and rules.chunk is not None:
        raise _Unknown
    rules.chunk = rules.chunk or inner.chunk
    _read_positions(held["position_ids"], rules)


def _read_positions(positions: Tensor | None, rules: _Rules) -> None:
    if positions is not None and rules.positions is not None:
        raise _Unknown
    rules.positions = rules.positions if positions is None else positions


def _read_padding(held: dict[str, Any], rules: _Rules) -> None:
    rules.padding.append(held["padding_mask"])


_READERS: dict[str, Callable[[dict[str, Any], _Rules], None]] = {
    "and_masks": _read_all,
    "or_masks": _read_any,
    "sliding_window_overlay": _read_window,
    "sliding_window_bidirectional_overlay": _read_two_sided_window,
    "chunked_overlay": _read_chunk,
    "packed_sequence_mask_function": _read_packed,
    "remap_positions_for_packed_sequence": _read_remapped,
    "padding_mask_function": _read_padding,
}


def _visibility(
    rules: _Rules,
    shape: tuple[int, int, int, int],
    device: torch.device,
    q_offset: int | Tensor,
    kv_offset: int,
    attention_mask: Tensor | None,
    compiling: bool,
) -> Visibility:
    batch, _, queries, keys = shape
    aligned = not isinstance(q_offset, Tensor) and q_offset + queries == kv_offset + keys
    says = Visibility(shape, device, causal=rules.causal)
    if rules.windows:
        lefts = [left for left, _ in rules.windows if left is not None]
        rights = [right for _, right in rules.windows if right is not None]
        says.window = (min(lefts, default=None), min(rights, default=None))
    if not aligned and (rules.causal or rules.windows):
        start = q_offset - kv_offset
        says.q_start = start if isinstance(start, Tensor) else torch.tensor(start, device=device)
        says.q_start = says.q_start.to(device=device, dtype=torch.long)
    says.key_mask = _key_mask(rules, batch, keys, kv_offset, attention_mask, compiling)
    if rules.blocks is not None:
        if not aligned:
            raise _Unknown  # queries of blocks are the last tokens
        says.block_ids = _of_keys(rules.blocks, batch, keys, kv_offset)
    if rules.positions is not None or rules.packed is not None:
        if rules.packed is None or not aligned or kv_offset != 0 or queries != keys:
            raise _Unknown
        _check_packing(rules)
        # Within a sequence positions follow each other, so that distances by index are distances by position.
        says.segment_ids = _of_keys(rules.packed, batch, keys, 0)
    if rules.chunk is not None:
        _add_chunks(says, rules, batch, q_offset, kv_offset, aligned)
    return says


def _key_mask(
    rules: _Rules, batch: int, keys: int, kv_offset: int, attention_mask: Tensor | None, compiling: bool
) -> Tensor | None:
    padding = rules.padding if attention_mask is None else [*rules.padding, attention_mask]
    combined = None
    for mask in padding:
        mask = mask.to(torch.bool)
        if not compiling:
            seen = mask[:, kv_offset : kv_offset + keys]
            # Keys after the mask's last are hidden; causality hides them from all queries, unless blocks show them.
            ends_early = mask.shape[1] < kv_offset + keys
            if (not ends_early or (rules.causal and rules.blocks is None)) and bool(seen.all()):
                continue
        mask = functional.pad(mask, (0, max(0, kv_offset + keys - mask.shape[1])))[:, kv_offset : kv_offset + keys]
        combined = mask if combined is None else combined & mask
    return None if combined is None else combined.expand(batch, -1)


def _check_packing(rules: _Rules) -> None:
    """Raises unless sequences are those that positions show: each a run of successive positions."""
    if rules.positions is None or rules.packed is None:
        return
    steps = rules.positions.diff(dim=-1)
    within = rules.packed.diff(dim=-1) == 0
    if not bool((within.expand(steps.shape) <= (steps == 1)).all()):
        raise _Unknown


def _add_chunks(
    says: Visibility, rules: _Rules, batch: int, q_offset: int | Tensor, kv_offset: int, aligned: bool
) -> None:
    assert rules.chunk is not None
    size, padding = rules.chunk
    queries, keys = says.shape[2:]
    left = padding.to(says.device)[:, None]

    def chunks(places: Tensor) -> Tensor:
        return ((places - left) // size).expand(batch, -1)

    if rules.positions is not None:
        of_keys = chunks(rules.positions)
    else:
        of_keys = chunks(torch.arange(keys, device=says.device) + kv_offset)
    if not aligned:
        says.q_segment_ids = chunks(torch.arange(queries, device=says.device) + q_offset)
    if says.segment_ids is not None:
        low = of_keys.min()
        of_keys = says.segment_ids * (of_keys.max() - low + 1) + (of_keys - low)
    says.segment_ids = of_keys


def _of_keys(ids: Tensor, batch: int, keys: int, kv_offset: int) -> Tensor:
    if ids.shape[1] < kv_offset + keys:
        raise _Unknown
    return ids[:, kv_offset : kv_offset + keys].expand(batch, -1)
