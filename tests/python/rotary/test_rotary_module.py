"""The Rotary module beyond what every module promises (test_modules.py): call forms, lengths, options, training."""

import copy
import datetime
import math

import pytest
import torch
import torch.distributed as dist

import posenc
import reference
from tolerances import assert_bits, assert_near

Rotary = posenc.nn.Rotary
scaling = posenc.scaling


def queries_and_keys(dtype=torch.float32, length=5):
    return torch.randn(2, 4, length, 8).to(dtype), torch.randn(2, 2, length, 8).to(dtype)


def test_call_forms_agree():
    module, (q, k) = Rotary(8), queries_and_keys()
    rotated = module(q, k)
    assert isinstance(rotated, tuple)
    assert len(rotated) == 2
    assert_bits(module(q), rotated[0])
    assert_bits(module(k), rotated[1])
    assert_bits(module(q, None, torch.arange(5)), rotated[0])
    for y, e in zip(module(q, k, positions=torch.arange(5)), rotated, strict=True):
        assert_bits(y, e)


@pytest.mark.parametrize("offset", [3, torch.tensor([3, 8])], ids=["int", "per_row"])
def test_offset(offset):
    module, (q, k) = Rotary(8, interleaved=True), queries_and_keys()
    positions = torch.arange(5) + (offset[:, None] if isinstance(offset, torch.Tensor) else offset)
    for y, e in zip(module(q, k, offset=offset), module(q, k, positions), strict=True):
        assert_bits(y, e)
    with pytest.raises(ValueError, match="offset"):
        module(q, k, positions, offset=offset)


def test_decoding_with_an_offset_equals_the_whole_sequence():
    module, (q, k) = Rotary(8, scaling=scaling.Yarn(4.0, 64)), queries_and_keys(length=9)
    whole = module(q, k)
    for t in range(9):
        for y, e in zip(module(q[:, :, t : t + 1], k[:, :, t : t + 1], offset=t), whole, strict=True):
            assert_bits(y, e[:, :, t : t + 1])


def test_positions_of_every_kind():
    module, (q, _) = Rotary(8), queries_and_keys()
    inv_freq = reference.inverse_frequencies(8)
    for positions in (
        [4, 0, 2, 2, 9],
        [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],
        [[1, 5, 3, 3, 0]],
        [0.5, 1.5, 2.25, -3.0, 7.0],
    ):
        positions = torch.tensor(positions)
        assert_near(module(q, positions=positions), reference.rotary(q, positions, inv_freq))


class TestLengthDependentScaling:
    """seq_len is, in this order: the call's, the constructor's, offset + T, largest position + 1."""

    dynamic = scaling.DynamicNTK(2.0, 4)

    def expected(self, q, positions, length):
        return reference.rotary(q, positions, reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 4, length))

    def test_length_of_the_call(self):
        q, _ = queries_and_keys()
        module = Rotary(8, scaling=self.dynamic, seq_len=100)
        assert_near(module(q, seq_len=32), self.expected(q, None, 32))

    def test_length_of_the_constructor(self):
        q, _ = queries_and_keys()
        assert_near(
            Rotary(8, scaling=self.dynamic, seq_len=100)(q, offset=2), self.expected(q, torch.arange(5) + 2, 100)
        )

    def test_offset_plus_length(self):
        q, _ = queries_and_keys()
        module = Rotary(8, scaling=self.dynamic)
        assert_near(module(q), self.expected(q, None, 5))
        assert_near(module(q, offset=20), self.expected(q, torch.arange(5) + 20, 25))
        assert_near(module(q[:, :, :3]), self.expected(q[:, :, :3], None, 4))

    def test_offset_per_row_takes_the_longest_row(self):
        q, _ = queries_and_keys()
        y = Rotary(8, scaling=self.dynamic)(q, offset=torch.tensor([1, 11]))
        assert_near(y, self.expected(q, torch.stack([torch.arange(5) + 1, torch.arange(5) + 11]), 16))

    def test_largest_position_plus_one(self):
        q, _ = queries_and_keys()
        module = Rotary(8, scaling=self.dynamic)
        positions = torch.tensor([[0, 1, 2, 3, 4], [3, 30, 4, 4, 0]])
        assert_near(module(q, positions=positions), self.expected(q, positions, 31))
        assert_near(module(q, positions=positions, seq_len=64), self.expected(q, positions, 64))

    def test_no_state_between_calls(self):
        q, _ = queries_and_keys()
        module = Rotary(8, scaling=self.dynamic)
        first = module(q)
        module(q, offset=1000)
        module(q, seq_len=5000)
        assert_bits(module(q), first)

    def test_empty_sequences(self):
        module, q = Rotary(8, scaling=self.dynamic), torch.randn(2, 4, 0, 8)
        assert module(q).shape == q.shape
        assert module(q, positions=torch.zeros(2, 0, dtype=torch.int64)).shape == q.shape

    @pytest.mark.parametrize("how", ["call", "constructor", "counted"])
    def test_compiles_without_a_break(self, fresh_compiler, how):
        q, k = queries_and_keys()
        module = Rotary(8, scaling=self.dynamic, seq_len=32 if how == "constructor" else None)
        call = {"seq_len": 32} if how == "call" else {}
        compiled = torch.compile(lambda q, k: module(q, k, **call), fullgraph=True, backend="aot_eager")
        for y, e in zip(compiled(q, k), module(q, k, **call), strict=True):
            assert_bits(y, e)


