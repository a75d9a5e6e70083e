"""The context extensions that a rotary model is evaluated with: one line of `SCALINGS` each."""

from collections.abc import Callable

from posenc.scaling import NTK, DynamicNTK, Linear, Scaling, Yarn

SCALINGS: dict[str, Callable[[int, int], Scaling]] = {
    "none": lambda trained, length: None,
    "linear": lambda trained, length: Linear(length / trained),
    "ntk": lambda trained, length: NTK(length / trained),
    "dynamic-ntk": lambda trained, length: DynamicNTK(2.0, trained),
    "yarn": lambda trained, length: Yarn(length / trained, trained),
}
"""Name -> scaling for a model trained at `trained` bytes and read at `length` bytes.

All but dynamic-ntk are told the length; that one is a single setting which follows the length of each input.
"""
