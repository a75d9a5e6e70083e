"""Plain float64 references for every encoding, written from the papers and kept slow and obvious.

Nothing here imports posenc: these functions are what posenc is judged by. Rotations are torch float64, so that autograd
gives reference gradients too; tables for the precision tests are numpy long double (64 bits of mantissa on x86).
"""

import math

import numpy as np
import torch


def inverse_frequencies(dim: int, base: float = 10000.0) -> torch.Tensor:
    """theta_k = base^(-2k/dim), k = 0..dim/2-1 (RoFormer, arXiv 2104.09864, below eq. 15)."""
    return torch.tensor([base ** (-2.0 * k / dim) for k in range(dim // 2)], dtype=torch.float64)


def float32_frequencies(dim: int, base: float = 10000.0) -> torch.Tensor:
    """The same in float32, in the order of operations of transformers."""
    return 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))


def linear_frequencies(dim: int, base: float, factor: float) -> torch.Tensor:
    """Position interpolation: p / s for every pair (arXiv 2306.15595, eq. 4)."""
    return inverse_frequencies(dim, base) / factor


def ntk_frequencies(dim: int, base: float, factor: float) -> torch.Tensor:
    """NTK-aware: base' = base s^(d/(d-2)) (YaRN, arXiv 2309.00071, eq. 16)."""
    return inverse_frequencies(dim, base * factor ** (dim / (dim - 2)))


def dynamic_ntk_frequencies(dim: int, base: float, factor: float, original: int, length: int) -> torch.Tensor:
    """Dynamic NTK as transformers defines it: base' = base (s n / M - (s - 1))^(d/(d-2)), n = max(length, M)."""
    n = max(length, original)
    return inverse_frequencies(dim, base * (factor * n / original - (factor - 1)) ** (dim / (dim - 2)))


def yarn_frequencies(dim: int, base: float, factor: float, original: int, fast=32.0, slow=1.0) -> torch.Tensor:
    """YaRN's NTK-by-parts (arXiv 2309.00071, eq. 17-23), with the authors' ramp: linear in the pair index."""

    def pair_that_turns(rotations: float) -> float:
        return dim * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(fast)), 0)
    high = min(math.ceil(pair_that_turns(slow)), dim - 1)
    if low == high:
        high += 0.001
    frequencies = inverse_frequencies(dim, base)
    for k in range(dim // 2):
        ramp = min(max((k - low) / (high - low), 0.0), 1.0)
        frequencies[k] *= ramp / factor + (1 - ramp)
    return frequencies


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 m ln s + 1 (arXiv 2309.00071, eq. 22; 1 for s <= 1)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def angles(positions: torch.Tensor, inv_freq: torch.Tensor, axes=None) -> torch.Tensor:
    """The angle of every pair: (T, R/2), (B, T, R/2), or (H, T, R/2) / (B, H, T, R/2) with frequencies per head.

    positions (T) or (B, T) with inv_freq (R/2); with `axes`, or with inv_freq (A, R/2) or (A, H, R/2), positions are
    (A, T) or (A, B, T): pair k turns by positions[axes[k]], or by the sum over axes of position times frequency.
    """
    positions, inv_freq = positions.double(), inv_freq.double()
    if axes is not None:
        if len(axes) == 0:
            return positions[0].unsqueeze(-1) * inv_freq
        return torch.stack([positions[axis] * inv_freq[k] for k, axis in enumerate(axes)], dim=-1)
    if inv_freq.ndim == 1:
        return positions.unsqueeze(-1) * inv_freq
    if inv_freq.ndim == 2:
        return sum(positions[a].unsqueeze(-1) * inv_freq[a] for a in range(len(inv_freq)))
    return sum(positions[a][..., None, :, None] * inv_freq[a][:, None, :] for a in range(len(inv_freq)))


def float32_angles(positions: torch.Tensor, inv_freq: torch.Tensor, axes=None) -> torch.Tensor:
    """Angles as other libraries form them: position and frequency in float32, their product rounded to float32."""
    positions, inv_freq = positions.float(), inv_freq.float()
    if axes is not None:
        return torch.stack([positions[axis] * inv_freq[k] for k, axis in enumerate(axes)], dim=-1)
    return positions.unsqueeze(-1) * inv_freq


def pair_columns(k: int, pairs: int, interleaved: bool) -> tuple[int, int]:
    """The two columns of pair k: (2k, 2k+1) in RoFormer eq. 34, (k, k + R/2) in the half layout."""
    return (2 * k, 2 * k + 1) if interleaved else (k, k + pairs)


def rotate(x, cos, sin, *, interleaved=False, inverse=False) -> torch.Tensor:
    """RoFormer eq. 34 in float64, pair by pair: (a, b) -> (a cos - b sin, b cos + a sin); the tail passes through.

    x (B, H, T, D); cos and sin (T, R/2), (B, T, R/2) or (B, H, T, R/2).
    """
    cos, sin = cos.double(), sin.double()
    if cos.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    columns = list(x.double().unbind(-1))
    if not columns:
        return x.double()
    rotated, pairs = list(columns), cos.shape[-1]
    for k in range(pairs):
        i, j = pair_columns(k, pairs, interleaved)
        c, s = cos[..., k], -sin[..., k] if inverse else sin[..., k]
        rotated[i] = columns[i] * c - columns[j] * s
        rotated[j] = columns[j] * c + columns[i] * s
    return torch.stack(torch.broadcast_tensors(*rotated), dim=-1)


def rotary(
    x,
    positions,
    inv_freq,
    *,
    attention_scaling=1.0,
    interleaved=False,
    inverse=False,
    axes=None,
    offset=0,
    exact=True,
):
    """rotate() by position * inv_freq; positions None: offset + 0..T-1 on every axis, offset an int or a tensor (B)."""
    if positions is None:
        counted = torch.arange(x.shape[2], dtype=torch.float64)
        positions = counted + (offset.double()[:, None] if isinstance(offset, torch.Tensor) else offset)
        axis_count = max(axes, default=0) + 1 if axes is not None else len(inv_freq)
        if axes is not None or inv_freq.ndim > 1:
            positions = torch.stack([positions] * axis_count)
    angle = angles(positions, inv_freq, axes) if exact else float32_angles(positions, inv_freq, axes)
    if inv_freq.ndim == 3 and angle.ndim == 3:
        angle = angle.unsqueeze(0)
    cos, sin = angle.cos() * attention_scaling, angle.sin() * attention_scaling
    return rotate(x, cos, sin, interleaved=interleaved, inverse=inverse)


def xpos(x, positions, *, growth, base=10000.0, scale_base=512.0, centre=0.0, interleaved=True) -> torch.Tensor:
    """xPos (arXiv 2212.10554, algorithm 1): RoPE times zeta^(growth (p - centre) / scale_base), with
    zeta_k = (2k/d + 0.4) / 1.4; growth is 1 for queries and -1 for keys. Positions (T) or (B, T)."""
    dim = x.shape[-1]
    positions = positions.double()
    zeta = torch.tensor([(2.0 * k / dim + 0.4) / 1.4 for k in range(dim // 2)], dtype=torch.float64)
    angle = angles(positions, inverse_frequencies(dim, base))
    magnitude = zeta ** (growth * (positions.unsqueeze(-1) - centre) / scale_base)
    return rotate(x, angle.cos() * magnitude, angle.sin() * magnitude, interleaved=interleaved)


def axial(x, positions, *, base=100.0, interleaved=True) -> torch.Tensor:
    """RoPE-ViT, axial (arXiv 2403.13298, eq. 10-12): a RoPE for each axis on its share of the pairs; positions
    (A, T) or (A, B, T). Interleaved, an axis' pairs are adjacent columns; halves pair columns k and k + D/2."""
    axis_count, dim = len(positions), x.shape[-1]
    pairs = dim // 2
    own = pairs // axis_count
    columns = list(x.double().unbind(-1))
    for axis in range(axis_count):
        places = [pair_columns(k, pairs, interleaved) for k in range(axis * own, (axis + 1) * own)]
        share = torch.stack([columns[c] for place in places for c in place], dim=-1)
        turned = rotary(share, positions[axis], inverse_frequencies(2 * own, base), interleaved=True)
        for index, column in enumerate(c for place in places for c in place):
            columns[column] = turned[..., index]
    return torch.stack(columns, dim=-1)


def axial_mixed_frequencies(dim: int, axis_count: int, base: float) -> torch.Tensor:
    """Frequencies (A, D/2) with which the mixed form (arXiv 2403.13298, eq. 14) equals the axial one."""
    own = dim // 2 // axis_count
    mixed = torch.zeros(axis_count, dim // 2, dtype=torch.float64)
    for axis in range(axis_count):
        mixed[axis, axis * own : (axis + 1) * own] = inverse_frequencies(2 * own, base)
    return mixed


def multimodal_axes(sections, interleaved_sections: bool) -> list[int]:
    """The axis of each pair: section by section (Qwen2-VL, arXiv 2409.12191), or in turns as in Qwen3-VL, where pair c
    takes height if c % 3 == 1 and c < 3 sections[1], width if c % 3 == 2 and c < 3 sections[2], else time."""
    if not interleaved_sections:
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    axes = []
    for c in range(sum(sections)):
        if c % 3 == 1 and c < 3 * sections[1]:
            axes.append(1)
        elif c % 3 == 2 and c < 3 * sections[2]:
            axes.append(2)
        else:
            axes.append(0)
    return axes


def sinusoidal(positions, dim: int, *, base=10000.0, layout="interleaved", num_axes=1) -> torch.Tensor:
    """PE[p, 2k] = sin(p / base^(2k/d)), PE[p, 2k+1] = cos(the same) (arXiv 1706.03762, section 3.5), column by column;
    positions (..) -> (.., d). "concatenated" sorts sines before cosines. "tensor2tensor" is timing_signal_1d of that
    library: floor(d/2) of each, exponents k / (floor(d/2) - 1), and zeros in the last column of an odd d.
    "cosines_first" is timestep_embedding of GLIDE: the same with exponents k / floor(d/2), cosines before sines.
    Several axes of positions (A, ..) have d/A columns each, one axis after the other."""
    p = positions.double()
    if num_axes > 1:
        return torch.cat([sinusoidal(axis, dim // num_axes, base=base, layout=layout) for axis in p], -1)
    if layout == "cosines_first":
        angles = [p * base ** (-k / (dim // 2)) for k in range(dim // 2)]
        padding = [torch.zeros_like(p)] * (dim % 2)
        return torch.stack([a.cos() for a in angles] + [a.sin() for a in angles] + padding, -1)
    if layout == "tensor2tensor":
        count, last = dim // 2, max(dim // 2 - 1, 1)
        frequencies = [base ** (-k / last) for k in range(count)]
        padding = [torch.zeros_like(p)] * (dim - 2 * count)
        return torch.stack([(p * f).sin() for f in frequencies] + [(p * f).cos() for f in frequencies] + padding, -1)
    sines = {2 * k: (p * base ** (-2.0 * k / dim)).sin() for k in range((dim + 1) // 2)}
    cosines = {2 * k + 1: (p * base ** (-2.0 * k / dim)).cos() for k in range(dim // 2)}
    both = sines | cosines
    return torch.stack(list(both.values()) if layout == "concatenated" else [both[c] for c in range(dim)], -1)


def long_double_tables(positions, inv_freq) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin (T, R/2) of position times frequency in long double; positions are Python ints or floats."""
    position = np.array([np.longdouble(p) for p in positions])
    angle = position[:, None] * np.asarray(inv_freq, dtype=np.longdouble)[None, :]
    return np.cos(angle), np.sin(angle)


def long_double_rotate(x, cos, sin, *, interleaved=False) -> np.ndarray:
    """rotate() in long double for x (T, D)."""
    x = np.asarray(x, dtype=np.longdouble)
    out, pairs = x.copy(), cos.shape[-1]
    for k in range(pairs):
        i, j = pair_columns(k, pairs, interleaved)
        out[:, i] = x[:, i] * cos[:, k] - x[:, j] * sin[:, k]
        out[:, j] = x[:, j] * cos[:, k] + x[:, i] * sin[:, k]
    return out
