"""DecomposedRelative and GridRelativeBias: published numbers, layers and errors. What transformers' layers compute is
in hf/test_grid_hf.py."""

import pytest
import torch

import posenc
from devices import each_device
from tolerances import assert_near

nn = posenc.nn


def operands(tokens, heads=4, width=8):
    return tuple(torch.randn(2, heads, tokens, width) for _ in range(3))


def test_distances_of_swin_v2():
    """16 sigmoid(mlp(u)) where the MLP passes u of y on: u is 0.366512 one token away, 1.056642 seven away."""
    module = nn.GridRelativeBias(1, (8, 8), kind="cpb")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.mlp[0].weight[0, 0] = 1.0
        module.mlp[2].weight[0, 0] = 1.0
    bias = module.bias(64).unflatten(2, (8, 8))[0]
    for query, expected in ((8, 0.366512), (56, 1.056642), (0, 0.0)):
        torch.testing.assert_close((bias[query, 0, 0] / 16).logit().item(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(bias[0, 1, 0].item(), 8.0)  # ReLU leaves nothing of negative distances


def test_the_table_of_swin_goes_by_query_less_key():
    module = nn.GridRelativeBias(1, (2, 3))
    with torch.no_grad():
        module.table.copy_(torch.arange(15.0)[:, None])
    bias = module.bias(6)[0]
    assert bias[0].tolist() == [7.0, 6.0, 5.0, 2.0, 1.0, 0.0]
    assert bias[5].tolist() == [14.0, 13.0, 12.0, 9.0, 8.0, 7.0]


def test_the_class_token_of_beit():
    module = nn.GridRelativeBias(1, (2, 2), class_token=True)
    with torch.no_grad():
        module.table.copy_(torch.arange(12.0)[:, None])
    bias = module.bias(5)[0]
    assert bias[0].tolist() == [11.0, 9.0, 9.0, 9.0, 9.0]
    assert bias[:, 0].tolist() == [11.0, 10.0, 10.0, 10.0, 10.0]
    assert bias[1, 1:].tolist() == [4.0, 3.0, 1.0, 0.0]


@pytest.mark.parametrize("class_token", [False, True])
def test_last_queries_are_those_of_the_whole(class_token):
    module, tokens = nn.GridRelativeBias(4, (3, 4), class_token=class_token), 12 + class_token
    q, k, v = operands(tokens)
    assert_near(module.attend(q[:, :, -3:], k, v), module.attend(q, k, v)[:, :, -3:], scale=4)


@each_device
def test_places_that_are_given_equal_those_of_the_window():
    q, k, v = operands(6)
    places = torch.tensor([[4, 4, 4, 5, 5, 5], [9, 10, 11, 9, 10, 11]])
    decomposed = nn.DecomposedRelative(8, (2, 3))
    with torch.no_grad():
        decomposed.rel_y.normal_()
        decomposed.rel_x.normal_()
    for module in (nn.GridRelativeBias(4, (2, 3)), nn.GridRelativeBias(4, (2, 3), kind="cpb"), decomposed):
        assert_near(module.attend(q, k, v, k_positions=places), module.attend(q, k, v), scale=4)


def test_tables_are_zeros_and_add_nothing_at_first():
    q, k, v = operands(6)
    assert_near(nn.DecomposedRelative(8, (2, 3)).attend(q, k, v), posenc.ops.attention(q, k, v))


@pytest.mark.parametrize(
    "encoding",
    [
        lambda nn: nn.GridRelativeBias(4, (2, 3)),
        lambda nn: nn.GridRelativeBias(4, (2, 3), kind="cpb"),
        lambda nn: nn.GridRelativeBias(4, (1, 5), class_token=True),
        lambda nn: nn.DecomposedRelative(8, (3, 2)),
    ],
)
def test_a_layer_attends_with_it(encoding):
    torch.manual_seed(0)
    module = encoding(nn)
    layer = nn.Attention(32, 4, is_causal=False, encodings=[module])
    x = torch.randn(2, 6, 32)
    heads = [proj(x).unflatten(-1, (4, 8)).transpose(1, 2) for proj in (layer.q_proj, layer.k_proj, layer.v_proj)]
    assert_near(layer(x), layer.o_proj(module.attend(*heads).transpose(1, 2).flatten(2)), scale=4)
    torch.manual_seed(0)
    twin = posenc.nn.cpp.Attention(32, 4, is_causal=False, encodings=[encoding(posenc.nn.cpp)])
    with torch.no_grad():
        for theirs, own in zip(twin.parameters(), layer.parameters(), strict=True):
            theirs.copy_(own)
    assert_near(twin(x), layer(x))


BAD = {
    "no heads": (lambda nn: nn.GridRelativeBias(0, (2, 2)), "expected num_heads to be at least 1, but got 0"),
    "one number": (
        lambda nn: nn.GridRelativeBias(2, (2,)),
        r"expected window to be \(h, w\), both at least 1, but got",
    ),
    "no row": (lambda nn: nn.GridRelativeBias(2, (0, 2)), r"expected window to be \(h, w\), both at least 1, but got"),
    "unknown kind": (lambda nn: nn.GridRelativeBias(2, (2, 2), kind="mlp"), "kind"),
    "class token of the MLP": (
        lambda nn: nn.GridRelativeBias(2, (2, 2), kind="cpb", class_token=True),
        "expected class_token with kind 'table' alone, whose table has entries for it, but got kind 'cpb'",
    ),
    "no width": (lambda nn: nn.DecomposedRelative(0, (2, 2)), "expected head_dim to be at least 1, but got 0"),
    "three axes": (lambda nn: nn.DecomposedRelative(8, (2, 2, 2)), r"expected size to be \(h, w\), both at least 1"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("package", [nn, nn.cpp], ids=["python", "cpp"])
def test_a_bad_option_says_what_is_wrong(name, package):
    make, text = BAD[name]
    with pytest.raises(ValueError, match=text):
        make(package)


PLACES = {"k_positions": torch.zeros(2, 6).long()}
BAD_CALLS = {
    "grid of other tokens": (
        lambda nn: nn.GridRelativeBias(4, (2, 2)),
        {},
        ValueError,
        "GridRelativeBias: expected 4 keys, those of a grid of 2 x 2, or k_positions, their coordinates, but got",
    ),
    "class token of other tokens": (
        lambda nn: nn.GridRelativeBias(4, (2, 3), class_token=True),
        {},
        ValueError,
        "GridRelativeBias: expected 7 keys, those of a grid of 2 x 3 and a class token, but got key of shape",
    ),
    "class token with places": (
        lambda nn: nn.GridRelativeBias(4, (1, 5), class_token=True),
        PLACES,
        ValueError,
        "GridRelativeBias: expected no q_positions or k_positions with class_token",
    ),
    "other heads": (
        lambda nn: nn.GridRelativeBias(3, (2, 3)),
        {},
        ValueError,
        "GridRelativeBias: expected query of shape .* with 3 heads",
    ),
    "positions on one axis": (
        lambda nn: nn.GridRelativeBias(4, (2, 3)),
        {"k_positions": torch.arange(6)},
        ValueError,
        r"expected k_positions of shape \(2, 6\) or \(2, 2, 6\), coordinates on two axes",
    ),
    "floating places": (
        lambda nn: nn.DecomposedRelative(8, (2, 3)),
        {"k_positions": torch.zeros(2, 6)},
        TypeError,
        "expected integer k_positions, coordinates on two axes",
    ),
    "size of other tokens": (
        lambda nn: nn.DecomposedRelative(8, (2, 2)),
        {},
        ValueError,
        "DecomposedRelative: expected 4 keys, those of a grid of 2 x 2, or k_positions",
    ),
    "other width": (lambda nn: nn.DecomposedRelative(7, (2, 3)), {}, ValueError, "with head_dim 7"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
@pytest.mark.parametrize("package", [nn, nn.cpp], ids=["python", "cpp"])
def test_a_bad_call_says_what_is_wrong(name, package):
    make, call, error, text = BAD_CALLS[name]
    q, k, v = operands(6)
    with pytest.raises(error, match=text):
        make(package).attend(q, k, v, **call)
