"""permute_rotary_weight: checkpoints of either pair layout in a model of the other."""

import pytest
import torch
from torch.autograd import gradcheck

import posenc
import reference
from tolerances import DTYPES, assert_bits

permute = posenc.ops.permute_rotary_weight


def permuted_rows(weight, num_heads, to, rotary_dim=None):
    """Row by row: half[k] = inter[2k], half[k + R/2] = inter[2k+1]; rows R..D-1 stay."""
    head_dim = len(weight) // num_heads
    pairs = (head_dim if rotary_dim is None else rotary_dim) // 2
    out = weight.clone()
    for head in range(num_heads):
        for k in range(pairs):
            halves, neighbours = reference.pair_columns(k, pairs, False), reference.pair_columns(k, pairs, True)
            source, target = (neighbours, halves) if to == "half" else (halves, neighbours)
            for s, t in zip(source, target, strict=True):
                out[head * head_dim + t] = weight[head * head_dim + s]
    return out


@pytest.mark.parametrize("to", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("num_heads", "head_dim", "rotary_dim"), [(3, 8, None), (1, 2, None), (2, 10, 6), (2, 5, 0)])
def test_rows(num_heads, head_dim, rotary_dim, dtype, to):
    for rest in ((), (7,), (3, 4)):
        weight = torch.randn(num_heads * head_dim, *rest).mul(50).to(dtype)
        kept = weight.clone()
        result = permute(weight, num_heads, to, rotary_dim=rotary_dim)
        assert result.dtype == dtype
        expected = permuted_rows(weight.float(), num_heads, to, rotary_dim)
        assert_bits(result.float(), expected)
        assert_bits(weight.float(), kept.float())
        other = "interleaved" if to == "half" else "half"
        assert_bits(permute(result, num_heads, other, rotary_dim=rotary_dim).float(), weight.float())


def test_half_is_the_default():
    assert permute(torch.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert permute(torch.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert permute(torch.arange(8), 1, "interleaved").tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


class TinyAttention(torch.nn.Module):
    def __init__(self, head_dim, interleaved, rotary_dim):
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = torch.nn.Linear(12, 4 * head_dim)
        self.k_proj = torch.nn.Linear(12, 2 * head_dim)
        self.v_proj = torch.nn.Linear(12, 2 * head_dim)
        self.rope = posenc.nn.Rotary(head_dim, rotary_dim=rotary_dim, interleaved=interleaved)

    def forward(self, x):
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.rope(q, k)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, None), (10, 6)])
@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_an_attention_in_the_other_layout_gives_the_same(to, head_dim, rotary_dim):
    source = TinyAttention(head_dim, to == "half", rotary_dim).double()
    target = TinyAttention(head_dim, to == "interleaved", rotary_dim).double()
    weights = source.state_dict()
    target.load_state_dict(weights)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    expected = source(x)
    assert (target(x) - expected).abs().max() > 1e-3, "the weights fit, the numbers do not"
    for name, heads in (("q_proj", 4), ("k_proj", 2)):
        for part in ("weight", "bias"):
            entry = f"{name}.{part}"
            weights[entry] = permute(weights[entry], heads, to, rotary_dim=rotary_dim)
    target.load_state_dict(weights)
    torch.testing.assert_close(target(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("to", ["half", "interleaved"])
def test_gradients(to):
    weight = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w: permute(w, 2, to, rotary_dim=4), (weight,))


def test_strides_meta_and_compile(fresh_compiler):
    weight = torch.randn(5, 16).T
    expected = permuted_rows(weight, 2, "half")
    assert_bits(permute(weight, 2), expected)
    assert permute(weight.to("meta"), 2).shape == weight.shape
    compiled = torch.compile(lambda w: permute(w, 2), fullgraph=True, backend="aot_eager")
    assert_bits(compiled(weight), expected)
    torch.library.opcheck(torch.ops.posenc.permute_rotary_weight.default, (weight, 2, "half"))


@pytest.mark.parametrize("call", [permute, torch.ops.posenc.permute_rotary_weight], ids=["function", "op"])
def test_errors(call):
    weight = torch.randn(12, 3)
    for arguments, options, message in (
        ((weight, 5), {}, r"num_heads.*5.*\[12, 3\]"),
        ((weight, 0), {}, "num_heads.*0"),
        ((weight, -2), {}, "num_heads.*-2"),
        ((weight, 4), {}, "even.*3"),
        ((weight, 2, "neox"), {}, "'half' or 'interleaved'.*'neox'"),
        ((weight, 2, "half"), {"rotary_dim": 3}, "rotary_dim.*even.*3"),
        ((weight, 2, "half"), {"rotary_dim": 8}, "rotary_dim.*6.*8"),
        ((weight, 2, "half"), {"rotary_dim": -2}, "rotary_dim.*-2"),
        ((torch.tensor(1.0), 1), {}, "weight"),
    ):
        with pytest.raises(ValueError, match=f"permute_rotary_weight: .*{message}"):
            call(*arguments, **options)
