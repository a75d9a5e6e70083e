"""Every layer, exported and packaged by AOTInductor, computes as it does here."""

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEADS, STACKS

# Positions of these are data that the graph would have to read.
PACKAGED = [stack for stack in STACKS if not stack.reads_positions] + [BY_NAME["kerple_log"], BY_NAME["sandwich"]]


class Layers(torch.nn.Module):
    """One model of all, so that it is compiled once."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({stack.name: stack.block() for stack in PACKAGED})
        options = {"base": 1000, "scaling": posenc.scaling.DynamicNTK(2, 4)}  # an int in the place of a float
        self.rotary = posenc.nn.Rotary(8, **options)
        self.t5 = posenc.nn.T5RelativeBias(HEADS, scale=2)

    def forward(self, x):
        q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        places = torch.arange(x.shape[1], device=x.device)[None]
        found = {
            stack.name: self.layers[stack.name](x, positions=None if stack.axes is None else stack.positions(places))
            for stack in PACKAGED
        }
        found["rotary_by_length"] = self.rotary(q)
        found["t5_by_scale"] = self.t5.attend(q, q, q)
        found["slopes"] = torch.ops.posenc.alibi_slopes(HEADS)
        found["tables"] = torch.ops.posenc.rotary_tables(None, self.rotary.inv_freq, length=3, dtype=torch.float64)[0]
        return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    model, x = Layers().eval(), torch.randn(2, 6, EMBED_DIM)
    with torch.no_grad():
        expected = model(x)
        program = torch.export.export(model, (x,))
        path = tmp_path_factory.mktemp("package") / "model.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        return expected, torch._inductor.aoti_load_package(str(path))(x)


@pytest.mark.parametrize(
    "name", [*(stack.name for stack in PACKAGED), "rotary_by_length", "t5_by_scale", "slopes", "tables"]
)
def test_a_packaged_layer_gives_the_same_numbers(results, name):
    expected, packaged = results
    torch.testing.assert_close(packaged[name], expected[name], rtol=1e-5, atol=1e-5)
