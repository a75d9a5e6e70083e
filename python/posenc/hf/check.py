"""A model with posenc against the same model with transformers' eager attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Comparison", "check"]


@dataclass(frozen=True)
class Comparison:
    """How far a model with posenc lies from eager attention.

    Attributes:
        output: Largest difference of logits (or of the last hidden states), relative to the largest of eager's.
        gradients: Largest difference of a parameter's gradient, relative to the largest of eager's gradient of it.
        parameter: The parameter where that is; "" without gradients.
    """

    output: float
    gradients: float
    parameter: str

    def __str__(self) -> str:
        where = f" ({self.parameter})" if self.parameter else ""
        return f"output {self.output:.1e}, gradients {self.gradients:.1e}{where}, relative to eager attention"


def check(model: nn.Module, inputs: Mapping[str, Any], *, gradients: bool = True) -> Comparison:
    """Runs ``model`` with posenc and with eager attention, and compares logits and gradients of all parameters.

    The model is in evaluation mode meanwhile; afterwards its mode, attention and gradients are what they were. Rows of
    tokens that ``attention_mask`` (or ``decoder_attention_mask``) hides are left out: eager attention gives them the
    mean of all values, posenc zeros.

    Args:
        model: A model of transformers.
        inputs: The arguments of its forward.
        gradients: Compare gradients too, those of a random sum of the outputs.

    Raises:
        ValueError: The model's class does not let its attention be set, or its output has no floating tensor.

    Example:
        >>> posenc.hf.check(model, {"input_ids": torch.arange(20)[None]})
        output 1.2e-06, gradients 2.8e-06 (model.layers.0.self_attn.k_proj.weight), relative to eager attention
    """
    from posenc.hf.registration import register

    register()
    before = {name: x._attn_implementation for name, x in _configs(model)}
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        runs = []
        for implementation in ("eager", "posenc"):
            model.set_attn_implementation(implementation)  # type: ignore[operator]
            if model.config._attn_implementation != implementation:  # type: ignore[union-attr]
                raise ValueError(
                    f"check: {type(model).__name__} does not let its attention be set: transformers says that it does "
                    "not use the attention interface"
                )
            runs.append(_run(model, inputs, gradients))
    finally:
        for name, config in _configs(model):
            config._attn_implementation_internal = before[name]
        for module, mode in training.items():
            module.training = mode
    (expected, expected_grads), (output, grads) = runs
    worst, where = 0.0, ""
    # Gradients that are zero but for rounding (biases of keys) are compared with the largest of all.
    floor = 1e-2 * max((float(grad.abs().max()) for grad in expected_grads.values() if grad.numel()), default=0.0)
    for name, grad in expected_grads.items():
        difference = _relative(grads[name], grad, floor)
        if not difference <= worst:
            worst, where = difference, name
    return Comparison(_relative(output, expected, 0.0), worst, where)


def _configs(model: nn.Module) -> list[tuple[str, Any]]:
    """The configurations of a model and its parts, each with a name; no two are one object."""
    found: dict[int, tuple[str, Any]] = {}
    waiting = [("", model.config)]
    while waiting:
        name, config = waiting.pop()
        if id(config) in found:
            continue
        found[id(config)] = (name, config)
        for key in getattr(config, "sub_configs", {}):
            if getattr(config, key, None) is not None:
                waiting.append((f"{name}.{key}", getattr(config, key)))
    return list(found.values())


def _run(model: nn.Module, inputs: Mapping[str, Any], gradients: bool) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
        torch.manual_seed(0)
        output = _seen(_floating(model(**inputs)), inputs)
        if not gradients:
            return output, {}
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(output.shape, generator=generator).to(output)
        leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad((output * weights).sum(), list(leaves.values()), allow_unused=True)
    zeros = (torch.zeros_like(p) if grad is None else grad for p, grad in zip(leaves.values(), grads, strict=True))
    return output.detach(), dict(zip(leaves, zeros, strict=True))


def _floating(outputs: Any) -> Tensor:
    """Logits, last hidden states, or else the first floating tensor."""
    for name in ("logits", "last_hidden_state"):
        found = getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    for part in [parts] if isinstance(parts, Tensor) else parts:
        if isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 0:
            return part
    raise ValueError("check: the model's output has no floating tensor to compare")


def _seen(output: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = inputs.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and output.dim() > 2 and mask.shape == output.shape[:2]:
            return output[mask.bool()]
    return output


def _relative(actual: Tensor, expected: Tensor, floor: float) -> float:
    if expected.numel() == 0:
        return 0.0
    largest = max(float(expected.abs().max()), floor)
    difference = float((actual - expected).abs().max())
    return difference if largest == 0.0 else difference / largest
