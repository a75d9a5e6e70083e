"""The absolute encodings in compiled and exported graphs, with every way to say where the tokens are."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import posenc
from tolerances import assert_bits, assert_near

CAPE, LearnedAbsolute, Sinusoidal = posenc.nn.CAPE, posenc.nn.LearnedAbsolute, posenc.nn.Sinusoidal
BUILD = {
    "sinusoidal": lambda: Sinusoidal(5),
    "sinusoidal_tensor2tensor": lambda: Sinusoidal(5, layout="tensor2tensor"),
    "learned": lambda: LearnedAbsolute(64, 5),
    "cape": lambda: CAPE(5).eval(),
}
every_module = pytest.mark.parametrize("name", BUILD)


def places(length, batch):
    return {
        "positions": {"positions": torch.randint(0, 40, (length,))},
        "positions_by_row": {"positions": torch.randint(0, 40, (batch, length))},
        "offset_by_row": {"offset": torch.randint(0, 40, (batch,))},
        "offset": {"offset": length + 1},
        "counted": {},
    }


PLACES = list(places(1, 1))


@every_module
@pytest.mark.parametrize("place", PLACES)
def test_one_graph_serves_all_lengths(name, place, fresh_compiler):
    module, counter = BUILD[name](), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    compilations = []
    # No size equals another or the number of frequencies: torch would take them for the same symbol.
    for length, batch in ((11, 7), (9, 2), (17, 4)):
        x, where = torch.randn(batch, length, 5), places(length, batch)[place]
        assert_near(compiled(x, **where).detach(), module(x, **where).detach().double())
        compilations.append(counter.frame_count)
    assert compilations[0] == compilations[-1] > 0


@every_module
def test_inductor(name, fresh_compiler):
    module, x = BUILD[name](), torch.randn(2, 6, 5).bfloat16().requires_grad_()
    where = {"positions": torch.tensor([3, 0, 1, 1, 9, 2])}
    y, expected = torch.compile(module, fullgraph=True)(x, **where), module(x, **where)
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-7)
    wanted, grad = [x, *module.parameters()], torch.randn_like(y)
    for g, e in zip(torch.autograd.grad(y, wanted, grad), torch.autograd.grad(expected, wanted, grad)):
        assert g.dtype == e.dtype
        torch.testing.assert_close(g, e)


@every_module
@pytest.mark.parametrize("place", ["positions_by_row", "counted"])
def test_exported_for_every_length(name, place):
    module, length = BUILD[name](), torch.export.Dim("length", min=2, max=60)
    x, where = torch.randn(2, 7, 5), places(7, 2)[place]
    shapes = {"x": {1: length}, **({"positions": {1: length}} if where else {})}
    program = torch.export.export(module, (x,), where, dynamic_shapes=shapes).module()
    for tokens in (7, 3, 60):
        x, where = torch.randn(2, tokens, 5), places(tokens, 2)[place]
        assert_bits(program(x, **where), module(x, **where))


class TestLimitInGraphs:
    """LearnedAbsolute's check reads data, yet lives inside the graph."""

    def test_compiled_check_of_positions(self, fresh_compiler):
        module, x = LearnedAbsolute(8, 4), torch.randn(2, 3, 4)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        good, bad = torch.tensor([7, 0, 1]), torch.tensor([8, 0, 1])
        assert_bits(compiled(x, good), module(x, good))
        with pytest.raises(ValueError, match="expected positions from 0 to 7, as max_positions is 8"):
            compiled(x, bad)
        assert_bits(compiled(x, good), module(x, good))

    def test_inductor_keeps_the_check(self, fresh_compiler):
        module, x = LearnedAbsolute(8, 4), torch.randn(2, 3, 4)
        compiled = torch.compile(module, fullgraph=True)
        compiled(x, torch.tensor([7, 0, 1]))
        with pytest.raises(ValueError, match="expected positions from 0 to 7"):
            compiled(x, torch.tensor([-1, 0, 1]))

    def test_compiled_check_of_the_length(self, fresh_compiler):
        module = LearnedAbsolute(8, 4)
        compiled = torch.compile(module, dynamic=True, backend="aot_eager")
        for length in (3, 8):
            compiled(torch.randn(2, length, 4))
        with pytest.raises(Exception, match="expected positions from 0 to 7"):
            compiled(torch.randn(2, 9, 4))

    def test_exported_check_of_positions(self):
        module, x = LearnedAbsolute(8, 4), torch.randn(2, 3, 4)
        program = torch.export.export(module, (x, torch.tensor([7, 0, 1]))).module()
        assert_bits(program(x, torch.tensor([1, 1, 2])), module(x, torch.tensor([1, 1, 2])))
        with pytest.raises(ValueError, match="expected positions from 0 to 7"):
            program(x, torch.tensor([1, 1, 9]))
