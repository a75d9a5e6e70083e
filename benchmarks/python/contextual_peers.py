"""Other implementations of contextual encodings."""

import torch
from torch import Tensor

from attention_peers import Attend, causal_mask


def cope_eager(tokens: int) -> Attend:
    """The listing of CoPE's paper (arXiv 2405.18719, appendix), float32: a function of q, k, v and
    pos_emb (1, D, P)."""
    mask = causal_mask(tokens)

    def attend(q: Tensor, k: Tensor, v: Tensor, pos_emb: Tensor) -> tuple[Tensor]:
        logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
        gates = torch.sigmoid(logits)
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=pos_emb.shape[-1] - 1)
        ceiling, floor = positions.ceil().long(), positions.floor().long()
        entries = q @ pos_emb
        above, below = entries.gather(-1, ceiling), entries.gather(-1, floor)
        share = positions - floor
        logits = logits + above * share + below * (1 - share)
        return (logits.softmax(-1) @ v,)

    return attend


def cope_compiled(tokens: int) -> Attend:
    """torch.compile of the listing."""
    return torch.compile(cope_eager(tokens), dynamic=False)
