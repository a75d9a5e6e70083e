"""KVCache with a window: memory of one size for any number of tokens, the numbers of one pass, in both languages."""

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, KV_HEADS, STACKS
from tolerances import assert_bits

BATCH, LENGTH, WINDOW = 2, 23, 4

every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)
in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def new_cache(namespace=posenc.nn, room=7, window=WINDOW, dtype=torch.float64):
    return namespace.KVCache(BATCH, KV_HEADS, room, HEAD_DIM, window=window, dtype=dtype)


def layer_of(stack, namespace=posenc.nn, window=WINDOW):
    layer = stack.block(namespace, window=window)
    layer.to(torch.float64)
    return layer


def embeddings():
    return torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)


@torch.no_grad()
def decode(layer, x, chunks, cache, positions=None, **masks):
    outputs, begin = [], 0
    for count in chunks:
        end = begin + count
        outputs.append(
            layer.forward(
                x[:, begin:end],
                positions=None if positions is None else positions[..., begin:end],
                cache=cache,
                **{name: mask[:, :end] for name, mask in masks.items()},
            )
        )
        begin = end
    return torch.cat(outputs, dim=1)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


CHUNKS = {
    "token by token": [1] * LENGTH,
    "prompt, then tokens": [4] + [1] * (LENGTH - 4),
    "chunks": [2, 4, 0, 3, 1, 4, 4, 4, 1],
}


@every_stack
@in_both_languages
@pytest.mark.parametrize("room", [7, 12])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_decoding_with_a_window_equals_one_pass(stack, namespace, room, chunks):
    layer, x = layer_of(stack, namespace), embeddings()
    positions = None if stack.axes is None else stack.positions(torch.arange(LENGTH).expand(BATCH, -1))
    with torch.no_grad():
        whole = layer.forward(x, positions=positions)
    cache = new_cache(namespace, room)
    assert_close(decode(layer, x, CHUNKS[chunks], cache, positions), whole)
    assert cache.length == LENGTH
    assert cache.dropped == LENGTH - cache.keys.shape[2]
    assert cache.keys.shape[2] == WINDOW - 1 + CHUNKS[chunks][-1]


@in_both_languages
@pytest.mark.parametrize("room", [WINDOW, WINDOW + 1, 2 * WINDOW])
@pytest.mark.parametrize("name", ["nope", "rotary", "alibi", "t5", "fire", "self_extend"])
def test_room_for_one_window_is_enough_token_by_token(name, room, namespace):
    layer, x = layer_of(BY_NAME[name], namespace), embeddings()
    with torch.no_grad():
        whole = layer.forward(x)
    assert_close(decode(layer, x, CHUNKS["token by token"], new_cache(namespace, room)), whole)


@in_both_languages
@pytest.mark.parametrize("name", ["nope", "rotary", "alibi", "sinusoidal_rotary_alibi"])
def test_a_layer_may_see_less_than_the_cache_holds(name, namespace):
    layer, x = layer_of(BY_NAME[name], namespace, window=2), embeddings()
    with torch.no_grad():
        whole = layer.forward(x)
    assert_close(decode(layer, x, CHUNKS["token by token"], new_cache(namespace)), whole)


@in_both_languages
@pytest.mark.parametrize("name", ["nope", "rotary", "alibi", "cope", "learned_absolute"])
def test_positions_and_masks_count_all_tokens(name, namespace):
    layer, x = layer_of(BY_NAME[name], namespace), embeddings()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, :5] = False
    positions = posenc.positions.positions_from_mask(mask)
    call = {"key_mask": mask, "segment_ids": torch.tensor([[0], [1]]).repeat(1, LENGTH)}
    call["segment_ids"][0, 11:] = 7
    with torch.no_grad():
        whole = layer.forward(x, positions=positions, **call)
    decoded = decode(layer, x, CHUNKS["chunks"], new_cache(namespace), positions, **call)
    assert_close(decoded[mask], whole[mask])


@in_both_languages
@pytest.mark.parametrize("name", ["rotary", "alibi"])
def test_positions_left_out_after_the_prompt_go_on(name, namespace):
    layer, x, cache = layer_of(BY_NAME[name], namespace), embeddings(), new_cache(namespace)
    positions = torch.arange(LENGTH) + torch.tensor([[10], [3]])
    with torch.no_grad():
        whole = layer.forward(x, positions=positions)
        first = layer.forward(x[:, :4], positions=positions[:, :4], cache=cache)
        rest = [layer.forward(x[:, t : t + 1], cache=cache) for t in range(4, LENGTH)]
    assert_close(torch.cat([first, *rest], dim=1), whole)
    assert cache.positions.tolist() == positions[:, cache.dropped :].tolist()


