"""How far a result may lie from its float64 reference: one table, by dtype.

16-bit results are one rounding of a float32 result, so one unit in the last place bounds them.
"""

import torch

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

TOLERANCES = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-6, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2.0**-8, "atol": 2e-6},
    torch.float16: {"rtol": 2.0**-10, "atol": 2e-6},
}


def assert_near(actual: torch.Tensor, reference: torch.Tensor, *, scale: float = 1.0) -> None:
    """Compares with a float64 reference, at the tolerance of actual's dtype times `scale` (for sums of many terms)."""
    tolerance = {name: value * scale for name, value in TOLERANCES[actual.dtype].items()}
    torch.testing.assert_close(actual.double(), reference.double().expand(actual.shape), **tolerance)


def assert_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtype, shape and bits (NaN equals NaN)."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)
