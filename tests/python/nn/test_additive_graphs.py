"""The additive encodings' ops inside torch.compile, torch.export, vmap and opcheck."""

import pytest
import torch

import posenc
from additive_calls import BUILD, build, operands
from posenc.nn import ALiBi, Kerple, Sandwich, T5RelativeBias
from tolerances import assert_bits


@pytest.mark.parametrize("name", BUILD)
class TestGraphs:
    def test_one_graph_for_every_length(self, name, fresh_compiler):
        module = build(name)
        graphs = []

        def counting(graph, _):
            graphs.append(graph)
            return graph.forward

        attend = torch.compile(
            lambda q, k, v: module.attend(q, k, v, is_causal=True), fullgraph=True, dynamic=True, backend=counting
        )
        for q_len, k_len in ((5, 7), (9, 9), (3, 40)):
            inputs = operands(q_len, k_len)
            assert_bits(attend(*inputs), module.attend(*inputs, is_causal=True))
        assert len(graphs) == 1

    def test_bias_in_a_graph(self, name, fresh_compiler):
        module = build(name)
        bias = torch.compile(lambda x: module.bias(x.shape[0], x.shape[1]), fullgraph=True, backend="aot_eager")
        assert_bits(bias(torch.empty(3, 8)), module.bias(3, 8))

    def test_export_with_a_dynamic_length(self, name):
        module = build(name)

        class Attending(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoding = module

            def forward(self, q, k, v):
                return self.encoding.attend(q, k, v, is_causal=True)

        length = torch.export.Dim("length", min=2, max=4096)
        dynamic = tuple({2: length} for _ in range(3))
        program = torch.export.export(Attending(), operands(7, 7), dynamic_shapes=dynamic)
        inputs = operands(11, 11)
        assert_bits(program.module()(*inputs), module.attend(*inputs, is_causal=True))


@pytest.mark.parametrize("build", [lambda: Kerple(6), lambda: Sandwich(6)], ids=["kerple", "sandwich"])
def test_given_positions_break_a_graph_but_not_its_result(build, fresh_compiler):
    module, inputs = build(), operands()
    call = {"q_positions": torch.tensor([3, 90, 4, 0, 7]), "is_causal": True}
    attend = torch.compile(lambda *x: module.attend(*x, **call), backend="eager")
    assert_bits(attend(*inputs), module.attend(*inputs, **call))


@pytest.mark.parametrize(
    "build", [lambda: ALiBi(6), lambda: T5RelativeBias(6, bidirectional=True)], ids=["alibi", "t5"]
)
def test_given_positions_stay_in_the_graph(build, fresh_compiler):
    module, inputs = build(), operands()
    call = {"q_positions": torch.tensor([3, 90, 4, 0, 7]), "is_causal": True}
    attend = torch.compile(lambda *x: module.attend(*x, **call), backend="eager", fullgraph=True)
    assert_bits(attend(*inputs), module.attend(*inputs, **call))


class TestFunctions:
    def test_compiled(self, fresh_compiler):
        def both(relative):
            return posenc.ops.t5_bucket(relative), posenc.ops.alibi_slopes(6) * 2

        relative = torch.arange(-300, 300)
        for result, expected in zip(
            torch.compile(both, fullgraph=True, backend="aot_eager")(relative), both(relative), strict=True
        ):
            assert_bits(result, expected)

    def test_vmap(self):
        relative = torch.arange(-60, 60).view(3, 40)
        assert_bits(torch.func.vmap(posenc.ops.t5_bucket)(relative), posenc.ops.t5_bucket(relative))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
    def test_opcheck(self, dtype):
        relative = torch.arange(-60, 60, dtype=dtype).view(3, 40)
        torch.library.opcheck(torch.ops.posenc.t5_bucket.default, (relative,), {"bidirectional": False})
        torch.library.opcheck(torch.ops.posenc._cosine_sums.default, (torch.rand(4).double(), 9))


@pytest.mark.parametrize("call", [{}, {"is_causal": True, "dropout_p": 0.0, "window": 3}], ids=["plain", "window"])
def test_opcheck_of_fire(call):
    module = build("fire")
    inputs = [x.requires_grad_() for x in operands()]
    q, k, v = inputs
    terms = {name: x.detach() for name, x in module.double()._terms_of_op(q, k, None, None).items()}
    for name, x in terms.items():
        x.requires_grad_(name != "fire_knots")
    torch.library.opcheck(torch.ops.posenc.attention.default, (q, k, v), terms | call)
    arguments = (*module._parameters_of_op(), module.eps, q, k)
    torch.library.opcheck(torch.ops.posenc._fire_terms.default, arguments)


def test_default_dtype_and_device_do_not_reach_the_numbers():
    expected = [BUILD[name](6).bias(4) for name in ("alibi", "sandwich")]
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            modules = [BUILD[name](6) for name in ("alibi", "sandwich")]
            assert posenc.ops.alibi_slopes(4).device.type == "cpu"
    finally:
        torch.set_default_dtype(torch.float32)
    for module, e in zip(modules, expected, strict=True):
        assert_bits(module.bias(4), e)
