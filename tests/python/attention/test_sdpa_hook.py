"""torch's scaled_dot_product_attention, served by posenc."""

import contextlib
import copy

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import scaled_dot_product_attention as sdpa

import posenc

B, H, G, T, S, D, E = 2, 4, 2, 110, 130, 8, 12


@pytest.fixture(autouse=True)
def inactive():
    assert not posenc.sdpa.is_active()
    yield
    posenc.sdpa.restore()


def inputs(queries=T, keys=S, heads=H, groups=H, dtype=torch.float64):
    shapes = [(B, heads, queries, D), (B, groups, keys, D), (B, groups, keys, E)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def served(fn):
    """Whether one of the autograd nodes that lead to `fn` is posenc's."""
    names, nodes = set(), [fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.add(node.name())
            nodes += [parent for parent, _ in node.next_functions]
    return "AttentionBackward" in names


CALLS = {
    "plain": lambda: (inputs(), {}),
    "causal": lambda: (inputs(T, T), {"is_causal": True}),
    "causal, more keys": lambda: (inputs(), {"is_causal": True}),
    "causal, fewer keys": lambda: (inputs(S, T), {"is_causal": True}),
    "scale": lambda: (inputs(), {"scale": 0.7}),
    "bool mask": lambda: (inputs(), {"attn_mask": torch.rand(B, 1, T, S) > 0.3}),
    "bool mask of all": lambda: (inputs(), {"attn_mask": torch.rand(T, S) > 0.3}),
    "bool mask of keys": lambda: (inputs(), {"attn_mask": torch.rand(B, 1, 1, S) > 0.3}),
    "float mask": lambda: (inputs(), {"attn_mask": torch.randn(H, T, S).double()}),
    "float mask that hides": lambda: (
        inputs(),
        {"attn_mask": torch.zeros(T, S).double().masked_fill(torch.rand(T, S) < 0.3, -torch.inf)},
    ),
    "grouped": lambda: (inputs(heads=H, groups=G), {"enable_gqa": True}),
    "grouped, causal": lambda: (inputs(T, T, heads=H, groups=G), {"enable_gqa": True, "is_causal": True}),
    "three dimensions": lambda: ([x[0].detach().requires_grad_() for x in inputs()], {}),
    "three dimensions, mask": lambda: (
        [x[0].detach().requires_grad_() for x in inputs()],
        {"attn_mask": torch.rand(H, T, S) > 0.3},
    ),
    "five dimensions": lambda: (
        [torch.stack([x, 2 * x]).detach().requires_grad_() for x in inputs()],
        {"attn_mask": torch.rand(T, S) > 0.3},
    ),
    "one query": lambda: (inputs(1, S), {}),
}


def results(tensors, call):
    mask = call.get("attn_mask")
    sources = [*tensors, *([mask] if mask is not None and mask.requires_grad else [])]
    out = sdpa(*tensors, **call)
    torch.manual_seed(5)
    grad = torch.randn(out.shape).bfloat16().to(out.dtype)
    return out, torch.autograd.grad(out, sources, grad)


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients_are_those_of_torch(which, dtype):
    tensors, call = CALLS[which]()
    tensors = [x.detach().to(dtype).requires_grad_() for x in tensors]
    mask = call.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        call["attn_mask"] = mask.to(dtype)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    wide_call = dict(call)
    if mask is not None and mask.dtype != torch.bool:
        wide_call["attn_mask"] = call["attn_mask"].double()
    out, grads = results(wide, wide_call)
    with posenc.sdpa.use():
        ours, our_grads = results(tensors, call)
    assert served(ours.grad_fn) and not served(out.grad_fn)
    bound = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 3e-2}[dtype]
    for actual, expected in zip((ours, *our_grads), (out, *grads), strict=True):
        assert (actual.dtype, actual.shape) == (dtype, expected.shape)
        torch.testing.assert_close(actual.double(), expected, rtol=bound, atol=bound)


def test_gradients_reach_a_float_mask():
    tensors, mask = inputs(), torch.randn(H, T, S, dtype=torch.float64, requires_grad=True)
    _, expected = results(tensors, {"attn_mask": mask})
    with posenc.sdpa.use():
        _, actual = results(tensors, {"attn_mask": mask})
    assert len(actual) == 4
    torch.testing.assert_close(actual[3], expected[3], rtol=1e-11, atol=1e-11)


def test_rows_without_a_key_are_zero():
    tensors, mask = inputs(), torch.rand(T, S) > 0.3
    mask[7] = False
    with posenc.sdpa.use():
        out, grads = results(tensors, {"attn_mask": mask})
    assert (out[:, :, 7] == 0).all() and (grads[0][:, :, 7] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


def test_no_grad_and_inference_mode_are_served():
    q, k, v = (x.detach().float() for x in inputs())
    expected = sdpa(q, k, v)
    for mode in (torch.no_grad, torch.inference_mode):
        with posenc.sdpa.use(), mode(), torch.profiler.profile() as profile:
            actual = sdpa(q, k, v)
        assert any(event.key.startswith("posenc::") for event in profile.key_averages())
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_dropout_drops_its_share_and_follows_the_generator():
    q, k = torch.zeros(1, 1, 200, 4), torch.zeros(1, 1, 300, 4)
    v = torch.eye(300).view(1, 1, 300, 300)
    with posenc.sdpa.use():
        weights = [sdpa(q, k, v, dropout_p=0.25) for _ in range(2) if torch.manual_seed(3)]
    assert torch.equal(*weights)
    assert (weights[0] == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    torch.testing.assert_close(weights[0][weights[0] > 0], torch.tensor(1 / 300 / 0.75).expand((weights[0] > 0).sum()))


NOT_SERVED = {
    "heads broadcast": lambda: ([torch.randn(B, H, 5, D), torch.randn(B, 1, 6, D), torch.randn(B, 1, 6, D)], {}),
    "batch broadcast": lambda: ([torch.randn(B, H, 5, D), torch.randn(1, H, 6, D), torch.randn(1, H, 6, D)], {}),
    "no queries": lambda: ([torch.randn(B, H, 0, D), torch.randn(B, H, 6, D), torch.randn(B, H, 6, D)], {}),
    "mask and causal": lambda: (
        [torch.randn(B, H, 5, D) for _ in range(3)],
        {"attn_mask": torch.rand(5, 5) > 0.2, "is_causal": True},
    ),
    "two dimensions": lambda: ([torch.randn(5, D), torch.randn(6, D), torch.randn(6, D)], {}),
    "mask of five dimensions": lambda: (
        [torch.randn(2, B, H, 5, D) for _ in range(3)],
        {"attn_mask": torch.rand(2, B, H, 5, 5) > 0.2},
    ),
}


@pytest.mark.parametrize("which", NOT_SERVED)
def test_what_posenc_does_not_serve_goes_to_torch(which):
    tensors, call = NOT_SERVED[which]()
    expected = sdpa(*tensors, **call)
    with posenc.sdpa.use():
        actual = sdpa(*tensors, **call)
    assert torch.equal(actual, expected)


REFUSED = {
    "mask of integers": {"attn_mask": torch.ones(5, 5, dtype=torch.int64)},
    "mask of another shape": {"attn_mask": torch.ones(4, 5, dtype=torch.bool)},
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_torch_refuses_is_refused_as_before(which):
    q = torch.randn(B, H, 5, D)
    with pytest.raises(RuntimeError) as expected:
        sdpa(q, q, q, **REFUSED[which])
    with posenc.sdpa.use(), pytest.raises(RuntimeError) as actual:
        sdpa(q, q, q, **REFUSED[which])
    assert str(actual.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_forward_mode_derivatives_and_vmap_are_those_of_torch():
    q, k, v = (torch.randn(H, T, D, dtype=torch.float64) for _ in range(3))
    tangent = torch.randn_like(q)

    def derivatives():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.func.jvp(lambda x: sdpa(x, k, v), (q,), (tangent,))[1]

    def mapped():
        stacked = torch.stack([q, k])
        return torch.func.vmap(lambda x: sdpa(x, k, v))(stacked)

    for compute in (derivatives, mapped):
        expected = compute()
        with posenc.sdpa.use():
            torch.testing.assert_close(compute(), expected)


MODULES = {
    "MultiheadAttention": lambda: torch.nn.MultiheadAttention(32, 4, batch_first=True),
    "TransformerEncoderLayer": lambda: torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
    "TransformerDecoderLayer": lambda: torch.nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("which", MODULES)
def test_modules_of_torch_train_alike(which):
    module = MODULES[which]().double()
    x = torch.randn(B, T, 32, dtype=torch.float64)

    def gradients():
        own = copy.deepcopy(module)
        if which == "MultiheadAttention":
            out = own(x, x, x, need_weights=False, attn_mask=torch.rand(T, T).double())[0]
        elif which == "TransformerDecoderLayer":
            mask = torch.nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
            out = own(x, x, tgt_mask=mask, tgt_is_causal=True)
        else:
            out = own(x, src_key_padding_mask=torch.arange(T).expand(B, T) > 90)
        out[:, :80].square().sum().backward()
        return served(out.grad_fn), [p.grad for p in own.parameters()]

    torch.manual_seed(8)
    before, expected = gradients()
    torch.manual_seed(8)
    with posenc.sdpa.use():
        within, actual = gradients()
    assert (before, within) == (False, True)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-9)


def test_autocast_runs_in_its_dtype():
    q, k, v = (x.detach().float() for x in inputs())
    with posenc.sdpa.use(), torch.autocast("cpu", torch.bfloat16):
        out = sdpa(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), sdpa(q, k, v), rtol=0.03, atol=0.03)


def test_compiled_graphs_hold_the_op():
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    def attend(q, k, v):
        return sdpa(q, k, v, is_causal=True) * 2

    q, k, v = (x.detach().float().requires_grad_() for x in inputs())
    expected = attend(q, k, v)
    with posenc.sdpa.use():
        backend = aot_autograd(fw_compiler=keep)
        compiled = torch.compile(attend, backend=backend, fullgraph=True)
        actual = compiled(q, k, v)
        (grad,) = torch.autograd.grad(actual.sum(), q)
    assert any("posenc" in str(node.target) for graph in graphs for node in graph.graph.nodes)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), q)[0], rtol=1e-5, atol=1e-5)


# Turning it on and off


def is_served():
    return served(sdpa(*inputs()).grad_fn)


def test_it_acts_between_activate_and_restore():
    assert not is_served()
    for _ in range(2):
        posenc.sdpa.activate()
        posenc.sdpa.activate()
        assert is_served() and posenc.sdpa.is_active()
        posenc.sdpa.restore()
        assert not is_served() and not posenc.sdpa.is_active()
        posenc.sdpa.restore()


def test_blocks_nest_and_end_with_errors():
    with contextlib.suppress(ZeroDivisionError), posenc.sdpa.use():
        with posenc.sdpa.use():
            assert is_served()
        assert is_served()
        _ = 1 / 0
    assert not is_served()


@pytest.mark.skipif(not hasattr(torch.nn.attention, "activate_flash_attention_impl"), reason="torch has no registry")
def test_it_is_an_implementation_of_the_registry_of_torch():
    attention = torch.nn.attention
    assert "posenc" in attention.list_flash_attention_impls()
    attention.activate_flash_attention_impl("posenc")
    assert is_served() and attention.current_flash_attention_impl() == "posenc"
    with posenc.sdpa.use():
        pass
    assert is_served()
    attention.restore_flash_attention_impl()
    assert not is_served() and not posenc.sdpa.is_active()

    class Other:
        removed = False

        def remove(self):
            self.removed = True

    attention.register_flash_attention_impl("other", register_fn=Other)
    attention.activate_flash_attention_impl("other")
    with posenc.sdpa.use():
        assert is_served()
    assert not is_served() and attention.current_flash_attention_impl() == "other"
    attention.restore_flash_attention_impl()
