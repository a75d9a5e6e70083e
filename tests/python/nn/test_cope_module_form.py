"""CoPE's forward, the module that the paper lists: against the listing, against attend, and its arithmetic."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contextual_reference
from contextual_calls import COPE_VARIANTS, HEADS, WIDTH, assert_equals, heads_of, nn, normal, with_parameters
from tolerances import DTYPES, assert_bits, assert_near


def masked_logits(q, k, hidden=-math.inf):
    """q . k / sqrt(D) plus an additive causal mask."""
    mask = torch.full((q.shape[2], k.shape[2]), hidden, dtype=q.dtype).triu(1 + k.shape[2] - q.shape[2])
    groups = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return q @ groups.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask


def by_hand(q, k, v, position_logits):
    """The attention module in which CoPE is usually shown: S = S + cope(q, S), then softmax."""
    scores = masked_logits(q, k)
    weights = torch.softmax(scores + position_logits(q, scores), dim=-1)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


@pytest.mark.parametrize("max_positions", [2, 4, 20])
@pytest.mark.parametrize("num_heads", [None, HEADS], ids=["shared", "per_head"])
def test_reproduces_the_listing(max_positions, num_heads):
    module = with_parameters(nn.CoPE(WIDTH, max_positions, num_heads=num_heads))
    q, k, v = (x.requires_grad_() for x in heads_of(7, 7))

    def listing(query, attn_logits):
        return contextual_reference.cope_listing(query, attn_logits, module.pos_emb)

    assert_equals(by_hand(q, k, v, module), by_hand(q, k, v, listing), (q, k, v, module.pos_emb))
    scores = masked_logits(q, k)
    assert_near(module(q, scores), listing(q, scores).detach(), scale=10)


@pytest.mark.parametrize("q_len", [7, 3, 1])
@pytest.mark.parametrize("variant", [name for name in COPE_VARIANTS if "from" not in name])
def test_equals_the_fused_form(q_len, variant):
    module = with_parameters(nn.CoPE(WIDTH, 4, **COPE_VARIANTS[variant]))
    q, k, v = (x.requires_grad_() for x in heads_of(q_len, 7))
    assert_equals(by_hand(q, k, v, module), module.attend(q, k, v), (q, k, v, *module.parameters()))


def test_equals_the_fused_form_with_gates_of_their_own():
    module = with_parameters(nn.CoPE(WIDTH, 4, gate="key", num_heads=HEADS, gate_bias=0.5))
    inputs = [x.requires_grad_() for x in (*heads_of(7, 7), normal(2, 2, 7, WIDTH))]
    q, k, v, gate_key = inputs
    by_module = by_hand(q, k, v, lambda q, _: module(q, masked_logits(q, gate_key)))
    assert_equals(by_module, module.attend(q, k, v, gate_key=gate_key), (*inputs, *module.parameters()))


@pytest.mark.parametrize("hidden", [-1e9, torch.finfo(torch.float64).min], ids=["-1e9", "lowest"])
def test_any_very_negative_mask_hides(hidden):
    module, (q, k, _) = with_parameters(nn.CoPE(WIDTH, 4)), heads_of(5, 5)
    assert_bits(module(q, masked_logits(q, k, hidden)), module(q, masked_logits(q, k)))


def ruler(max_positions, dtype=torch.float32):
    """Entry p of the table is p, so that a query of 1 reads positions."""
    module = nn.CoPE(1, max_positions).to(dtype)
    with torch.no_grad():
        module.pos_emb.copy_(torch.arange(max_positions))
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_sums_of_gates_are_wide(dtype, autocast):
    """A sum in bfloat16 stalls at 256."""
    query, logits = torch.ones(1, 1, 1, 1, dtype=dtype), torch.zeros(1, 1, 1, 2048, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        p = ruler(2000)(query, logits)
    assert p.dtype == dtype
    assert_bits(p[0, 0, 0, ::256].float(), torch.arange(1024.0, 0.0, -128.0))


def test_positions_do_not_grow_towards_the_query():
    logits = 3 * torch.randn(2, 3, 5, 40)
    p = ruler(12)(torch.ones(2, 3, 5, 1), logits)
    assert (p.diff(dim=-1) <= 0).all()
    assert p.max() == 11, "clamped"
    assert_near(p[..., -1], logits[..., -1].double().sigmoid())


@pytest.mark.parametrize("where", ["query", "attn_logits"])
def test_mixed_dtypes(where):
    """16-bit queries with float32 logits, and the other way round: results have the dtype of the logits."""
    module, query, logits = (
        with_parameters(nn.CoPE(WIDTH, 4), torch.float32),
        normal(1, 2, 3, WIDTH),
        normal(1, 2, 3, 5),
    )
    query = query.to(torch.bfloat16 if where == "query" else torch.float32)
    logits = logits.to(torch.bfloat16 if where == "attn_logits" else torch.float32)
    expected = contextual_reference.cope_listing(query.double(), logits.double(), module.pos_emb.double())
    assert_near(module(query, logits), expected.detach(), scale=4)


def test_slope_at_whole_positions_is_the_right_one():
    """Gates of exactly 1: ceiling and floor agree, and would give no slope."""
    module = nn.CoPE(1, 6).double()
    with torch.no_grad():
        module.pos_emb.copy_(torch.tensor([0.0, 1.0, 4.0, 9.0, 16.0, 25.0]))
    logits = torch.full((1, 1, 1, 3), 40.0).double().requires_grad_()
    assert torch.sigmoid(logits.detach()).eq(1).all()
    (grad,) = torch.autograd.grad(module(torch.ones(1, 1, 1, 1).double(), logits)[0, 0, 0, 0], logits)
    gate = torch.sigmoid(torch.tensor(40.0).double())
    assert_bits(grad, ((16 - 9) * gate * (1 - gate)).expand(1, 1, 1, 3).clone())


@pytest.mark.parametrize("options", [{}, {"num_heads": 2, "gate_bias": 0.2, "scale_position_logits": True}], ids=str)
def test_derivatives(options):
    module = with_parameters(nn.CoPE(3, 4, **options))
    names = [name for name, _ in module.named_parameters()]

    def run(query, logits, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (query, logits)).sin()

    inputs = [normal(1, 2, 3, 3), normal(1, 2, 3, 4), *(p.detach().clone() for p in module.parameters())]
    inputs = [x.requires_grad_() for x in inputs]
    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)


def test_transforms():
    module = with_parameters(nn.CoPE(WIDTH, 4, num_heads=2, gate_bias=0.1))
    query, logits = normal(3, 2, 2, 4, WIDTH), normal(3, 2, 2, 4, 5)
    batched = torch.func.vmap(module)(query, logits)
    assert_near(batched, torch.stack([module(q, s) for q, s in zip(query, logits, strict=True)]).detach())
    tables = normal(3, 2, WIDTH, 4)

    def with_table(table):
        return torch.func.functional_call(module, {"pos_emb": table}, (query[0], logits[0]))

    assert_near(torch.func.vmap(with_table)(tables), torch.stack([with_table(t) for t in tables]).detach())


def test_registration():
    """Torch's own checks of schema, autograd, fake tensors and dynamic shapes."""
    args = (torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 6), torch.randn(1, 5, 4))
    for options in ({}, {"gate_bias": torch.randn(4, requires_grad=True), "scale_position_logits": True}):
        wanted = tuple(x.clone().requires_grad_() for x in args)
        torch.library.opcheck(torch.ops.posenc._cope_position_logits.default, wanted, options)


def test_compiles_and_exports(fresh_compiler):
    module, query, logits = (
        with_parameters(nn.CoPE(8, 4), torch.float32),
        torch.randn(1, 2, 3, 8),
        torch.randn(1, 2, 3, 3),
    )
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_near(compiled(query, logits), module(query, logits).detach())
    program = torch.export.export(module, (query, logits))
    assert_bits(program.module()(query, logits), module(query, logits))