def test_dynamic_compilation_serves_every_length(fresh_compiler):
    module = Rotary(8, scaling=scaling.DynamicNTK(2.0, 4))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 9, 17):
        q, k = queries_and_keys(length=length)
        for y, e in zip(compiled(q, k), module(q, k), strict=True):
            assert_bits(y, e)
        torch.compiler.set_stance("fail_on_recompile")


def test_inductor(fresh_compiler):
    q, k = (x.requires_grad_() for x in queries_and_keys())
    module = Rotary(8, scaling=scaling.Yarn(4.0, 64), learnable=False)
    compiled = torch.compile(lambda q, k: module(q + 1, k * 2), fullgraph=True)
    results, expected = compiled(q, k), module(q + 1, k * 2)
    grads = [torch.randn_like(y) for y in expected]
    for y, e in zip(results, expected, strict=True):
        assert_near(y, e.detach())
    for y, e in zip(
        torch.autograd.grad(results, (q, k), grads), torch.autograd.grad(expected, (q, k), grads), strict=True
    ):
        assert_near(y, e)


def test_export_with_dynamic_length():
    module, (q, k) = Rotary(8), queries_and_keys()
    length = torch.export.Dim("length", min=2, max=1 << 20)
    program = torch.export.export(module, (q, k), dynamic_shapes={"q": {2: length}, "k": {2: length}})
    q, k = queries_and_keys(length=23)
    for y, e in zip(program.module()(q, k), module(q, k), strict=True):
        assert_bits(y, e)


def test_frequencies_are_float64_exact_by_default():
    """An angle at position 10^6 is right to 1e-6; float32 frequencies would be off by hundredths of a radian."""
    position = 1_000_000
    x = torch.zeros(1, 1, 1, 128)
    x[..., :64] = 1
    cos, _ = reference.long_double_tables([position], reference.inverse_frequencies(128, 5e5))
    y = Rotary(128, base=5e5)(x, offset=position)
    assert abs(y[0, 0, 0, :64].numpy() - cos[0]).max() < 1e-6
    coarse = Rotary(128, base=5e5, exact=False)(x, offset=position)
    assert abs(coarse[0, 0, 0, :64].numpy() - cos[0]).max() > 1e-3


CONSTRUCTOR_ERRORS = [
    ((8,), {"rotary_dim": 3}, "rotary_dim.*3"),
    ((8,), {"rotary_dim": 10}, "rotary_dim.*(8.*10|10.*8)"),
    ((8,), {"rotary_dim": -2}, "rotary_dim.*-2"),
    ((0,), {}, "head_dim.*0"),
    ((-4,), {}, "head_dim.*-4"),
    ((7,), {}, "even.*7"),
    ((8,), {"base": 0.0}, "base.*0"),
    ((8,), {"base": -1.0}, "base.*-1"),
    ((8,), {"base": math.nan}, "base.*nan"),
    ((8,), {"base": math.inf}, "base.*inf"),
    ((8,), {"seq_len": 0}, "seq_len.*0"),
    ((8,), {"seq_len": -5}, "seq_len.*-5"),
]


@pytest.mark.parametrize(("args", "options", "message"), CONSTRUCTOR_ERRORS, ids=str)
@pytest.mark.parametrize("build", [Rotary, posenc.nn.cpp.Rotary], ids=["python", "cpp"])
def test_constructor_refuses(build, args, options, message):
    with pytest.raises(ValueError, match=f"(Rotary|frequencies): .*{message}"):
        build(*args, **options)


