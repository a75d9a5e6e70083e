"""How the attention ops are registered: schemas, opcheck, meta, compile, export, torch.func, autocast."""

import pytest
import torch
import torch._dynamo.testing

import posenc
from attention_cases import CASES, ONE_OF_EACH, finite
from devices import moved
from tolerances import assert_bits

one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)

TERMS = (
    "Tensor? gate_key=None, Tensor? gate_bias=None, Tensor? alibi_slopes=None, Tensor? distance_bias=None,"
    " Tensor? bias=None, Tensor? log_decay=None, Tensor? sinks=None, Tensor? grid_bias=None,"
    " Tensor? grid_rel_y=None, Tensor? grid_rel_x=None, Tensor? key_mask=None, Tensor? attn_mask=None,"
    " Tensor? segment_ids=None, Tensor? q_segment_ids=None, Tensor? block_ids=None, Tensor? q_positions=None,"
    " Tensor? k_positions=None, Tensor? q_start=None, float? scale=None, int? window=None, int? window_left=None,"
    ' int? window_right=None, float? softcap=None, str softcap_on="content", bool scale_position_logits=False,'
    " float dropout_p=0., float? grid_rel_scale=None"
)
SCHEMAS = {
    "attention": "Tensor query, Tensor key, Tensor value, *, bool is_causal=False, Tensor? q_far=None,"
    f" Tensor? k_far=None, Tensor? rel_k=None, Tensor? rel_query=None, Tensor? rel_v=None,"
    f" Tensor? rel_q=None, Tensor? pos_emb=None, {TERMS}, int threshold=0,"
    " Tensor? fire_rate=None, Tensor? fire_norm=None, Tensor? fire_offset=None, Tensor? fire_slope=None,"
    " Tensor? fire_knots=None",
    "relative_attention": "Tensor query, Tensor key, Tensor value, Tensor? rel_k=None,"
    " Tensor? rel_v=None, *, bool is_causal=False, Tensor? rel_query=None, Tensor? rel_q=None,"
    " int? max_distance_left=None, int? max_distance_right=None,"
    f' str beyond="clip", {TERMS}',
    "cope_attention": f"Tensor query, Tensor key, Tensor value, Tensor pos_emb, *, {TERMS}",
    "piecewise_attention": "Tensor q_near, Tensor k_near, Tensor q_far, Tensor k_far, Tensor value, int threshold, *,"
    f" bool is_causal=True, {TERMS}",
}


@pytest.mark.parametrize("op", SCHEMAS)
def test_schema(op):
    dispatcher_op = getattr(torch.ops.posenc, op).default
    assert str(dispatcher_op._schema) == f"posenc::{op}({SCHEMAS[op]}) -> (Tensor out, Tensor lse)"
    for tag in (torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded):
        assert tag in dispatcher_op.tags


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("gradients", [False, True])
def test_opcheck(case, gradients):
    tensors = {name: x.requires_grad_(gradients) for name, x in case.tensors(torch.float32).items()}
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    if gradients or case in ONE_OF_EACH:  # without gradients the graph is one node, whatever the options
        tests += ("test_aot_dispatch_dynamic",)
    torch.library.opcheck(case.dispatcher_op, (), tensors | case.dispatcher_options, test_utils=tests)


@one_of_each
def test_opcheck_of_dropout_leaves_nothing_but_the_drawn_numbers(case):
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        case.dispatcher_op,
        (),
        case.tensors(torch.float32) | case.dispatcher_options | {"dropout_p": 0.5},
        test_utils=tests,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meta_tensors(case):
    tensors = case.tensors(torch.bfloat16)
    out, lse = case.run(moved(tensors, "meta"))
    real_out, real_lse = case.run(tensors)
    for result, real in ((out, real_out), (lse, real_lse)):
        assert (result.shape, result.dtype, result.stride()) == (real.shape, real.dtype, real.stride())


@one_of_each
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_graph_breaks(case, dynamic):
    def step(**tensors):
        out, lse = getattr(posenc.ops, case.op)(**case.call(tensors), **case.options, return_lse=True)
        return out * 2, lse + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    tensors = {name: x.requires_grad_() for name, x in case.tensors(torch.float32).items()}
    results, expected = compiled(**tensors), step(**tensors)
    for result, e in zip(results, expected, strict=True):
        assert_bits(result, e)
    grads = [torch.randn_like(x) for x in expected]
    for result, e in zip(
        torch.autograd.grad(results, list(tensors.values()), grads),
        torch.autograd.grad(expected, list(tensors.values()), grads),
        strict=True,
    ):
        assert_bits(result, e)


