"""The context extensions that a rotary model is evaluated with: one line of `SCALINGS` each."""

from collections.abc import Callable

from posenc.scaling import NTK, DynamicNTK, Linear, Llama3, NTKByParts, Scaling, Yarn

SCALINGS: dict[str, Callable[[int, int], Scaling]] = {
    "none": lambda trained, length: None,
    "linear": lambda trained, length: Linear(length / trained),
    "ntk": lambda trained, length: NTK(length / trained),
    "dynamic-ntk": lambda trained, length: DynamicNTK(2.0, trained),
    "ntk-by-parts": lambda trained, length: NTKByParts(length / trained, trained),
    "yarn": lambda trained, length: Yarn(length / trained, trained),
    "llama3": lambda trained, length: Llama3(length / trained, trained),
}
"""Name -> scaling for a model trained at `trained` bytes and read at `length` bytes.

These apply to trained weights as they are; LongRoPE needs factors that were searched for, Giraffe's bases, p-RoPE and
the proportional form a model trained with them. All but dynamic-ntk are told the length; that one is a single setting
which follows the length of each input.
"""
