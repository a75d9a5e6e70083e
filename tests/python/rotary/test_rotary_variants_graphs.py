"""XPos, AxialRotary and MultimodalRotary under autograd, in compiled and exported graphs,
and with their C++ twins."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck

import posenc
from tolerances import assert_bits, assert_near

XPos, AxialRotary, MultimodalRotary = posenc.nn.XPos, posenc.nn.AxialRotary, posenc.nn.MultimodalRotary
scaling = posenc.scaling

GRID = torch.tensor([[0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 1, 2, 3]])
SPANS = torch.tensor([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]])


def queries_and_keys(width=8, key_heads=2):
    return torch.randn(2, 4, 7, width), torch.randn(2, key_heads, 7, width)


def turning(name):
    """(module, positions) whose gradients are checked numerically."""
    return {
        "xpos": lambda: (XPos(8, scale_base=4.0, centre=2.0), GRID[1, :3]),
        "axial": lambda: (AxialRotary(8), GRID[:, 2:5]),
        "axial_learnable": lambda: (AxialRotary(8, learnable=True), GRID[:, 2:5]),
        "axial_learnable_heads": lambda: (AxialRotary(8, learnable=True, num_heads=2), GRID[:, 2:5] / 3.0),
        "multimodal": lambda: (MultimodalRotary(8, (1, 1, 2), scaling=scaling.Yarn(4.0, 64)), SPANS[:, 2:5]),
        "multimodal_partial": lambda: (MultimodalRotary(9, (1, 2), rotary_dim=6, interleaved=True), SPANS[1:, 2:5]),
    }[name]()


TURNING = ["xpos", "axial", "axial_learnable", "axial_learnable_heads", "multimodal", "multimodal_partial"]


@pytest.mark.parametrize("name", TURNING)
def test_first_and_second_derivatives(name):
    module, positions = turning(name)
    module = module.double()
    q, k = (torch.randn(1, 2, 3, module.head_dim, dtype=torch.float64, requires_grad=True) for _ in range(2))
    names = [name for name, _ in module.named_parameters()]

    def run(q, k, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (q, k, positions))

    inputs = (q, k, *(p.detach().clone().requires_grad_() for p in module.parameters()))
    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)


@pytest.mark.parametrize("name", TURNING)
def test_gradients_of_floating_positions(name):
    module, positions = turning(name)
    module = module.double()
    positions = positions.double().requires_grad_()
    q = torch.randn(1, 2, 3, module.head_dim, dtype=torch.float64)
    assert gradcheck(lambda p: module(q, positions=p), (positions,))


@pytest.mark.parametrize("name", TURNING)
def test_compiled_for_every_length_with_positions_as_an_argument(name, fresh_compiler):
    module, example = turning(name)
    axes = example.shape[:-1]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    compilations = []
    for length in (5, 9, 17):
        q, k = torch.randn(2, 2, length, module.head_dim), torch.randn(2, 2, length, module.head_dim)
        positions = torch.randint(0, 40, (*axes, length))
        for y, e in zip(compiled(q, k, positions), module(q, k, positions), strict=True):
            assert_near(y.detach(), e.detach().double())
        compilations.append(counter.frame_count)
    assert compilations[0] == compilations[-1] > 0, "one graph serves all lengths"


@pytest.mark.parametrize("name", TURNING)
def test_exported_for_every_length(name):
    module, positions = turning(name)
    length = torch.export.Dim("length", min=2, max=4096)
    last = positions.dim() - 1

    def inputs(tokens):
        q = torch.randn(2, 2, tokens, module.head_dim)
        return q, torch.randn(2, 2, tokens, module.head_dim), torch.randint(0, 40, (*positions.shape[:-1], tokens))

    shapes = ({2: length}, {2: length}, {last: length})
    program = torch.export.export(module, inputs(7), dynamic_shapes=shapes).module()
    for tokens in (7, 23):
        arguments = inputs(tokens)
        for y, e in zip(program(*arguments), module(*arguments), strict=True):
            assert_bits(y.detach(), e.detach())


def test_compiled_with_a_length_dependent_scaling_when_the_length_is_given(fresh_compiler):
    module = MultimodalRotary(8, (1, 1, 2), scaling=scaling.DynamicNTK(2.0, 4))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    q, k = queries_and_keys()
    for length in (5, 64):
        for y, e in zip(compiled(q, k, SPANS, seq_len=length), module(q, k, SPANS, seq_len=length), strict=True):
            assert_near(y, e.double())


LEARNABLE = {
    "axial": {},
    "axial_3_axes": {"num_axes": 3, "base": 10.0},
    "axial_heads": {"num_heads": 4, "interleaved": False},
}


@pytest.mark.parametrize("options", LEARNABLE.values(), ids=LEARNABLE)
def test_weights_pass_between_the_languages(options):
    module = AxialRotary(12, learnable=True, **options)
    twin = posenc.nn.cpp.AxialRotary(12, learnable=True, **options)
    assert [name for name, _ in twin.named_parameters()] == list(module.state_dict()) == ["inv_freq"]
    with torch.no_grad():
        module.inv_freq.add_(torch.rand_like(module.inv_freq))
        twin.inv_freq.copy_(module.state_dict()["inv_freq"])
    (q, k), positions = queries_and_keys(12, key_heads=4), SPANS[: options.get("num_axes", 2)]
    for y, e in zip(twin(q, k, positions), module(q, k, positions), strict=True):
        assert_bits(y, e)
    fresh = AxialRotary(12, learnable=True, **options)
    fresh.load_state_dict(dict(twin.named_parameters()))
    assert_bits(fresh.inv_freq.detach(), module.inv_freq.detach())


TWINS = {
    "xpos": ("XPos", (8,), {"centre": 3.0}, [{}, {"offset": 4}, {"offset": torch.tensor([1, 7])}]),
    "axial": ("AxialRotary", (8,), {}, [{"positions": GRID}, {"positions": GRID[:, None] / 4}]),
    "axial_heads": ("AxialRotary", (8,), {"learnable": True, "num_heads": 4}, [{"positions": GRID}]),
    "multimodal": (
        "MultimodalRotary",
        (8, (1, 1, 2)),
        {"scaling": scaling.DynamicNTK(2.0, 4)},
        [{}, {"offset": 4}, {"offset": torch.tensor([1, 7])}, {"positions": SPANS}, {"seq_len": 64}],
    ),
}


@pytest.mark.parametrize(("name", "arguments", "options", "calls"), TWINS.values(), ids=TWINS)
def test_twin_takes_the_same_calls(name, arguments, options, calls):
    module = getattr(posenc.nn, name)(*arguments, **options)
    twin = getattr(posenc.nn.cpp, name)(*arguments, **options)
    q, k = queries_and_keys(key_heads=4)
    for call in calls:
        for y, e in zip(twin(q, k, **call), module(q, k, **call), strict=True):
            assert_bits(y, e)
        assert_bits(twin(q, **call), module(q, **call))
