"""Values of the attention ops against one-query-at-a-time sums in float64: every call, dtype and layout."""

import pytest
import torch

import layouts
import posenc
from attention_cases import CASES, GROUPS, HEADS, ONE_OF_EACH, AttentionCase
from devices import each_device
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = [pytest.mark.kernels, each_device]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def wide(tensors):
    return {name: x.double() for name, x in tensors.items()}


@every_case
@every_dtype
def test_values(case, dtype):
    tensors = case.tensors(dtype)
    out, lse = case.run(tensors)
    expected_out, expected_lse = case.expected(wide(tensors))
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(out, expected_out, scale=4)
    assert_near(lse, expected_lse, scale=4)


@one_of_each
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_any_strides(case, layout):
    tensors = case.tensors(torch.float32, lambda shape, dtype: layouts.make(layout, shape, dtype))
    out, lse = case.run(tensors)
    plain_out, plain_lse = case.run({name: x.contiguous() for name, x in tensors.items()})
    torch.testing.assert_close(out, plain_out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, plain_lse, rtol=1e-6, atol=1e-6)


@one_of_each
def test_the_output_keeps_the_order_of_the_strides_of_query(case):
    first = "q_near" if case.op == "piecewise_attention" else "query"
    tensors = case.tensors(torch.float32)
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)):
        back = [order.index(d) for d in range(4)]
        tensors[first] = tensors[first].permute(order).contiguous().permute(back)
        out, _ = case.run(tensors)
        assert out.permute(order).is_contiguous()


@one_of_each
def test_inputs_stay_as_they_are(case):
    tensors = case.tensors(torch.float32)
    before = {name: x.clone() for name, x in tensors.items()}
    case.run(tensors)
    for name, x in tensors.items():
        assert_bits(x, before[name])


@one_of_each
def test_grouped_heads_equal_repeated_ones(case):
    tensors = case.tensors(torch.float64)
    repeated = {
        name: x.repeat_interleave(HEADS // GROUPS, 1) if name in ("key", "value", "k_near", "k_far", "gate_key") else x
        for name, x in tensors.items()
    }
    out, lse = case.run(tensors)
    same_out, same_lse = case.run(repeated)
    torch.testing.assert_close(out, same_out)
    torch.testing.assert_close(lse, same_lse)


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"), [(0, 2, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0), (1, 0, 2, 2)]
)
@pytest.mark.parametrize("op", ["attention", "relative_attention", "cope_attention", "piecewise_attention"])
def test_empty_tensors(op, batch, heads, queries, keys):
    q = torch.randn(batch, heads, queries, 4, requires_grad=True)
    k = torch.randn(batch, max(heads, 1), keys, 4, requires_grad=True)
    v = torch.randn(batch, max(heads, 1), keys, 3, requires_grad=True)
    call = {
        "attention": lambda: posenc.ops.attention(q, k, v, return_lse=True),
        "relative_attention": lambda: posenc.ops.relative_attention(q, k, v, torch.randn(3, 4), return_lse=True),
        "cope_attention": lambda: posenc.ops.cope_attention(q, k, v, torch.randn(1, 4, 5), return_lse=True),
        "piecewise_attention": lambda: posenc.ops.piecewise_attention(q, k, q, k, v, 2, return_lse=True),
    }[op]
    out, lse = call()
    assert out.shape == (batch, heads, queries, 3) and lse.shape == (batch, heads, queries)
    assert_bits(out, torch.zeros_like(out))
    assert_bits(lse, torch.full_like(lse, -torch.inf))
    out.sum().backward()
    for x in (q, k, v):
        assert_bits(x.grad, torch.zeros_like(x))


def test_the_scores_of_every_op_are_what_it_sums_with():
    for case in CASES:
        if case.options.keys() & {"max_distance", "beyond"}:  # of relative_attention alone
            continue
        tensors = case.tensors()
        value = tensors.pop("value")
        rel_v, sinks = tensors.pop("rel_v", None), tensors.pop("sinks", None)
        logits = case.logits(tensors)
        weights = torch.nan_to_num(logits.softmax(-1), nan=0.0)
        expected = weights @ value.repeat_interleave(2, 1)
        if rel_v is None and sinks is None:
            out, lse = case.run(tensors | {"value": value})
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(lse, logits.logsumexp(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tables_may_be_wider_than_half_width_inputs(dtype):
    for case in ONE_OF_EACH:
        tensors = case.tensors(torch.float32)
        mixed = {name: x if name in case.tables and name != "gate_key" else x.to(dtype) for name, x in tensors.items()}
        out, lse = case.run(mixed)
        expected_out, expected_lse = case.expected(wide(mixed))
        assert_near(out, expected_out, scale=4)
        assert_near(lse, expected_lse, scale=4)


def test_long_rows_in_blocks_of_queries_equal_short_ones():
    """More scores than exist at a time, so that several blocks are walked, forward and backward."""
    q, k, v = (torch.randn(1, 2, 1500, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(1, 2, 1500, 1, dtype=torch.float64, requires_grad=True)
    leaves = (q, k, v, slopes, rows)
    out, lse = posenc.ops.attention(q, k, v, is_causal=True, alibi_slopes=slopes, bias=rows, return_lse=True)
    logits = torch.ops.posenc._attention_logits(q, k, is_causal=True, alibi_slopes=slopes, bias=rows)
    expected = logits.softmax(-1) @ v
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, logits.logsumexp(-1))
    grad = torch.randn_like(out)
    for result, e in zip(
        torch.autograd.grad((out, lse), leaves, (grad, lse.detach())),
        torch.autograd.grad((expected, logits.logsumexp(-1)), leaves, (grad, lse.detach())),
        strict=True,
    ):
        torch.testing.assert_close(result, e)


def test_decoding_a_key_at_a_time_equals_the_whole_pass():
    for case in CASES:
        by_place = {"q_positions", "k_positions", "q_start", "segment_ids", "block_ids", "key_mask", "attn_mask"}
        if case.options.keys() & by_place or case.tables.keys() & {"bias", "rel_query"} or "by_query" in case.name:
            continue
        square = AttentionCase(case.name, case.op, case.tables, case.options | {"is_causal": True}, 7, 7)
        if case.op == "cope_attention":
            square = AttentionCase(case.name, case.op, case.tables, case.options, 7, 7)
        tensors = square.tensors()
        out, lse = square.run(tensors)
        for t in range(7):
            last = {
                name: x[:, :, t : t + 1] if name in ("query", "q_near", "q_far") else x[:, :, : t + 1]
                for name, x in tensors.items()
                if name not in case.tables or name in ("gate_key", "log_decay")
            }
            step_out, step_lse = square.run({name: last.get(name, x) for name, x in tensors.items()})
            torch.testing.assert_close(step_out[:, :, 0], out[:, :, t])
            torch.testing.assert_close(step_lse[:, :, 0], lse[:, :, t])


def test_parts_of_a_key_range_merge_by_lse():
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))
    whole = posenc.ops.attention(q, k, v)
    (left, a), (right, b) = (
        posenc.ops.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(0, 4), slice(4, 9))
    )
    total = torch.logaddexp(a, b)
    merged = left * (a - total).exp().unsqueeze(-1) + right * (b - total).exp().unsqueeze(-1)
    torch.testing.assert_close(merged, whole)
