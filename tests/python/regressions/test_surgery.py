"""Modules whose parts users replace, delete, share or freeze go on to work, and initialise only what they made."""

import copy

import pytest
import torch

import posenc
from block_stacks import EMBED_DIM, HEADS, STACKS
from tolerances import assert_bits

nn = posenc.nn

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Adapter(torch.nn.Module):
    """A low-rank adapter of a Linear, as peft puts in its place: it has no `weight` of its own."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Unknown(torch.nn.Module):
    """What a user might put anywhere, with a parameter that only the user knows how to initialise."""

    def __init__(self):
        super().__init__()
        self.own = torch.nn.Parameter(torch.full((3,), 7.0))

    def reset_parameters(self):
        raise AssertionError("the user's parameters are the user's")


def attention(**options):
    return nn.Attention(EMBED_DIM, HEADS, encodings=[nn.Rotary(8)], **options)


def fill(module, value):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)


def to_empty(module):
    """`to_empty` on memory that shows what is left uninitialised."""
    torch.use_deterministic_algorithms(True)  # fills what is empty with NaN
    try:
        return module.to_empty(device="cpu")
    finally:
        torch.use_deterministic_algorithms(False)


def all_finite(module):
    return all(bool(p.isfinite().all()) for p in module.parameters())


@pytest.mark.parametrize("names", [(name,) for name in PROJECTIONS] + [PROJECTIONS], ids="+".join)
def test_an_attention_with_adapters_moves_and_computes(names):
    module, x = attention(), torch.randn(1, 5, EMBED_DIM)
    expected = module(x)
    for name in names:
        setattr(module, name, Adapter(getattr(module, name)))
    assert_bits(module(x), expected)  # an adapter begins at zero
    assert_bits(module.to("cpu")(x), expected)
    assert_bits(copy.deepcopy(module)(x), expected)
    torch.testing.assert_close(module.double()(x.double()), expected.double(), rtol=1e-5, atol=1e-6)


def test_projections_inside_adapters_are_initialised_where_their_memory_is_new():
    with torch.device("meta"):
        module = attention()
        for name in PROJECTIONS:
            setattr(module, name, Adapter(getattr(module, name)))
    to_empty(module)
    for name in PROJECTIONS:
        adapter = getattr(module, name)
        assert all_finite(adapter.base)
        assert not all_finite(adapter.down)  # the adapter's own, which no posenc module has made


@pytest.mark.parametrize("name", PROJECTIONS)
def test_what_replaces_a_projection_is_not_reset(name):
    module = attention()
    setattr(module, name, Unknown())
    before = {other: getattr(module, other).weight.clone() for other in PROJECTIONS if other != name}
    module.reset_parameters()
    assert bool((getattr(module, name).own == 7).all())
    assert all(not torch.equal(getattr(module, other).weight, weight) for other, weight in before.items())
    module.to("cpu").double()


def test_a_deleted_projection_stops_no_move():
    module = attention()
    del module.o_proj
    module.to("cpu").double()
    module.reset_parameters()
    assert module.q_proj.weight.dtype == torch.float64


def test_projections_of_one_weight_are_initialised():
    with torch.device("meta"):
        module = attention()
        module.k_proj = module.q_proj
    to_empty(module)
    assert all_finite(module)
    assert module.k_proj is module.q_proj


def test_an_encoding_that_layers_share_is_initialised():
    with torch.device("meta"):
        shared = nn.T5RelativeBias(HEADS)
        layers = torch.nn.ModuleList(nn.Attention(EMBED_DIM, HEADS, encodings=[shared]) for _ in range(3))
    to_empty(layers)
    assert all_finite(layers)
    assert all(layer.encodings[0] is shared for layer in layers)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_new_memory_holds_initial_parameters_also_of_frozen_ones(stack):
    with torch.device("meta"):
        module = nn.Attention(EMBED_DIM, HEADS, num_kv_heads=2, encodings=stack.encodings(nn)).requires_grad_(False)
    to_empty(module)
    assert all_finite(module)
    assert not any(p.requires_grad for p in module.parameters())
    fill(module, float("nan"))
    to_empty(module)  # not from the meta device: memory is as new
    assert all_finite(module)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_module_within_an_encoding_is_neither_reset_nor_in_the_way(stack):
    module = nn.Attention(EMBED_DIM, HEADS, num_kv_heads=2, encodings=stack.encodings(nn))
    for part in [module, *module.encodings]:
        part.register_module("probe", Unknown())
        part.reset_parameters()
        assert bool((part.probe.own == 7).all())
    to_empty(module)
    assert all(bool(part.probe.own.isnan().all()) for part in [module, *module.encodings])


def test_fire_says_what_its_mlp_has_to_be():
    module = nn.FIRE(2, hidden_dim=4)
    module.mlp[0] = Adapter(module.mlp[0])
    module.to("cpu").reset_parameters()
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match="FIRE: expected mlp to be a Linear, a ReLU and a Linear.*'Adapter'.*merge"):
        module.attend(q, q, q)
