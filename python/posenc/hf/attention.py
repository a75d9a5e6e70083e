"""posenc's attention as an attention function of transformers."""

import contextlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from posenc.hf.devices import has_kernels
from posenc.hf.report import EAGER, POSENC, SDPA, ran
from posenc.hf.visibility import Visibility, described
from posenc.ops import attention

__all__ = ["posenc_attention"]

# What eager attention functions of transformers take, and posenc_attention serves.
_SERVED = frozenset(("module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs")) | frozenset(
    ("softcap", "position_bias", "sinks", "sliding_window")
)
_warned: set[str] = set()


def posenc_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' models, registered as "posenc".

    Args:
        module: The attention layer.
        query, key, value: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv).
        attention_mask: What the mask function of posenc made, or any mask of the model's own: bool, True where a key is
            seen, or float, added to the scores.
        dropout: Used in training.
        scaling: Multiplies query . key; None: ``1 / sqrt(D)``.
        is_causal: Where there is no mask; None: what the layer says.
        softcap: Cap of the scores, before masks.
        position_bias: Added to the scores.
        s_aux, sinks: Logits without a value, per head or (B, H, Tq, 1).
        indices: (B, Tq, n), the only keys that each query sees.
        block_indices: Blocks of keys, as the layer's indexer makes a mask of.
        cu_seq_lens_q, cu_seq_lens_k: Where packed sequences start, used without a mask.
        **others: What the model's eager function acts on is handed to it; the rest says nothing about attention.

    Returns:
        (B, Tq, H, Dv), and None for the weights.
    """
    if block_indices is not None:
        attention_mask = _mask_of_blocks(module, query, key, attention_mask, block_indices, others.get("position_ids"))
    if indices is not None:
        attention_mask = _only(attention_mask, indices, key.shape[2])
    sinks = s_aux if sinks is None else sinks
    says = described(attention_mask)
    reason = _refused(module, query, key, says, sinks, others)
    told = {"softcap": softcap, "position_bias": position_bias, "sinks": sinks}
    if reason is not None:
        return _model_s_own(module, query, key, value, attention_mask, dropout, scaling, told | others, reason)
    compiling = torch.compiler.is_compiling()
    if not has_kernels(query.device):
        if softcap is None and sinks is None:
            mask = attention_mask if says is None else says.visible()
            if not compiling:
                ran(module, SDPA, f"on {query.device.type}")
            return sdpa_attention_forward(
                module, query, key, value, mask, dropout, scaling, is_causal, position_bias=position_bias
            )
        if attention_mask is None:
            attention_mask = _without_mask(module, query, key, is_causal)
        reason = f"softcap or sinks on {query.device.type}"
        return _model_s_own(module, query, key, value, attention_mask, dropout, scaling, told | others, reason)

    call: dict[str, Any]
    if says is not None:
        call = says.call() if compiling else attention_mask.call.copy()
    elif attention_mask is not None:
        call = {"attn_mask" if attention_mask.dtype == torch.bool else "bias": attention_mask}
    elif cu_seq_lens_q is not None:
        call = _packed(query, key, cu_seq_lens_q, cu_seq_lens_k)
    else:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        call = {}
        if causal and query.shape[2] > 1:
            call["is_causal"] = True
            # The first call on a cache of fixed size, whose other places are empty.
            if key.shape[2] > query.shape[2]:
                key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
                position_bias = None if position_bias is None else position_bias[..., : query.shape[2]]
    if position_bias is not None:
        call["bias"] = position_bias if "bias" not in call else call["bias"] + position_bias
    if softcap is not None:
        call["softcap"], call["softcap_on"] = softcap, "content"
    if sinks is not None:
        call["sinks"] = sinks.squeeze(-1) if sinks.dim() == 4 and sinks.shape[-1] == 1 else sinks
    if scaling is not None:
        call["scale"] = scaling
    if dropout and module.training:
        call["dropout_p"] = dropout
    if query.shape[0] != key.shape[0]:
        query = query.expand(key.shape[0], -1, -1, -1)  # learned queries
    if not compiling:
        ran(module, POSENC, call)
    return attention(query, key, value, **call).transpose(1, 2).contiguous(), None


def _refused(
    module: nn.Module, query: Tensor, key: Tensor, says: Visibility | None, sinks: Tensor | None, others: dict[str, Any]
) -> str | None:
    """Why posenc does not serve a call, None where it does."""
    unknown = _acted_on(type(module), tuple(name for name, other in others.items() if other is not None))
    if unknown:
        return f"its attention acts on the keyword {unknown!r}"
    if sinks is None and module._parameters.get("sinks") is not None:
        return "its sinks are not handed to the attention function"
    if query.dim() != 4 or key.dim() != 4:
        return f"queries and keys have {query.dim()} and {key.dim()} dimensions"
    if says is not None and tuple(says.shape[2:]) != (query.shape[2], key.shape[2]):
        return "its mask is of another size than its queries and keys"
    if query.shape[1] % key.shape[1] != 0:
        return f"{query.shape[1]} query heads do not share {key.shape[1]} key heads evenly"
    return None


_keywords: dict[type, frozenset[str]] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _acted_on(layer: type, names: tuple[str, ...]) -> str:
    """The first of ``names`` that the model's eager function reads and posenc does not know, "" where there is none."""
    if layer not in _keywords:
        _keywords[layer] = _read_keywords(layer)
    return next((name for name in names if name in _keywords[layer]), "")


