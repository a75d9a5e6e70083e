"""Attention as a module, with every encoding: weights, copies, casts, graphs, and its C++ twin."""

import copy
import io
import pickle

import pytest
import torch

import cases
import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS, KV_HEADS, STACKS
from tolerances import assert_bits

BATCH, LENGTH = 2, 6

every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)
# Graphs of each encoding alone are in test_modules.py: here every family, and every way that the block calls one.
GRAPHS = ("nope", "rotary", "multimodal", "sinusoidal_rotary_alibi", "sandwich", "fire", "rerope", "xpos_cope_keys")
every_graph = pytest.mark.parametrize("stack", [BY_NAME[name] for name in GRAPHS], ids=str)
MASK = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]).bool()


def call_of(stack):
    """Keyword arguments of a call that uses all that the stack allows."""
    places = torch.tensor([[0, 0, 1, 2, 3, 4], [3, 4, 5, 6, 8, 9]])
    return ({"positions": stack.positions(places)} if stack.takes_positions else {}) | {"key_mask": MASK}


def graph_call_of(stack):
    """The same, without what breaks a graph."""
    return {"key_mask": MASK} if stack.reads_positions else call_of(stack)


def embeddings(dtype=torch.float32):
    return torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64).to(dtype)


def names_of(module):
    return [name for name, _ in module.named_parameters()]


def test_every_encoding_is_in_a_stack():
    used = {type(encoding).__name__ for stack in STACKS for encoding in stack.encodings(posenc.nn)}
    assert used == cases.ENCODINGS - cases.GRIDS


# Weights


def test_names_of_parameters():
    block = BY_NAME["xpos_cope_keys"].block()
    assert names_of(block) == [
        *(f"{name}_proj.{part}" for name in ("q", "k", "v", "o", "gate") for part in ("weight", "bias")),
        "encodings.1.pos_emb",
    ]
    assert list(block.state_dict()) == names_of(block)
    assert names_of(posenc.nn.Attention(8, 2)) == [f"{name}_proj.weight" for name in "qkvo"]


def test_one_encoding_may_serve_several_layers():
    """As in T5, whose layers share one table."""
    shared = posenc.nn.T5RelativeBias(HEADS)
    layers = torch.nn.ModuleList(posenc.nn.Attention(EMBED_DIM, HEADS, encodings=[shared]) for _ in range(2))
    tables = [p for p in layers.parameters() if p.shape == shared.weight.shape]
    assert len(tables) == 1
    layers[1](layers[0](embeddings())).sum().backward()
    assert shared.weight.grad.abs().sum() > 0


@every_stack
def test_twin_in_cpp_gives_the_same_outputs_and_gradients(stack):
    block, twin = stack.block(), stack.block(posenc.nn.cpp)
    own, theirs = dict(block.named_parameters()), dict(twin.named_parameters())
    assert sorted(own) == sorted(theirs)
    for name, parameter in own.items():
        assert_bits(theirs[name].detach(), parameter.detach())
    x = embeddings().requires_grad_()
    twin_x = x.detach().clone().requires_grad_()
    y, twin_y = block(x, **call_of(stack)), twin.forward(twin_x, **call_of(stack))
    assert_bits(twin_y.detach(), y.detach())
    grad = torch.randn_like(y)
    names = sorted(own)
    computed = torch.autograd.grad(y, [x, *(own[name] for name in names)], grad, allow_unused=True)
    wanted = torch.autograd.grad(twin_y, [twin_x, *(theirs[name] for name in names)], grad, allow_unused=True)
    for result, e in zip(computed, wanted, strict=True):
        assert (result is None) == (e is None)
        if result is not None:
            assert_bits(result, e)


@every_stack
def test_initial_weights_are_those_of_the_twin(stack):
    def drawn(namespace):
        torch.manual_seed(5)
        block = namespace.Attention(EMBED_DIM, HEADS, num_kv_heads=KV_HEADS, encodings=stack.encodings(namespace))
        return dict(block.named_parameters())

    own, theirs = drawn(posenc.nn), drawn(posenc.nn.cpp)
    assert sorted(own) == sorted(theirs)
    for name in own:
        assert_bits(own[name].detach(), theirs[name].detach())


@every_stack
def test_every_parameter_learns(stack):
    block = stack.block()
    block(embeddings(), **call_of(stack)).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A bias of all keys alike changes no softmax.
        if name != "k_proj.bias":
            assert parameter.grad.abs().sum() > 0, name


# Copies and casts


@every_stack
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_are_equal_and_independent(stack, way):
    block, x, call = stack.block(), embeddings(), call_of(stack)
    expected = block(x, **call)
    if way == "deepcopy":
        twin = copy.deepcopy(block)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(block))
    else:
        stored = io.BytesIO()
        torch.save(block, stored)
        stored.seek(0)
        twin = torch.load(stored, weights_only=False)
    assert_bits(twin(x, **call), expected)
    assert repr(twin) == repr(block)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert_bits(block(x, **call), expected)
    other = stack.block()
    other.load_state_dict(twin.state_dict())
    assert_bits(other(x, **call), twin(x, **call))


