"""The devices that the tables of cases run on: the CPU, and what else torch can compute on here.

A test of `each_device` runs once per device. It names none: tensors that it makes lie on the device under test. Tensors
of a table, which are made before any test runs, are `moved` there. The ids of tests name devices other than the CPU.
"""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PARAMETERS = [pytest.param(name, id=pytest.HIDDEN_PARAM if name == "cpu" else name) for name in DEVICES]
each_device = pytest.mark.usefixtures("device")


def moved(value, device):
    """The value with each tensor in it on this device."""
    return tree_map_only(torch.Tensor, lambda x: x.to(device), value)


def on_cpu(function, *arguments, **named):
    """What the function computes on the CPU, such as a reference, on the device of the arguments."""
    device = next(x.device for x in tree_leaves((arguments, named)) if isinstance(x, torch.Tensor))
    if device.type == "cpu":
        return function(*arguments, **named)
    with torch.device("cpu"):
        result = function(*moved(arguments, "cpu"), **moved(named, "cpu"))
    return moved(result, device)