def _read_keywords(layer: type) -> frozenset[str]:
    eager = _eager(layer)
    if eager is None:
        return frozenset()
    names = set(inspect.signature(eager).parameters)
    with contextlib.suppress(OSError):  # without its source, its signature alone
        names.update(re.findall(r"kwargs(?:\.get\(|\.pop\(|\[)\s*[\"'](\w+)", inspect.getsource(eager)))
    return frozenset(names - _SERVED)


def _eager(layer: type) -> Callable[..., Any] | None:
    """The eager attention function beside a layer's class or the class that it derives from."""
    for cls in layer.__mro__:
        found = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return None


def _model_s_own(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float,
    scaling: float | None,
    others: dict[str, Any],
    reason: str,
) -> Any:
    eager = _eager(type(module))
    if eager is None:
        raise NotImplementedError(
            f'posenc.hf: {type(module).__name__} cannot run with attn_implementation="posenc": {reason}, and '
            f'{type(module).__module__} has no eager_attention_forward to run instead; use "eager" or "sdpa"'
        )
    if not torch.compiler.is_compiling():
        ran(module, EAGER, reason)
        _warn(f"posenc.hf: {type(module).__name__} runs its model's eager attention: {reason}")
    says = described(attention_mask)
    if says is not None:
        attention_mask = says.additive(query.dtype)
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        attention_mask = torch.where(attention_mask, zero, torch.finfo(query.dtype).min)
    others = {name: other for name, other in others.items() if other is not None}
    if "sinks" in others:
        others["s_aux"] = others["sinks"]
    return eager(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **others)


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=4)


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> Tensor | None:
    """The mask that a call without one means, aligned at the first query and key."""
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal or query.shape[2] == 1:
        return None
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()


def _packed(query: Tensor, key: Tensor, q_starts: Tensor, k_starts: Tensor | None) -> dict[str, Any]:
    """Sequences that follow each other, none of which sees another."""

    def segments(starts: Tensor, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[2], device=tokens.device)
        ids = torch.bucketize(places, starts[1:].to(places.device), right=True)
        return ids.expand(tokens.shape[0], -1)

    of_keys = segments(q_starts if k_starts is None else k_starts, key)
    return {"segment_ids": of_keys, "q_segment_ids": segments(q_starts, query)}


def _only(mask: Any, indices: Tensor, keys: int) -> Any:
    """``mask`` with the keys of ``indices`` alone."""
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(-1, indices.long(), True).unsqueeze(1)
    if mask is None:
        return chosen
    says = described(mask)
    if says is None:
        return chosen & mask if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)
    own = chosen if says.attn_mask is None else says.attn_mask & chosen
    return type(mask)(replace(says, attn_mask=own), mask.dtype)


def _mask_of_blocks(
    module: nn.Module, query: Tensor, key: Tensor, mask: Any, block_indices: Tensor, positions: Tensor | None
) -> Tensor:
    """The mask that the layer's own indexer makes for eager attention."""
    make = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if make is None:
        raise NotImplementedError(
            f"posenc.hf: {type(module).__name__} gives block_indices, but its indexer has no build_block_mask: use "
            '"eager" or "sdpa"'
        )
    tokens = key.shape[2]
    if positions is None:
        positions = torch.arange(tokens - query.shape[2], tokens, device=query.device)
    positions = (positions if positions.dim() > 1 else positions[None]).expand(query.shape[0], -1)
    says = described(mask)
    if says is not None:
        mask = says.additive(query.dtype)
    return make(block_indices, mask, tokens, query.dtype, query.device, positions)
