"""Plain float64 references of DecomposedRelative and GridRelativeBias, written from the papers, a pair of tokens at a
time."""

import math

import torch

import attention_op_reference


def places(window):
    """(2, h w): rows and columns of the tokens of a window."""
    height, width = window
    return torch.tensor([[y for y in range(height) for _ in range(width)], list(range(width)) * height])


def _rows(positions, b):
    """The (y, x) of each token of a batch row."""
    return (positions if positions.dim() == 2 else positions[:, b % positions.shape[1]]).t().tolist()


def _clip(distance, length):
    return max(-(length - 1), min(length - 1, distance))


def attend(q, k, v, added, window, *, q_positions=None, k_positions=None, class_token=False, **rules):
    """Attention with added(b, h, i, dy, dx, kind) on the score of query i: (dy, dx) is query less key, clipped to the
    window; kind is None, or the number of the class token's entry."""
    k_places = places(window) if k_positions is None else k_positions
    q_places = k_places[..., k_places.shape[-1] - q.shape[2] + class_token :] if q_positions is None else q_positions
    bias = []
    for b in range(q.shape[0]):
        keys, queries = _rows(k_places, b), _rows(q_places, b)
        if class_token:
            keys, queries = [None, *keys], [None, *queries]
        for h in range(q.shape[1]):
            for i, mine in enumerate(queries):
                for theirs in keys:
                    kind = {(True, False): 0, (False, True): 1, (True, True): 2}.get((mine is None, theirs is None))
                    steps = (0, 0) if kind is not None else (a - c for a, c in zip(mine, theirs, strict=True))
                    dy, dx = (_clip(d, length) for d, length in zip(steps, window, strict=True))
                    bias.append(added(b, h, i, dy, dx, kind))
    full = torch.stack(bias).reshape(*q.shape[:3], k.shape[2])
    out, _ = attention_op_reference.attention(q, k, v, bias=full, **rules)
    return out


def grid_bias(q, k, v, parameters, window, **call):
    """Swin, arXiv 2103.14030, eq. 4; BEiT's class token; Swin v2, arXiv 2111.09883, eq. 3 and 4."""
    height, width = window
    inner = (2 * height - 1) * (2 * width - 1)

    def of_mlp(dy, dx):
        x = torch.tensor(
            [
                math.copysign(math.log2(1 + 8 * abs(d) / max(length - 1, 1)) / 3, d) if d else 0.0
                for d, length in ((dy, height), (dx, width))
            ],
            dtype=q.dtype,
        )
        hidden = torch.relu(parameters["mlp.0.weight"] @ x + parameters["mlp.0.bias"])
        return 16 * torch.sigmoid(parameters["mlp.2.weight"] @ hidden)

    def added(b, h, i, dy, dx, kind):
        if "table" not in parameters:
            return of_mlp(dy, dx)[h]
        row = (dy + height - 1) * (2 * width - 1) + dx + width - 1 if kind is None else inner + kind
        return parameters["table"][row, h]

    return attend(q, k, v, added, window, **call)


def decomposed(q, k, v, rel_y, rel_x, **call):
    """SAM, arXiv 2304.02643: the query is not scaled."""
    window = ((len(rel_y) + 1) // 2, (len(rel_x) + 1) // 2)

    def added(b, h, i, dy, dx, kind):
        return q[b, h, i] @ (rel_y[dy + window[0] - 1] + rel_x[dx + window[1] - 1])

    return attend(q, k, v, added, window, **call)
