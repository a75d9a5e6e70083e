"""The frequencies of every scaling in plain Python floats, one loop each, written from the formulas.

Nothing here imports posenc. Each function returns theta_k for k = 0..dim/2-1.
"""

import math

Thetas = list[float]


def plain(dim: int, base: float) -> Thetas:
    return [base ** (-2 * k / dim) for k in range(dim // 2)]


def linear(dim, base, factor) -> Thetas:
    return [theta / factor for theta in plain(dim, base)]


def ntk(dim, base, factor) -> Thetas:
    return plain(dim, base * factor ** (dim / (dim - 2)))


def dynamic_ntk(dim, base, factor, original_max_positions, seq_len=None) -> Thetas:
    length = max(seq_len or 0, original_max_positions)
    return ntk(dim, base, factor * length / original_max_positions - (factor - 1))


def ntk_by_parts(dim, base, factor, original_max_positions, beta_fast=32, beta_slow=1) -> Thetas:
    """YaRN (arXiv 2309.00071), eq. 17 to 19."""
    result = []
    for theta in plain(dim, base):
        turns = original_max_positions * theta / (2 * math.pi)
        if beta_fast == beta_slow:
            kept = 1.0 if turns >= beta_fast else 0.0
        else:
            kept = min(max((turns - beta_slow) / (beta_fast - beta_slow), 0.0), 1.0)
        result.append((1 - kept) * theta / factor + kept * theta)
    return result


def yarn(
    dim, base, factor, original_max_positions, beta_fast=32, beta_slow=1, truncate=True, ramp="dims", **magnitude
) -> Thetas:
    """The authors' code: the ramp is linear in k."""
    if ramp == "turns":
        return ntk_by_parts(dim, base, factor, original_max_positions, beta_fast, beta_slow)

    def pair_that_makes(turns: float) -> float:
        return dim * math.log(original_max_positions / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = pair_that_makes(beta_fast), pair_that_makes(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    result = []
    for k, theta in enumerate(plain(dim, base)):
        slowed = min(max((k - low) / (high - low), 0.0), 1.0)
        result.append(slowed * theta / factor + (1 - slowed) * theta)
    return result


def long_rope(
    dim, base, short_factor, long_factor, original_max_positions, factor=None, attention_factor=None, seq_len=None
) -> Thetas:
    divisors = long_factor if (seq_len or 0) > original_max_positions else short_factor
    return [theta / divisor for theta, divisor in zip(plain(dim, base), divisors, strict=True)]


def llama3(dim, base, factor, original_max_positions, low_freq_factor=1, high_freq_factor=4) -> Thetas:
    result = []
    for theta in plain(dim, base):
        wavelength = 2 * math.pi / theta
        if wavelength < original_max_positions / high_freq_factor:
            result.append(theta)
        elif wavelength > original_max_positions / low_freq_factor:
            result.append(theta / factor)
        else:
            t = 0.0
            if high_freq_factor != low_freq_factor:
                t = (original_max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
            result.append((1 - t) * theta / factor + t * theta)
    return result


def proportional(dim, base, fraction, factor=1) -> Thetas:
    live = math.floor(fraction * dim / 2)
    return [theta / factor if k < live else 0.0 for k, theta in enumerate(plain(dim, base))]


def p_rope(dim, base, fraction) -> Thetas:
    return proportional(dim, base, fraction)


def truncated_basis(dim, base, length) -> Thetas:
    cutoff = 2 * math.pi / length
    result = []
    for theta in plain(dim, base):
        if theta >= cutoff:
            result.append(theta)
        elif theta >= cutoff / 8:
            result.append(cutoff / 16)
        else:
            result.append(0.0)
    return result


def power_basis(dim, base, power) -> Thetas:
    return [theta * (1 - 2 * k / dim) ** power for k, theta in enumerate(plain(dim, base))]


def yarn_g(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
