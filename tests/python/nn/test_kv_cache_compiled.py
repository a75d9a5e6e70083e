"""Decoding in a compiled graph: two graphs serve all lengths, one for the empty cache and one for what follows."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, KV_HEADS, STACKS

BATCH = 2

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Layer(torch.nn.Module):
    """A layer that holds its cache, as models do."""

    def __init__(self, attention, cache):
        super().__init__()
        self.attention = attention
        self.cache = cache

    def forward(self, x, positions=None):
        return self.attention(x, positions=positions, cache=self.cache)


def new_cache(window=None, room=64):
    return posenc.nn.KVCache(BATCH, KV_HEADS, room, HEAD_DIM, window=window)


def assert_decodes(stack, count, *, graphs, inside=True, prompt=0, mode=torch.no_grad, positions=None, **options):
    """`count` tokens, one by one after a prompt, compiled and eager; at most `graphs` of them for the tokens."""
    attention = stack.block(window=options.get("window"))
    cache, eager_cache, counter = new_cache(**options), new_cache(**options), CompileCounter()
    if inside:
        call = torch.compile(Layer(attention, cache), backend=counter, fullgraph=True)
    else:
        compiled = torch.compile(attention, backend=counter, fullgraph=True)

        def call(x, positions):
            return compiled(x, positions=positions, cache=cache)

    x = torch.randn(BATCH, prompt + count, EMBED_DIM)
    with mode():
        for begin, end in [(0, prompt)] * (prompt > 0) + [(t, t + 1) for t in range(prompt, prompt + count)]:
            places = None if positions is None else positions[..., begin:end]
            y = call(x[:, begin:end], places)
            expected = attention(x[:, begin:end], positions=places, cache=eager_cache)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert (cache.length, cache.dropped) == (prompt + count, eager_cache.dropped)
    torch.testing.assert_close(cache.keys, eager_cache.keys, rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= graphs + (prompt > 0)


@pytest.mark.parametrize("inside", [True, False], ids=["cache in the layer", "cache as an argument"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fifty_tokens_take_two_graphs(inside, mode):
    """A graph once held the length as a constant where a module held the cache: the ninth token was an error."""
    assert_decodes(BY_NAME["rotary"], 50, graphs=2, inside=inside, mode=mode)


@pytest.mark.parametrize("inside", [True, False], ids=["cache in the layer", "cache as an argument"])
def test_a_prompt_takes_a_graph_of_its_own(inside):
    assert_decodes(BY_NAME["rotary"], 20, graphs=1, prompt=7, inside=inside)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_every_encoding_decodes_in_two_graphs(stack):
    positions = None if stack.axes is None else stack.positions(torch.arange(10).expand(BATCH, -1))
    assert_decodes(stack, 10, graphs=2, positions=positions)


@pytest.mark.parametrize("name", ["rotary", "alibi"])
def test_positions_decode_in_two_graphs(name):
    assert_decodes(BY_NAME[name], 20, graphs=2, positions=torch.arange(20) * 2 + torch.tensor([[0], [5]]))


@pytest.mark.parametrize("name", ["nope", "rotary", "alibi", "xpos_cope_keys"])
def test_a_window_takes_a_bounded_number_of_graphs(name):
    """Those of an empty cache, a filling one, one that drops tokens, and one that moves them to new memory."""
    assert_decodes(BY_NAME[name], 50, graphs=6, window=4, room=12)


def test_graphs_serve_a_cache_that_was_cropped_reordered_and_reset():
    attention, cache, eager_cache = BY_NAME["rotary"].block(), new_cache(), new_cache()
    counter = CompileCounter()
    layer = torch.compile(Layer(attention, cache), backend=counter, fullgraph=True)
    changes = {
        5: lambda each: each.crop(-2),
        9: lambda each: each.reorder(torch.tensor([1, 1])),
        12: lambda each: each.evict(1, 3, attention.encodings[0]),
        15: lambda each: each.reset(),
    }
    with torch.no_grad():
        for t in range(20):
            for each in (cache, eager_cache):
                changes.get(t, lambda each: None)(each)
            x = torch.randn(BATCH, 1, EMBED_DIM)
            torch.testing.assert_close(layer(x), attention(x, cache=eager_cache), rtol=1e-5, atol=1e-5)
    assert cache.length == 5
    assert counter.frame_count <= 2