def test_one_graph_serves_many_lengths():
    count = torch._dynamo.testing.CompileCounter()
    step = torch.compile(
        lambda q, k, s: posenc.ops.attention(q, k, k, is_causal=True, alibi_slopes=s), dynamic=True, backend=count
    )
    slopes = torch.rand(4)
    for queries, keys in ((5, 7), (6, 9), (11, 12), (30, 31)):
        q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 2, keys, 8)
        assert_bits(step(q, k, slopes), posenc.ops.attention(q, k, k, is_causal=True, alibi_slopes=slopes))
    assert count.frame_count == 1


@one_of_each
def test_export(case):
    class Step(torch.nn.Module):
        def forward(self, tensors):
            return getattr(posenc.ops, case.op)(**case.call(tensors), **case.options)

    tensors = case.tensors(torch.float32)
    program = torch.export.export(Step(), (tensors,))
    assert any(f"posenc.{case.op}" in str(node.target) for node in program.graph.nodes), "the op stays whole"
    assert_bits(program.module()(tensors), Step()(tensors))


@one_of_each
def test_torch_func(case):
    tensors = case.tensors()
    names = list(tensors)

    def loss(*values):
        out, lse = case.run(dict(zip(names, values, strict=True)))
        return out.sin().sum() + finite(lse).sum()

    leaves = [x.requires_grad_() for x in tensors.values()]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    plain = [x.detach() for x in leaves]
    for result, e in zip(torch.func.grad(loss, argnums=tuple(range(len(plain))))(*plain), expected, strict=True):
        torch.testing.assert_close(result, e)
    tangents = [torch.randn_like(x) for x in plain]
    _, derivative = torch.func.jvp(loss, tuple(plain), tuple(tangents))
    torch.testing.assert_close(derivative, sum((e * t).sum() for e, t in zip(expected, tangents, strict=True)))


@one_of_each
def test_vmap(case):
    samples = [case.tensors() for _ in range(3)]
    stacked = {name: torch.stack([s[name] for s in samples]) for name in samples[0]}
    out, lse = torch.func.vmap(lambda tensors: case.run(tensors))(stacked)
    for i, sample in enumerate(samples):
        expected_out, expected_lse = case.run(sample)
        torch.testing.assert_close(out[i], expected_out)
        torch.testing.assert_close(lse[i], expected_lse)


@one_of_each
def test_vectorised_jacobian(case):
    tensors = case.tensors()
    first = next(iter(tensors))

    def call(x):
        return case.run(tensors | {first: x})[0].sum((0, 1, 2))

    plain = torch.autograd.functional.jacobian(call, tensors[first])
    vectorised = torch.autograd.functional.jacobian(call, tensors[first], vectorize=True)
    torch.testing.assert_close(vectorised, plain)


@one_of_each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_queries_keys_and_values(case, dtype):
    tensors = case.tensors(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        out, lse = case.run(tensors)
        mixed = case.run({n: x.to(dtype) if n in ("key", "k_near", "k_far") else x for n, x in tensors.items()})
    cast = {n: x if n in case.tables and n != "gate_key" else x.to(dtype) for n, x in tensors.items()}
    expected_out, expected_lse = case.run(cast)
    assert out.dtype == dtype
    for result, e in ((out, expected_out), (lse, expected_lse), (mixed[0], expected_out)):
        assert_bits(result, e)


def test_autocast_leaves_float64_alone_as_scaled_dot_product_attention_does():
    q = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    with torch.autocast("cpu"):
        ours, torchs = posenc.ops.attention(q, q, q), torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert ours.dtype == torchs.dtype


@one_of_each
def test_default_dtype_and_device_do_not_matter(case):
    tensors = case.tensors(torch.float32)
    expected, _ = case.run(tensors)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        result, _ = case.run(tensors)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert_bits(result, expected)


def test_saved_for_backward_is_inputs_out_and_lse():
    """Nothing of Tq x Tk elements is kept between forward and backward."""
    q, k = torch.randn(1, 2, 64, 4, requires_grad=True), torch.randn(1, 2, 96, 4, requires_grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        posenc.ops.attention(q, k, k, is_causal=True, dropout_p=0.5)
    assert sizes and max(sizes) <= 96 * 8


def test_scores_for_inspection_are_not_autocast():
    for case in ONE_OF_EACH:
        tensors = {
            name: x for name, x in case.tensors(torch.float32).items() if name not in ("value", "rel_v", "sinks")
        }
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = case.logits(tensors)
        assert_bits(scores, case.logits(tensors))
