"""Other implementations of attention, each as a function of q, k, v and what else the case has as inputs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from attention_reference import distances

Attend = Callable[..., tuple[Tensor]]


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    """Causal; it picks its flash kernel."""
    return (scaled_dot_product_attention(q, k, v, is_causal=True),)


def sdpa_decode(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    """One query, which sees every key."""
    return (scaled_dot_product_attention(q, k, v, enable_gqa=True),)


def sdpa_masked(bias: Tensor, dtype: torch.dtype) -> Attend:
    """Flash kernel with a materialised mask, made beforehand: `bias` (H, T, T) and the causal rule."""
    mask = (bias + causal_mask(bias.shape[-1]))[None].to(dtype)
    return lambda q, k, v: (scaled_dot_product_attention(q, k, v, attn_mask=mask),)


def sdpa_trained_table(tokens: int, radius: int) -> Attend:
    """Looks a table (H, 2R+1) of biases up and attends with them: a mask with a gradient takes the math path."""
    mask = causal_mask(tokens)
    index = (distances(tokens, tokens).clamp(-radius, radius) + radius).contiguous()

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> tuple[Tensor]:
        bias = embedding(index, table.t()).permute(2, 0, 1)[None]
        return (scaled_dot_product_attention(q, k, v, attn_mask=(bias + mask).to(q.dtype)),)

    return attend


def fire_bias(offsets: Tensor, queries: Tensor, eps: float, c: Tensor, threshold: Tensor, *layers: Tensor) -> Tensor:
    """FIRE (arXiv 2310.04418) for offsets (Tq, Tk) of keys and positions (Tq) of queries: (H, Tq, Tk)."""
    weight_in, bias_in, weight_out, bias_out = layers
    norm = torch.log1p((c * torch.maximum(threshold.abs(), queries.to(c.dtype))).abs()) + eps
    x = torch.log1p((c * offsets).abs()) / norm[:, None]
    hidden = torch.relu(torch.nn.functional.linear(x[..., None], weight_in, bias_in))
    return torch.nn.functional.linear(hidden, weight_out, bias_out).movedim(-1, 0)


def sdpa_fire(tokens: int, eps: float) -> Attend:
    """Runs FIRE's MLP on all pairs and attends with its bias: a mask with a gradient takes the math path."""
    mask, offsets, queries = causal_mask(tokens), distances(tokens, tokens).contiguous(), torch.arange(tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor, *p: Tensor) -> tuple[Tensor]:
        bias = fire_bias(offsets, queries, eps, *p)
        return (scaled_dot_product_attention(q, k, v, attn_mask=(bias + mask)[None]),)

    return attend


def flex_works() -> bool:
    """It compiles for processors with AVX2 only."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def flex_alibi(slopes: Tensor, tokens: int) -> Attend:
    """Compiled flex_attention with ALiBi as its score_mod and a causal block mask. It has no backward on a CPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cpu")

    def add_alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j)

    return lambda q, k, v: (compiled(q, k, v, score_mod=add_alibi, block_mask=block_mask),)


def read(_: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    """Reads every byte of k and v once: their dot product, two bfloat16 as one float32."""
    return (torch.dot(k.view(torch.float32).flatten(), v.view(torch.float32).flatten()),)


def causal_mask(tokens: int) -> Tensor:
    """(T, T): 0 where a query sees a key, else -infinity."""
    return torch.full((tokens, tokens), -torch.inf).triu(1)
