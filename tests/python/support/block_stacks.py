"""Lists of encodings that tests put into Attention, at least one for each encoding of posenc.nn."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import posenc

EMBED_DIM, HEADS, KV_HEADS, HEAD_DIM = 32, 4, 2, 8


@dataclass(frozen=True)
class Stack:
    """A list of encodings.

    Attributes:
        name: Test id.
        encodings: posenc.nn or posenc.nn.cpp -> the modules.
        axes: Axes of positions, where there are several.
        reads_positions: Given positions are read, so that they break a graph and have to be there.
        takes_positions: False where an encoding that counts by index and one of distances stand together.
    """

    name: str
    encodings: Callable[..., list]
    axes: int | None = None
    reads_positions: bool = False
    takes_positions: bool = True

    def block(self, namespace=posenc.nn, **options):
        """An Attention whose parameters are all away from zero, equal in both languages."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            options = {"num_kv_heads": KV_HEADS, "bias": True, "encodings": self.encodings(namespace), **options}
            block = namespace.Attention(EMBED_DIM, HEADS, **options)
            parameters = dict(block.named_parameters())
            with torch.no_grad():
                for name in sorted(parameters):
                    parameters[name].add_(0.5 * torch.rand_like(parameters[name]))
        block.eval()  # CAPE moves positions in training
        return block

    def positions(self, places: torch.Tensor) -> torch.Tensor | None:
        """What the block takes to say that tokens are at `places` (B, T)."""
        if not self.takes_positions:
            return None
        if self.axes is None:
            return places
        return torch.stack([places // (axis + 1) for axis in range(self.axes)])

    def __str__(self) -> str:
        return self.name


def _rotary(**options):
    return lambda nn: [nn.Rotary(HEAD_DIM, **options)]


STACKS = [
    Stack("nope", lambda nn: []),
    Stack("rotary", _rotary()),
    Stack("rotary_partial_learnable", _rotary(rotary_dim=4, interleaved=True, learnable=True)),
    Stack("rotary_yarn", _rotary(scaling=posenc.scaling.Yarn(4.0, 4))),
    Stack("rotary_dynamic_ntk", _rotary(scaling=posenc.scaling.DynamicNTK(2.0, 4), seq_len=32)),
    Stack("xpos", lambda nn: [nn.XPos(HEAD_DIM, scale_base=8.0)]),
    Stack("axial", lambda nn: [nn.AxialRotary(HEAD_DIM)], axes=2),
    Stack("multimodal", lambda nn: [nn.MultimodalRotary(HEAD_DIM, (1, 1, 2))], axes=3),
    Stack("sinusoidal", lambda nn: [nn.Sinusoidal(EMBED_DIM)]),
    Stack("sinusoidal_axes", lambda nn: [nn.Sinusoidal(EMBED_DIM, num_axes=2)], axes=2),
    Stack("learned_absolute", lambda nn: [nn.LearnedAbsolute(40, EMBED_DIM)]),
    Stack("cape", lambda nn: [nn.CAPE(EMBED_DIM)]),
    Stack("alibi", lambda nn: [nn.ALiBi(HEADS, learnable=True)]),
    Stack("t5", lambda nn: [nn.T5RelativeBias(HEADS, num_buckets=8, max_distance=16)]),
    Stack("kerple_log", lambda nn: [nn.Kerple(HEADS)], reads_positions=True),
    Stack("kerple_power", lambda nn: [nn.Kerple(HEADS, kind="power")], reads_positions=True),
    Stack("sandwich", lambda nn: [nn.Sandwich(HEADS, dim=16)], reads_positions=True),
    Stack("fire", lambda nn: [nn.FIRE(HEADS, hidden_dim=4, threshold=4.0)]),
    Stack("shaw", lambda nn: [nn.ShawRelative(HEAD_DIM, 3)]),
    Stack("shaw_keys_per_head", lambda nn: [nn.ShawRelative(HEAD_DIM, 3, num_heads=HEADS, values=False)]),
    Stack("deberta", lambda nn: [nn.DisentangledRelative(HEAD_DIM, HEADS, 6, buckets=4)]),
    Stack("transformer_xl", lambda nn: [nn.TransformerXL(HEAD_DIM, HEADS)], reads_positions=True),
    Stack(
        "transformer_xl_interleaved",
        lambda nn: [nn.TransformerXL(HEAD_DIM, HEADS, pos_dim=6, layout="interleaved")],
        reads_positions=True,
    ),
    Stack("rerope", lambda nn: [nn.ReRoPE(HEAD_DIM, 3)]),
    Stack("rerope_leaky", lambda nn: [nn.ReRoPE(HEAD_DIM, 3, leak=2.0)]),
    Stack("self_extend", lambda nn: [nn.SelfExtend(HEAD_DIM, group=2, window=4)]),
    Stack("cope", lambda nn: [nn.CoPE(HEAD_DIM, 5)]),
    Stack("cope_keys", lambda nn: [nn.CoPE(HEAD_DIM, 5, num_heads=HEADS, gate="key", gate_bias=0.1)]),
    Stack("cope_values", lambda nn: [nn.CoPE(HEAD_DIM, 5, gate="value", scale_position_logits=True)]),
    Stack("fox", lambda nn: [nn.ForgettingBias(EMBED_DIM, HEADS)]),
    Stack("rotary_cable", lambda nn: [nn.Rotary(HEAD_DIM), nn.ForgettingBias(EMBED_DIM, HEADS, kind="cable")]),
    Stack("rotary_cope", lambda nn: [nn.Rotary(HEAD_DIM), nn.CoPE(HEAD_DIM, 5)]),
    Stack("xpos_cope_keys", lambda nn: [nn.XPos(HEAD_DIM), nn.CoPE(HEAD_DIM, 5, gate="key")]),
    Stack("cope_shaw", lambda nn: [nn.CoPE(HEAD_DIM, 5), nn.ShawRelative(HEAD_DIM, 3)], takes_positions=False),
    Stack(
        "rotary_fox_cope_keys_alibi",
        lambda nn: [
            nn.Rotary(HEAD_DIM),
            nn.ForgettingBias(EMBED_DIM, HEADS),
            nn.CoPE(HEAD_DIM, 5, gate="key"),
            nn.ALiBi(HEADS),
        ],
        takes_positions=False,
    ),
    Stack(
        "t5_fire_deberta",
        lambda nn: [
            nn.T5RelativeBias(HEADS, num_buckets=8, max_distance=16, scale=None),
            nn.FIRE(HEADS, hidden_dim=4, threshold=4.0),
            nn.DisentangledRelative(HEAD_DIM, HEADS, 6, buckets=4),
        ],
    ),
    Stack("rerope_alibi", lambda nn: [nn.ReRoPE(HEAD_DIM, 3), nn.ALiBi(HEADS)]),
    Stack("sinusoidal_rotary_alibi", lambda nn: [nn.Sinusoidal(EMBED_DIM), nn.Rotary(HEAD_DIM), nn.ALiBi(HEADS)]),
]
POSITIONED = [stack for stack in STACKS if stack.takes_positions]
BY_NAME = {stack.name: stack for stack in STACKS}
