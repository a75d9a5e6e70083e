"""What every posenc module promises, for every entry of cases.py."""

import copy
import io
import pickle

import pytest
import torch

import posenc
from cases import CASES
from devices import each_device
from encoding_case import with_initial_seed
from layouts import with_strides_of
from tolerances import DTYPES, assert_bits, assert_near

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def assert_all(check, results, expected):
    for result, e in zip(results, expected, strict=True):
        check(result, e)


def parameters_of(module):
    return {name: p.detach().double() for name, p in module.named_parameters()}


def perturbed(module):
    """Parameters away from their initial values, zeros too, so that losing them is noticed."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.where(parameter == 0, 0.5 * torch.randn_like(parameter), 1.25 * parameter))
    return module


@each_device
@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(case, dtype):
    module, inputs = perturbed(case.build()), case.inputs(dtype)
    results = case.run(module, *inputs)
    expected = case.expected(parameters_of(module), *(x.double() for x in inputs))
    assert all(y.dtype == dtype for y in results)
    for y, e in zip(results, expected, strict=True):
        if case.rounds_within and dtype.itemsize == 2:
            torch.testing.assert_close(y.double(), e, rtol=0, atol=8 * torch.finfo(dtype).eps)
        else:
            assert_near(y, e, scale=2)


@each_device
@every_case
def test_gradients(case):
    module, inputs = perturbed(case.build()), [x.requires_grad_() for x in case.inputs(torch.float32)]
    results = case.run(module, *inputs)
    grads = [torch.randn_like(y) for y in results]
    wanted = [*inputs, *module.parameters()]
    computed = torch.autograd.grad(results, wanted, grads)

    wide = [x.detach().double().requires_grad_() for x in inputs]
    parameters = {name: p.detach().double().requires_grad_() for name, p in module.named_parameters()}
    expected = torch.autograd.grad(
        case.expected(parameters, *wide), [*wide, *parameters.values()], [g.double() for g in grads]
    )
    for w, result, e in zip(wanted, computed, expected, strict=True):
        assert result.dtype == w.dtype
        torch.testing.assert_close(result.double(), e, rtol=1e-5, atol=1e-4)


@each_device
@every_case
def test_strides(case):
    module, inputs = perturbed(case.build()), case.inputs(torch.float32)
    views = [torch.empty_like(x.transpose(1, 2).contiguous()).transpose(1, 2).copy_(x) for x in inputs]
    results = case.run(module, *views)
    assert_all(assert_near if case.is_attend else assert_bits, results, case.run(module, *inputs))
    assert all(y.stride() == x.stride() for y, x in zip(results, views, strict=False))


@each_device
@every_case
def test_state_dict_holds_the_parameters_only(case):
    module = case.build()
    assert tuple(module.state_dict()) == case.parameters
    assert tuple(name for name, _ in module.named_parameters()) == case.parameters
    case.run(module, *case.inputs(torch.float32))
    assert tuple(module.state_dict()) == case.parameters, "a call leaves no state"
    other = case.build()
    other.load_state_dict(perturbed(module).state_dict())
    inputs = case.inputs(torch.float32)
    assert_all(assert_bits, case.run(other, *inputs), case.run(module, *inputs))


def restored_by_pickle(module):
    return pickle.loads(pickle.dumps(module))


def restored_by_save(module):
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


@each_device
@every_case
@pytest.mark.parametrize("duplicate", [copy.deepcopy, restored_by_pickle, restored_by_save])
def test_copies_are_equal_and_independent(case, duplicate):
    module, inputs = perturbed(case.build()), case.inputs(torch.float32)
    expected = case.run(module, *inputs)
    twin = duplicate(module)
    assert_all(assert_bits, case.run(twin, *inputs), expected)
    assert repr(twin) == repr(module)
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert mine.data_ptr() != theirs.data_ptr()
    perturbed(twin)
    assert_all(assert_bits, case.run(module, *inputs), expected)


@each_device
@every_case
def test_copies_after_a_training_step(case):
    module = case.build()
    inputs = [x.requires_grad_() for x in case.inputs(torch.float32)]
    sum(y.square().sum() for y in case.run(module, *inputs)).backward()
    twin = copy.deepcopy(module)
    assert_all(assert_bits, case.run(twin, *inputs), case.run(module, *inputs))


@each_device
@every_case
@pytest.mark.parametrize("cast", [torch.half, torch.bfloat16], ids=str)
def test_casts_round_nothing_that_is_derived(case, cast):
    """`.half().float()` gives the same bits; learnable parameters alone are rounded, as everywhere in torch."""
    module, inputs = perturbed(case.build()), case.inputs(torch.float32)
    expected = case.run(module, *inputs)
    module.to(cast)
    narrow = case.run(module, *(x.to(cast) for x in inputs))
    assert all(y.dtype == cast for y in narrow)
    module.float()
    results = case.run(module, *inputs)
    if case.parameters:
        parameters = parameters_of(module)
        assert_all(assert_near, results, case.expected(parameters, *(x.double() for x in inputs)))
    else:
        assert_all(assert_bits, results, expected)
        assert_all(assert_bits, narrow, case.run(case.build(), *(x.to(cast) for x in inputs)))


@each_device
@every_case
def test_double_module_is_exact(case):
    module, inputs = perturbed(case.build().double()), case.inputs(torch.float64)
    expected = case.expected(parameters_of(module), *inputs)
    assert_all(assert_near, case.run(module, *inputs), expected)
    assert all(p.dtype == torch.float64 for p in module.parameters())


@every_case
def test_meta_construction(case):
    """Built on meta, materialised over dirty memory, filled from a checkpoint: no value is left to chance."""
    source, inputs = perturbed(case.build()), case.inputs(torch.float32)
    expected = case.run(source, *inputs)
    with torch.device("meta"):
        module = case.build()
    assert all(p.is_meta for p in module.parameters())

    assigned = copy.deepcopy(module)
    assigned.load_state_dict(source.state_dict(), assign=True)
    assert_all(assert_bits, case.run(assigned, *inputs), expected)

    dirty = [torch.full((64,), float("nan")) for _ in range(8)]
    del dirty
    module.to_empty(device="cpu")
    module.load_state_dict(source.state_dict())
    assert_all(assert_bits, case.run(module, *inputs), expected)


@every_case
def test_meta_to_empty_and_reset(case):
    with torch.device("meta"):
        module = case.build()
    module.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan"))
    if case.parameters:
        with_initial_seed(module.reset_parameters)
    inputs = case.inputs(torch.float32)
    assert_all(assert_bits, case.run(module, *inputs), case.run(case.build(), *inputs))


@every_case
def test_meta_inputs(case):
    with torch.device("meta"):
        module = case.build()
    inputs = case.inputs(torch.bfloat16)
    results = case.run(module, *(x.to("meta") for x in inputs))
    expected = case.run(case.build(), *inputs)
    for result, e in zip(results, expected, strict=True):
        assert (result.device.type, result.shape, result.dtype) == ("meta", e.shape, e.dtype)


@every_case
def test_default_device_and_dtype_do_not_leak_in(case):
    inputs = case.inputs(torch.float32)
    expected = case.run(case.build(), *inputs)
    torch.set_default_dtype(torch.bfloat16)
    try:
        if not case.parameters:
            assert_all(assert_bits, case.run(case.build(), *inputs), expected)
    finally:
        torch.set_default_dtype(torch.float32)
    module = case.build()
    with torch.device("meta"):
        assert_all(assert_bits, case.run(module, *inputs), expected)


@every_case
def test_compile_fullgraph(case, fresh_compiler):
    module = perturbed(case.build())
    compiled = torch.compile(case.run, fullgraph=True, dynamic=True, backend="aot_eager")
    inputs = [x.requires_grad_() for x in case.inputs(torch.float32)]
    results, expected = compiled(module, *inputs), case.run(module, *inputs)
    assert_all(assert_near, results, [e.detach() for e in expected])
    wanted = [*inputs, *module.parameters()]
    grads = [torch.randn_like(y) for y in expected]
    for result, e in zip(
        torch.autograd.grad(results, wanted, grads), torch.autograd.grad(expected, wanted, grads), strict=True
    ):
        torch.testing.assert_close(result, e, rtol=1e-5, atol=1e-5)


@every_case
def test_export(case):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = case.build()

        def forward(self, inputs: tuple[torch.Tensor, ...]):
            return case.run(self.encoding, *inputs)

    module, inputs = Wrapped(), case.inputs(torch.float32)
    program = torch.export.export(module, (inputs,))
    assert set(program.state_dict) == {f"encoding.{name}" for name in case.parameters}
    assert_all(assert_bits, program.module()(inputs), module(inputs))


@every_case
def test_twin_in_cpp_gives_the_same_bits(case):
    module, twin = perturbed(case.build()), case.build_twin()
    own = dict(module.named_parameters())
    theirs = dict(twin.named_parameters())
    assert set(own) == set(theirs) == set(case.parameters)
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(own[name])
    for dtype in DTYPES:
        inputs = case.inputs(dtype)
        assert_all(assert_bits, case.run(twin, *inputs), case.run(module, *inputs))


@every_case
def test_initial_parameters_are_those_of_the_twin(case):
    own, theirs = dict(case.build().named_parameters()), dict(case.build_twin().named_parameters())
    for name in case.parameters:
        assert own[name].requires_grad
        assert theirs[name].requires_grad
        assert_bits(own[name].detach(), theirs[name].detach())


@every_case
def test_repr_shows_every_option(case):
    text = repr(case.build())
    assert text.startswith(f"{case.python}({case.arguments[0]}")
    for name, value in case.options.items():
        assert f"{name}={value!r}" in text


@each_device
@every_case
def test_inside_a_parent(case):
    """Parameters are seen once, moves and modes arrive, hooks fire."""

    class Parent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = case.build()

        def forward(self, *inputs):
            return case.run(self.encoding, *inputs)

    parent, inputs, fired = Parent(), case.inputs(torch.float32), []
    assert [name for name, _ in parent.named_parameters()] == [f"encoding.{name}" for name in case.parameters]
    assert [name for name, _ in parent.named_buffers()] == [f"encoding.{name}" for name in case.buffers]
    expected = parent(*inputs)
    assert_all(assert_bits, parent.eval()(*inputs), expected)
    assert not parent.encoding.training
    parent.encoding.register_forward_pre_hook(lambda *_: fired.append("before"))
    parent.encoding.register_forward_hook(lambda *_: fired.append("after"))
    parent(*inputs)
    assert fired == ([] if case.is_attend else ["before", "after"])
    parent.to(torch.float64)
    assert all(p.dtype == torch.float64 for p in parent.encoding.parameters())
    parent.zero_grad()
    parent.requires_grad_(False)
    assert not any(p.requires_grad for p in parent.parameters())


@each_device
@every_case
def test_inputs_are_left_alone(case):
    inputs = case.inputs(torch.float32)
    before = [with_strides_of(x, x) for x in inputs]
    outputs = case.run(case.build(), *inputs)
    assert_all(assert_bits, inputs, before)
    pointers = [t.untyped_storage().data_ptr() for t in (*inputs, *outputs)]
    assert len(set(pointers)) == len(pointers), "no output shares memory with an input or another output"


@pytest.mark.parametrize("case", [case for case in CASES if "inv_freq" in vars(case.build())], ids=str)
def test_frequencies_that_are_derived_are_read_only(case):
    """What else was derived from the options would not follow."""
    with pytest.raises(AttributeError, match=f"{case.python}: inv_freq is fixed at construction"):
        case.build().inv_freq = torch.ones(4)


@every_case
def test_class_is_an_ordinary_module(case):
    module = case.build()
    assert isinstance(module, torch.nn.Module)
    assert type(module) is getattr(posenc.nn, case.python)
    with pytest.raises(TypeError):
        getattr(posenc.nn, case.python)(*case.arguments, **case.options, no_such_option=1)