@every_stack
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_casts_reach_everything(stack, dtype):
    block = stack.block().to(dtype)
    assert {p.dtype for p in block.parameters()} == {dtype}
    y = block(embeddings(dtype), **call_of(stack))
    assert y.dtype == dtype
    wide = stack.block().double()
    wide.load_state_dict(block.state_dict())
    torch.manual_seed(0)
    x = embeddings(dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 0.15
    torch.testing.assert_close(
        block(x, **call_of(stack)).double(), wide(x.double(), **call_of(stack)), rtol=tolerance, atol=tolerance
    )


@every_stack
def test_meta_construction(stack):
    source = stack.block()
    with torch.device("meta"):
        block = stack.block()
    assert all(p.is_meta for p in block.parameters())
    y = block(embeddings().to("meta"), **{name: t.to("meta") for name, t in graph_call_of(stack).items()})
    assert (y.shape, y.device.type) == ((BATCH, LENGTH, EMBED_DIM), "meta")
    dirty = [torch.full((512,), float("nan")) for _ in range(8)]
    del dirty
    block.to_empty(device="cpu")
    for name, parameter in block.named_parameters():
        assert parameter.isfinite().all(), name
    block.load_state_dict(source.state_dict())
    x = embeddings()
    assert_bits(block.eval()(x, **call_of(stack)), source(x, **call_of(stack)))


def test_reset_draws_the_projections_anew_and_leaves_encodings():
    block = BY_NAME["cope_keys"].block()
    table, projection = block.encodings[0].pos_emb.detach().clone(), block.gate_proj.weight.detach().clone()
    block.reset_parameters()
    assert_bits(block.encodings[0].pos_emb.detach(), table)
    assert not torch.equal(block.gate_proj.weight, projection)


def test_options_are_read_only_and_shown():
    block = posenc.nn.Attention(32, 4, num_kv_heads=2, dropout=0.1, bias=True, window=8, encodings=[posenc.nn.ALiBi(4)])
    text = repr(block)
    for part in ("32, 4, num_kv_heads=2, head_dim=8, dropout=0.1", "bias=True, output_bias=True", "window=8", "ALiBi("):
        assert part in text
    with pytest.raises(AttributeError, match="Attention: num_heads is fixed at construction"):
        block.num_heads = 8
    twin = posenc.nn.cpp.Attention(32, 4, num_kv_heads=2, dropout=0.5)
    assert repr(twin).startswith(
        "posenc::nn::Attention(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, dropout=0.5"
    )


# Graphs


@every_graph
def test_compile_fullgraph(stack, fresh_compiler):
    block, x, call = stack.block(), embeddings().requires_grad_(), graph_call_of(stack)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    y, expected = compiled(x, **call), block(x, **call)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(y)
    wanted = [x, *block.parameters()]
    for result, e in zip(
        torch.autograd.grad(y, wanted, grad), torch.autograd.grad(expected, wanted, grad), strict=True
    ):
        torch.testing.assert_close(result, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["rotary", "cope_keys"])
def test_compiled_decoding(name, fresh_compiler):
    block, x = BY_NAME[name].block(), embeddings()
    caches = [posenc.nn.KVCache(BATCH, KV_HEADS, LENGTH, HEAD_DIM) for _ in range(2)]
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 6)):
            y = compiled(x[:, begin:end], cache=caches[0])
            torch.testing.assert_close(y, block(x[:, begin:end], cache=caches[1]), rtol=1e-5, atol=1e-5)
    assert caches[0].length == LENGTH


@every_graph
def test_export(stack):
    block, x, call = stack.block(), embeddings(), graph_call_of(stack)
    program = torch.export.export(block, (x,), call)
    assert set(program.state_dict) == set(block.state_dict())
    assert_bits(program.module()(x, **call), block(x, **call))


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        block = BY_NAME["xpos_cope_keys"].block()
        twin = copy.deepcopy(block)
        parallel = torch.nn.parallel.DistributedDataParallel(twin)
        x = embeddings()
        for module in (block, parallel):
            module(x).square().sum().backward()
        for mine, theirs in zip(block.parameters(), twin.parameters(), strict=True):
            assert_bits(theirs.grad, mine.grad)
    finally:
        torch.distributed.destroy_process_group()


def test_checkpointed_gradients_are_the_same():
    block, x = BY_NAME["rotary_cope"].block(dropout=0.3), embeddings().requires_grad_()
    block.train()
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(1)
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
        gradients.append(torch.autograd.grad(y.square().sum(), [x, *block.parameters()]))
    for plain, again in zip(*gradients, strict=True):
        assert_bits(again, plain)
