"""Encodings of a user's own, built on the public bases, and the keywords that attention takes."""

import importlib.util
import inspect
import math

import pytest
import torch

import posenc
from processes import ROOT
from tolerances import assert_bits

nn = posenc.nn
EXAMPLE = ROOT / "examples/python/custom_encoding.py"

SCORES = {
    "ALiBi": lambda: nn.ALiBi(4),
    "FIRE": lambda: nn.FIRE(4),
    "Shaw": lambda: nn.ShawRelative(8, 4),
    "TransformerXL": lambda: nn.TransformerXL(8, 4),
    "ReRoPE": lambda: nn.ReRoPE(8, 4),
    "CoPE": lambda: nn.CoPE(8, 4),
    "ForgettingBias": lambda: nn.ForgettingBias(16, 4),
}
every_score = pytest.mark.parametrize("name", SCORES)


def call_of(module, length=5):
    x = torch.randn(1, 4, length, 8)
    return (x, x, x), module.token_state(torch.randn(1, length, 16))


class Damping(nn.AdditiveEncoding):
    """Lowers scores of keys by what their own token says: a number per token, of the layer's input."""

    state_keywords = ("damping",)

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.projection = torch.nn.Linear(embed_dim, num_heads)

    def token_state(self, x):
        return {"damping": self.projection(x).float().transpose(1, 2)}

    def terms(self, call):
        return nn.ScoreTerms(bias=-call.state["damping"].exp().unsqueeze(2))


class Rows(nn.ScoreEncoding):
    """Adds the product of queries with a vector that each token makes for each key head, as wide as a key."""

    always_causal = True
    takes_positions = False
    state_keywords = ("rows",)

    def __init__(self, embed_dim, num_heads, head_dim):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.projection = torch.nn.Linear(embed_dim, num_heads * head_dim)

    def token_state(self, x):
        return {"rows": self.projection(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)}

    def attend_op(self, query, key, value, *, rows, **call):
        return posenc.ops.attention(query, key + rows, value, is_causal=True, return_lse=True, **call)


def test_the_example_of_an_own_encoding_learns():
    spec = importlib.util.spec_from_file_location("custom_encoding", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.train([]) > 0.8 * math.log(8)
    assert example.train([example.ToeplitzBias(2, 8)]) < 0.3


@pytest.mark.parametrize("encoding", [lambda: Damping(32, 4), lambda: Rows(32, 4, 8)], ids=["numbers", "rows"])
def test_a_cache_stores_the_token_state_of_any_encoding(encoding):
    layer = nn.Attention(32, 4, encodings=[encoding()])
    x, cache = torch.randn(2, 7, 32), nn.KVCache(2, 4, 10, 8)
    [name] = layer.encodings[0].state_keywords
    with torch.no_grad():
        whole = layer(x)
        parts = [layer(x[:, :4], cache=cache), layer(x[:, 4:5], cache=cache), layer(x[:, 5:], cache=cache)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(cache.token_state[name], layer.encodings[0].token_state(x)[name].detach())
    assert cache.gate_keys is None and cache.log_decay is None
    stored = cache.token_state[name].clone()
    with pytest.raises(ValueError, match=f"expected {name} with every token or with none"):
        cache.append(*2 * [torch.zeros(2, 4, 1, 8)])
    with pytest.raises(ValueError, match=f"expected {name} of shape"):
        cache.append(*2 * [torch.zeros(2, 4, 1, 8)], **{name: stored[:, :3, :1]})
    assert_bits(cache.token_state[name], stored)


def test_own_token_state_gets_gradients_and_compiles():
    layer = nn.Attention(32, 4, encodings=[Damping(32, 4)])
    x = torch.randn(2, 7, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    layer(x).sum().backward()
    assert layer.encodings[0].projection.weight.grad.abs().max() > 0


@every_score
@pytest.mark.parametrize("method", ["attend", "logits"])
def test_a_keyword_that_an_encoding_does_not_take_is_named(name, method):
    module = SCORES[name]()
    (q, k, v), state = call_of(module)
    tensors = (q, k, v)[: 3 if method == "attend" else 2]
    taken = set(inspect.signature(getattr(module, method)).parameters)
    strange = {
        "no_such_keyword",
        "gate_key",
        "log_decay",
        "is_causal",
        "q_positions",
        "return_lse",
        "dropout_p",
    } - taken
    assert "no_such_keyword" in strange
    for keyword in strange:
        with pytest.raises(TypeError, match=rf"{type(module).__name__}\.{method}\(\) got an .* '{keyword}'"):
            getattr(module, method)(*tensors, **state, **{keyword: None})


def test_an_op_names_a_keyword_that_it_does_not_take():
    x = torch.randn(1, 2, 5, 4)
    for op, tensors in (
        (posenc.ops.attention, (x, x, x)),
        (posenc.ops.relative_attention, (x, x, x, torch.randn(3, 4))),
        (posenc.ops.cope_attention, (x, x, x, torch.randn(1, 4, 3))),
        (posenc.ops.piecewise_attention, (x, x, x, x, x, 2)),
    ):
        with pytest.raises(TypeError, match=rf"{op.__name__}\(\) got an unexpected keyword argument 'rel_w': it takes"):
            op(*tensors, rel_w=x)


@every_score
def test_signatures_show_names_types_and_defaults(name):
    module = SCORES[name]()
    attend, logits = inspect.signature(module.attend).parameters, inspect.signature(module.logits).parameters
    assert list(attend)[:3] == ["query", "key", "value"]
    assert set(attend) - set(logits) == {"value", "dropout_p", "sinks", "return_lse"}
    assert attend["window"].annotation == posenc.ops.keywords.Window and attend["window"].default is None
    assert (attend["dropout_p"].default, attend["return_lse"].default) == (0.0, False)
    assert ("is_causal" in attend) != module.always_causal
    assert {"q_positions", "k_positions"} <= set(attend) or not module.takes_positions
    assert not any(parameter.kind == parameter.VAR_KEYWORD for parameter in attend.values())
    if "is_causal" in attend:
        (q, k, v), state = call_of(module)
        plain, said = module.attend(q, k, v), module.attend(q, k, v, is_causal=attend["is_causal"].default)
        assert_bits(plain.detach(), said.detach())


@every_score
def test_none_stands_for_the_default_and_graphs_do_not_break(name):
    module = SCORES[name]()
    (q, k, v), state = call_of(module)
    state = {key: x.detach() for key, x in state.items()}
    compiled = torch.compile(module.attend, fullgraph=True, backend="aot_eager")
    bare = module.attend(q, k, v, **state)
    assert_bits(module.attend(q, k, v, **state, scale=None, key_mask=None, window=None).detach(), bare.detach())
    assert_bits(compiled(q, k, v, **state, scale=None, window=5).detach(), bare.detach())
