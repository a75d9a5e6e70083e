"""The positional encodings that the model can be trained with: one entry of `ENCODINGS` each."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc.scaling import Scaling


class PlainAttention(nn.Module):
    """Causal attention without any position: the causal mask alone tells order (NoPE)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends; q, k, v and the result are (B, H, T, D)."""
        return scaled_dot_product_attention(q, k, v, is_causal=True)


class RotaryAttention(nn.Module):
    """Causal attention over queries and keys that `posenc.nn.Rotary` has turned by their positions."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.rescale(None)

    def rescale(self, scaling: Scaling) -> None:
        """Uses another context extension from now on; no weight depends on it."""
        self.rotary = posenc.nn.Rotary(self.head_dim, scaling=scaling)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends; q, k, v and the result are (B, H, T, D)."""
        q, k = self.rotary(q, k)
        return scaled_dot_product_attention(q, k, v, is_causal=True)


@dataclass(frozen=True)
class Encoding:
    """How an encoding enters the model.

    Attributes:
        title: Name in tables and plots.
        attention: Makes the attention of a layer from (head_dim, heads).
        embedding: Makes the module that maps token embeddings (B, T, width) to embeddings with positions, from width.
        rescalable: The attention has `rescale`, so the scalings of `scalings.py` apply.
    """

    title: str
    attention: Callable[[int, int], nn.Module]
    embedding: Callable[[int], nn.Module] = lambda width: nn.Identity()
    rescalable: bool = False


ENCODINGS: dict[str, Encoding] = {
    "rotary": Encoding("RoPE", lambda head_dim, heads: RotaryAttention(head_dim), rescalable=True),
    "nope": Encoding("NoPE", lambda head_dim, heads: PlainAttention()),
}


def rescale(model: nn.Module, scaling: Scaling) -> None:
    """Gives every rotary attention of the model another context extension."""
    for module in model.modules():
        if isinstance(module, RotaryAttention):
            module.rescale(scaling)
