"""Other implementations of rotary embeddings, each as a function (q, k) -> (q', k')."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from shapes import Shape

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def transformers_eager(shape: Shape, dtype: torch.dtype, offset: int = 0) -> Rotate:
    """`apply_rotary_pos_emb` on tables that are already there, in `dtype` as its models make them."""
    apply = _transformers_apply(shape)
    cos, sin = _transformers_tables(shape)(torch.empty(0, dtype=dtype), _position_ids(shape, offset))
    return lambda q, k: apply(q, k, cos, sin)


def transformers_with_tables(shape: Shape, dtype: torch.dtype, offset: int = 0) -> Rotate:
    """The tables of the rotary module, then `apply_rotary_pos_emb`: what a model of one layer runs per token."""
    apply = _transformers_apply(shape)
    tables = _transformers_tables(shape)
    position_ids = _position_ids(shape, offset)

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables(q, position_ids)
        return apply(q, k, cos, sin)

    return rotate


def transformers_compiled(shape: Shape, dtype: torch.dtype) -> Rotate:
    """torch.compile of `apply_rotary_pos_emb`, on tables that are already there."""
    compiled = torch.compile(_transformers_apply(shape), dynamic=False)
    cos, sin = _transformers_tables(shape)(torch.empty(0, dtype=dtype), _position_ids(shape, 0))
    return lambda q, k: compiled(q, k, cos, sin)


def rotary_embedding_torch(shape: Shape) -> Rotate:
    """The package rotary-embedding-torch. Its pairs are interleaved.

    Its cache of angles is filled first, by a float32 tensor: bfloat16 ones would round the positions.
    """
    from rotary_embedding_torch import RotaryEmbedding

    embedding = RotaryEmbedding(shape.rotary_dim, theta=shape.base)
    embedding.rotate_queries_or_keys(torch.zeros(shape.tokens, shape.rotary_dim))
    return lambda q, k: (embedding.rotate_queries_or_keys(q), embedding.rotate_queries_or_keys(k))


def clone(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The limit that memory sets: reads and writes what a rotation must."""
    return q.clone(), k.clone()


def _position_ids(shape: Shape, offset: int) -> Tensor:
    return torch.arange(offset, offset + shape.tokens).expand(shape.batch, -1)


def _transformers_apply(shape: Shape) -> Callable[..., tuple[Tensor, Tensor]]:
    if shape.rotary_dim < shape.head_dim:
        from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb
    else:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    return apply_rotary_pos_emb


def _transformers_tables(shape: Shape) -> torch.nn.Module:
    """Llama's module makes the tables of every shape; a partial rotation is a narrower head to it."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=shape.heads * shape.head_dim,
        num_attention_heads=shape.heads,
        head_dim=shape.rotary_dim,
        rope_parameters={"rope_type": "default", "rope_theta": shape.base},
    )
    return LlamaRotaryEmbedding(config)
