"""Where posenc's attention has kernels."""

import torch

__all__ = ["has_kernels"]


def has_kernels(device: torch.device) -> bool:
    """Whether attention there runs in a kernel (or, on meta, computes shapes) instead of the plain form."""
    return device.type in ("cpu", "meta")