@in_both_languages
@pytest.mark.parametrize("name", ["nope", "rotary", "fire", "xpos_cope_keys", "fox"])
def test_tokens_of_the_last_call_can_be_cropped(name, namespace):
    """Drafts of speculative decoding."""
    layer, x, cache = layer_of(BY_NAME[name], namespace), embeddings(), new_cache(namespace)
    drafts, outputs = torch.randn(BATCH, 3, EMBED_DIM, dtype=torch.float64), []
    with torch.no_grad():
        whole = layer.forward(x)
        for t in range(LENGTH):
            outputs.append(layer.forward(torch.cat([x[:, t : t + 1], drafts], dim=1), cache=cache)[:, :1])
            cache.crop(-3)
    assert_close(torch.cat(outputs, dim=1), whole)
    assert cache.length == LENGTH
    with pytest.raises(ValueError, match=f"a length from {LENGTH - 1} to {LENGTH}, or to 0, as the window .* got -2"):
        cache.crop(-2)
    cache.crop(0)
    assert (cache.length, cache.dropped) == (0, 0)
    assert_close(decode(layer, x, [2, 2, 2, 4], cache), whole[:, :10])


@in_both_languages
def test_a_call_that_raises_leaves_the_cache_as_it_was(namespace):
    layer, x, cache = layer_of(BY_NAME["xpos_cope_keys"], namespace), embeddings(), new_cache(namespace)
    undisturbed = new_cache(namespace)
    for each in (cache, undisturbed):
        decode(layer, x, [4, 3], each)
    keys, before = cache.keys, cache.keys.clone()
    with torch.no_grad(), pytest.raises(ValueError, match="key_mask"):
        layer.forward(x[:, 7:11], key_mask=torch.ones(BATCH, 10, dtype=torch.bool), cache=cache)
    assert (cache.length, cache.dropped) == (7, 1)
    assert_bits(cache.keys, before)
    assert_bits(keys, before)
    with torch.no_grad():
        assert_bits(*(layer.forward(x[:, 7:8], cache=each) for each in (cache, undisturbed)))


@in_both_languages
def test_views_of_earlier_calls_stay_where_memory_is_full(namespace):
    cache = new_cache(namespace, room=4, dtype=torch.float32)
    earlier = []
    for _ in range(10):
        k = torch.randn(BATCH, KV_HEADS, 1, HEAD_DIM)
        keys, _ = cache.append(k, k)
        earlier.append((keys, keys.clone()))
    for keys, expected in earlier:
        assert_bits(keys, expected)


@in_both_languages
def test_copies_and_rows_of_a_cache_with_a_window(namespace):
    layer, x, cache = layer_of(BY_NAME["rotary"], namespace), embeddings(), new_cache(namespace)
    decode(layer, x, [4, 3, 1], cache)
    twin = cache.copy()
    twin.reorder(torch.tensor([1, 1]))
    assert (twin.length, twin.dropped) == (cache.length, cache.dropped)
    with torch.no_grad():
        for t in range(8, LENGTH):
            one, two = layer.forward(x[:, t : t + 1], cache=cache), layer.forward(x[[1, 1], t : t + 1], cache=twin)
            assert_close(two, one[[1, 1]])


@in_both_languages
def test_what_does_not_fit_is_refused(namespace):
    for window in (0, 8):
        with pytest.raises(ValueError, match=f"KVCache: expected window to be .*, but got {window}"):
            new_cache(namespace, window=window)
    cache, x = new_cache(namespace), embeddings()
    layer = layer_of(BY_NAME["rotary"], namespace)
    decode(layer, x, [4, 2], cache)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="max_length 7 tokens, but got 5 new after 3 cached, 8"),
    ):
        layer.forward(x[:, 6:11], cache=cache)
    decode(layer, x, [1, 1], cache)
    with pytest.raises(ValueError, match="KVCache: expected to evict before .* the window 4, but 4 have left"):
        cache.evict(5, 1)
    for window in (None, 5):
        wide = layer_of(BY_NAME["alibi"], namespace, window=window)
        with torch.no_grad(), pytest.raises(ValueError, match="Attention: expected a window of at most 4, that of the"):
            wide.forward(x[:, :1], cache=cache)
    assert cache.length == 8
