"""Attention with [Rotary, CoPE] is the attention module that CoPE is usually shown in, from the same weights."""

import pytest
import torch

import block_reference
import posenc

CASES = {
    "grouped heads": {"heads": 4, "kv_heads": 2},
    "one key head": {"heads": 4, "kv_heads": 1},
    "every head its own, interleaved": {"heads": 4, "kv_heads": 4, "interleaved": True},
    "no output bias": {"heads": 2, "kv_heads": 1, "output_bias": False},
    "positions that saturate": {"heads": 2, "kv_heads": 2, "max_positions": 3},
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


def build(dtype, heads, kv_heads, interleaved=False, output_bias=None, max_positions=8):
    width = 8 * heads
    block = posenc.nn.Attention(
        width,
        heads,
        num_kv_heads=kv_heads,
        encodings=[posenc.nn.Rotary(8, interleaved=interleaved), posenc.nn.CoPE(8, max_positions)],
        dropout=0.1,
        output_dropout=0.1,
        bias=True,
        output_bias=output_bias,
    ).to(dtype)
    with torch.no_grad():
        block.encodings[1].pos_emb.normal_()
    return block.eval(), torch.randn(2, 11, width, dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, dtype):
    options = CASES[case]
    block, x = build(dtype, **options)
    weights = {name: p.detach().clone().requires_grad_() for name, p in block.named_parameters()}
    published_x, x = x.clone().requires_grad_(), x.requires_grad_()
    y = block(x)
    expected = block_reference.published_rotary_cope(
        weights, published_x, options["heads"], options["kv_heads"], options.get("interleaved", False)
    )
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(y, expected, **close)

    grad = torch.randn_like(y)
    computed = torch.autograd.grad(y, [x, *block.parameters()], grad)
    wanted = torch.autograd.grad(expected, [published_x, *weights.values()], grad)
    for name, result, e in zip(["x", *weights], computed, wanted, strict=True):
        torch.testing.assert_close(result, e, **close, msg=lambda text, name=name: f"{name}: {text}")


def test_its_state_dict_has_the_published_parts():
    block, _ = build(torch.float32, 4, 2)
    assert set(block.state_dict()) == {
        *(f"{name}_proj.{part}" for name in "qkvo" for part in ("weight", "bias")),
        "encodings.1.pos_emb",
    }


def test_both_dropouts_act_in_training():
    block, x = build(torch.float32, 4, 2)
    still = block(x)
    moving = block.train()(x)
    assert ((moving == 0).float().mean() - 0.1).abs() < 0.05
    kept = moving != 0
    assert not torch.allclose(moving[kept], still[kept] / 0.9), "weights are dropped too"
