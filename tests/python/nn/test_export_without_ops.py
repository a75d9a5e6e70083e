"""Programs of torch.export in which ATen ops stand for posenc's, and ONNX models of them."""

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS

LENGTH = torch.export.Dim("length", min=2, max=40)  # tables of positions end there

# Stacks that hold each op of the modules in one of them.
EVERY_OP = [
    *("rotary_dynamic_ntk", "xpos", "axial", "multimodal", "sinusoidal_axes", "learned_absolute", "t5", "kerple_log"),
    *("sandwich", "fire", "shaw_keys_per_head", "deberta", "transformer_xl", "rerope_leaky", "self_extend"),
    "rotary_fox_cope_keys_alibi",
]


class Layer(torch.nn.Module):
    """An attention of a stack, whose positions are counted where the stack cannot count for itself."""

    def __init__(self, stack, **options):
        super().__init__()
        self.stack, self.block = stack, stack.block(**options)

    def forward(self, x):
        positions = None
        if self.stack.axes is not None:
            positions = self.stack.positions(torch.arange(x.shape[1]).expand(x.shape[0], -1))
        return self.block(x, positions=positions)


def exported(module, *inputs, dynamic=True):
    shapes = tuple({1: LENGTH} for _ in inputs) if dynamic else None
    return torch.export.export(module, inputs, dynamic_shapes=shapes)


def targets(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("name", EVERY_OP)
def test_programs_of_any_length_hold_no_op_of_posenc(name):
    """Options of the layer take part, at a length beyond that of the example."""
    layer = Layer(BY_NAME[name], sinks=True, softcap=3.0, window=25).double().eval()
    program = exported(layer, torch.randn(2, 12, EMBED_DIM, dtype=torch.float64))
    assert any("posenc" in target for target in targets(program))
    plain = posenc.export.without_ops(program)
    assert not any("posenc" in target for target in targets(plain))
    x = torch.randn(2, 33, EMBED_DIM, dtype=torch.float64)
    torch.testing.assert_close(plain.module()(x), layer(x), rtol=1e-10, atol=1e-10)


class Bucketed(torch.nn.Module):
    """Buckets of T5 on both sides, of distances that the caller gives."""

    def forward(self, distances):
        return posenc.ops.t5_bucket(distances, num_buckets=20, max_distance=50), posenc.ops.t5_bucket(
            distances.int(), num_buckets=7, max_distance=30, bidirectional=False
        )


def test_buckets_are_the_same_at_every_distance():
    distances = torch.arange(-400, 401).view(1, -1)
    plain = posenc.export.without_ops(exported(Bucketed(), distances, dynamic=False))
    for actual, expected in zip(plain.module()(distances), Bucketed()(distances), strict=True):
        assert actual.dtype == torch.int64 and torch.equal(actual, expected)


class Grid(torch.nn.Module):
    """Attention of a picture of 3 x 4 tokens."""

    def __init__(self, encoding):
        super().__init__()
        self.encoding = encoding

    def forward(self, q, k, v):
        return self.encoding.attend(q, k, v)


@pytest.mark.parametrize(
    "make",
    [
        lambda: posenc.nn.GridRelativeBias(HEADS, (3, 4)),
        lambda: posenc.nn.GridRelativeBias(HEADS, (3, 4), kind="cpb"),
        lambda: posenc.nn.DecomposedRelative(HEAD_DIM, (3, 4)),
    ],
    ids=["table", "cpb", "decomposed"],
)
def test_pictures(make):
    torch.manual_seed(1)
    module = Grid(make())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    inputs = [torch.randn(2, HEADS, 12, HEAD_DIM) for _ in range(3)]
    plain = posenc.export.without_ops(exported(module, *inputs, dynamic=False))
    torch.testing.assert_close(plain.module()(*inputs), module(*inputs), rtol=1e-5, atol=2e-6)


class Rotated(torch.nn.Module):
    """Rotations by given tables and by positions, and back."""

    def forward(self, q, positions, inv_freq):
        cos, sin = posenc.ops.rotary_tables(positions, inv_freq)
        turned = posenc.ops.apply_rotary(q, cos, sin, interleaved=True)
        back, _ = posenc.ops.rotary_qk(turned, turned, positions, inv_freq, interleaved=True, inverse=True)
        return turned, back, posenc.ops.rotary(q, positions, inv_freq)


def test_rotary_ops():
    q, positions, inv_freq = torch.randn(2, 3, 40, 8), torch.arange(40) * 7, 0.3 ** torch.arange(4).double()
    plain = posenc.export.without_ops(torch.export.export(Rotated(), (q, positions, inv_freq)))
    for actual, expected in zip(plain.module()(q, positions, inv_freq), Rotated()(q, positions, inv_freq), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(plain.module()(q, positions, inv_freq)[1], q)


def test_scalings_that_follow_each_call_have_one_length():
    rope = posenc.nn.Rotary(HEAD_DIM, scaling=posenc.scaling.DynamicNTK(2.0, 4))
    layer = posenc.nn.Attention(EMBED_DIM, HEADS, encodings=[rope]).eval()
    x = torch.randn(2, 12, EMBED_DIM)
    plain = posenc.export.without_ops(exported(layer, x, dynamic=False))
    torch.testing.assert_close(plain.module()(x), layer(x), rtol=1e-5, atol=2e-6)
    with pytest.raises(Exception, match="give the encoding seq_len=, or export for one length"):
        posenc.export.without_ops(exported(layer, x))


class Packed(torch.nn.Module):
    def forward(self, cu_seqlens):
        return torch.ops.posenc.positions_from_cu_seqlens(cu_seqlens, 9)


def test_an_op_without_a_decomposition_is_named():
    program = torch.export.export(Packed(), (torch.tensor([0, 4, 9]),))
    with pytest.raises(ValueError, match="the program holds .'posenc.positions_from_cu_seqlens"):
        posenc.export.without_ops(program)


def test_gradients_go_through_a_decomposed_graph():
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = BY_NAME["cope_shaw"].block().double()
    x = torch.randn(2, 12, EMBED_DIM, dtype=torch.float64, requires_grad=True)
    table = posenc.export.decompositions()
    graph = make_fx(layer, decomposition_table=table)(x)
    assert not any("posenc" in str(node.target) for node in graph.graph.nodes)
    (actual,), (expected,) = (torch.autograd.grad(f(x).square().sum(), x) for f in (graph, layer))
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_onnx_runtime_computes_the_same(tmp_path):
    """Where onnxscript and onnxruntime are installed, which the other tests do not need."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    layer = Layer(BY_NAME["rotary_fox_cope_keys_alibi"], sinks=True).eval()
    plain = posenc.export.without_ops(exported(layer, torch.randn(2, 12, EMBED_DIM)))
    torch.onnx.export(plain, dynamo=True, verbose=False).save(tmp_path / "layer.onnx")
    session = runtime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(2, 33, EMBED_DIM)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(actual), layer(x), rtol=1e-5, atol=1e-5)