@pytest.mark.parametrize("build", [Rotary, posenc.nn.cpp.Rotary], ids=["python", "cpp"])
def test_constructor_refuses_other_types(build):
    with pytest.raises(TypeError):
        build(8, scaling="yarn")
    with pytest.raises(TypeError):
        build("8")
    with pytest.raises(TypeError):
        build(8, 4)


@pytest.mark.parametrize("learnable", [False, True])
def test_call_refuses(learnable):
    module = Rotary(8, learnable=learnable)
    q, k = queries_and_keys()
    for bad_call, message in [
        (lambda: module(q[0]), r"q|x.*\[4, 5, 8\]"),
        (lambda: module(q[..., :6]), r"8.*\[2, 4, 5, 6\]"),
        (lambda: module(torch.cat([q, q], -1)), r"8.*\[2, 4, 5, 16\]"),
        (lambda: module(q, k[:, :, :4]), r"\[2, 2, 4, 8\]"),
        (lambda: module(q, k, torch.arange(4)), r"positions.*\[4\]"),
        (lambda: Rotary(8, scaling=scaling.DynamicNTK(2.0, 4))(q, k, seq_len=0), "seq_len.*0"),
    ]:
        with pytest.raises(ValueError, match=message):
            bad_call()
    with pytest.raises(TypeError):
        module(q.long(), k.long())


def test_learning_changes_the_frequencies():
    """Descent from perturbed frequencies towards a target rotation."""
    target, module = Rotary(8), Rotary(8, learnable=True)
    with torch.no_grad():
        module.inv_freq.mul_(1.05)
    q, k = queries_and_keys()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = sum((y - e).square().mean() for y, e in zip(module(q, k), target(q, k), strict=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 20
    module.reset_parameters()
    assert_bits(module.inv_freq.detach(), Rotary(8, learnable=True).inv_freq.detach())


def test_weights_pass_between_the_languages():
    module = Rotary(8, learnable=True)
    twin = posenc.nn.cpp.Rotary(8, learnable=True)
    with torch.no_grad():
        module.inv_freq.copy_(torch.tensor([1.0, 0.3, 0.05, 0.002]))
        twin.inv_freq.copy_(module.state_dict()["inv_freq"])
    q, k = queries_and_keys()
    for y, e in zip(twin(q, k), module(q, k), strict=True):
        assert_bits(y, e)
    fresh = Rotary(8, learnable=True)
    fresh.load_state_dict(dict(twin.named_parameters()))
    assert_bits(fresh.inv_freq.detach(), module.inv_freq.detach())


CALLS = {
    "plain": {},
    "offset": {"offset": 4},
    "offset_per_row": {"offset": torch.tensor([1, 7])},
    "positions": {"positions": torch.tensor([4, 0, 2, 2, 9])},
    "seq_len": {"seq_len": 64},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_twin_takes_the_same_call(call):
    options = {"rotary_dim": 6, "interleaved": True, "scaling": scaling.DynamicNTK(2.0, 4)}
    module, twin = Rotary(8, **options), posenc.nn.cpp.Rotary(8, **options)
    q, k = queries_and_keys()
    for y, e in zip(twin(q, k, **call), module(q, k, **call), strict=True):
        assert_bits(y, e)
    assert_bits(twin(q, **call), module(q, **call))


class Block(torch.nn.Module):
    """A projection, the rotation, and scores: what a distributed wrapper meets."""

    def __init__(self, learnable):
        super().__init__()
        self.projection = torch.nn.Linear(8, 16)
        self.rope = Rotary(8, learnable=learnable)

    def forward(self, x):
        q, k = self.projection(x).chunk(2, dim=-1)
        q, k = self.rope(q, k)
        return q @ k.transpose(-1, -2)


@pytest.fixture
def process_group(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=60))
    yield
    dist.destroy_process_group()


def trained_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    return model(x).detach()


@pytest.mark.parametrize("learnable", [False, True])
def test_distributed_data_parallel(process_group, learnable):
    model, x = Block(learnable), torch.randn(2, 4, 5, 8)
    expected = trained_step(copy.deepcopy(model), x)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    torch.testing.assert_close(trained_step(wrapped, x), expected)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("low_precision", [False, True], ids=["float32", "bfloat16"])
def test_fully_sharded(process_group, learnable, low_precision):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, x = Block(learnable), torch.randn(2, 4, 5, 8)
    expected = trained_step(copy.deepcopy(model), x)
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if low_precision else None)
    if learnable:
        fully_shard(model.rope, mesh=mesh)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    tolerance = {"rtol": 0.1, "atol": 0.1} if low_precision else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(trained_step(model, x).float(), expected, **tolerance)
    assert ("rope.inv_freq" in model.state_dict()) == learnable
