"""KVCache: tokens and rows that leave, move or are copied, in both languages."""

import pytest
import torch

import posenc
from tolerances import assert_bits

BATCH, HEADS, ROOM, WIDTH = 3, 2, 10, 4

in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def tokens(count):
    """Everything that comes with `count` tokens."""
    return {
        "k": torch.randn(BATCH, HEADS, count, WIDTH),
        "v": torch.randn(BATCH, HEADS, count, WIDTH),
        "gate_key": torch.randn(BATCH, HEADS, count, WIDTH),
        "log_decay": torch.randn(BATCH, 5, count),
        "positions": torch.randint(0, 100, (BATCH, count)),
    }


def append(cache, new):
    rest = {name: x for name, x in new.items() if name not in ("k", "v")}
    return cache.append(new["k"], new["v"], **rest)


def filled(namespace, *parts):
    cache = namespace.KVCache(BATCH, HEADS, ROOM, WIDTH)
    for part in parts:
        append(cache, part)
    return cache


def content(cache):
    state = {"gate_key": cache.gate_keys, "log_decay": cache.log_decay, "positions": cache.positions}
    return {"k": cache.keys, "v": cache.values, **{name: x for name, x in state.items() if x is not None}}


def assert_content(cache, expected):
    actual = content(cache)
    assert list(actual) == list(expected)
    assert cache.length == expected["k"].shape[2]
    for name, x in expected.items():
        assert_bits(actual[name], x)


def clones(cache):
    return {name: x.clone() for name, x in content(cache).items()}


def joined(*parts):
    """What a cache that got these tokens holds."""
    return {name: torch.cat([part[name] for part in parts], 1 if name == "positions" else 2) for name in parts[0]}


@in_both_languages
def test_keys_and_values_are_views_of_all_tokens(namespace):
    cache = namespace.KVCache(BATCH, HEADS, ROOM, WIDTH)
    assert cache.keys.shape == cache.values.shape == (BATCH, HEADS, 0, WIDTH)
    keys, values = append(cache, tokens(3))
    assert_bits(cache.keys, keys)
    assert_bits(cache.values, values)
    assert (cache.keys.data_ptr(), cache.values.data_ptr()) == (keys.data_ptr(), values.data_ptr())


@in_both_languages
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [0, 2, 2], [0, 1, 2]], ids=str)
def test_rows_are_reordered_with_all_that_belongs_to_them(namespace, rows, dtype):
    first, second = tokens(4), tokens(2)
    cache = filled(namespace, first)
    memory = cache.keys.data_ptr()
    cache.reorder(torch.tensor(rows, dtype=dtype))
    moved = {name: x[rows] for name, x in first.items()}
    assert_content(cache, moved)
    assert cache.keys.data_ptr() == memory
    append(cache, second)
    assert_content(cache, joined(moved, second))


@in_both_languages
def test_rows_without_positions_or_state_are_reordered(namespace):
    cache, k = namespace.KVCache(BATCH, HEADS, ROOM, WIDTH), torch.randn(BATCH, HEADS, 3, WIDTH)
    cache.reorder(torch.tensor([0, 0, 1]))
    assert cache.length == 0
    cache.append(k, k + 1)
    with torch.inference_mode():
        cache.reorder(torch.tensor([2, 0, 0]))
    assert_content(cache, {"k": k[[2, 0, 0]], "v": k[[2, 0, 0]] + 1})


WRONG_INDICES = {
    "rows": (torch.tensor([0, 1]), ValueError, r"index of shape \[3\], a row for each, but got \[2\]"),
    "axes": (torch.zeros(3, 1, dtype=torch.int64), ValueError, r"index of shape \[3\], .* got \[3, 1\]"),
    "floating": (torch.zeros(3), TypeError, "index to be int64 or int32, but got .*[Ff]loat"),
    "bool": (torch.ones(3).bool(), TypeError, "index to be int64 or int32, but got .*[Bb]ool"),
    "too large": (torch.tensor([0, 3, 1]), ValueError, "index to name rows from 0 to 2, but got 3"),
    "negative": (torch.tensor([0, 1, -1]), ValueError, "index to name rows from 0 to 2, but got -1"),
    "device": (torch.zeros(3, dtype=torch.int64, device="meta"), ValueError, "index on the cache's device cpu, .*meta"),
}


@in_both_languages
@pytest.mark.parametrize("case", WRONG_INDICES)
def test_an_index_that_does_not_fit_is_refused_and_changes_nothing(namespace, case):
    index, error, message = WRONG_INDICES[case]
    cache = filled(namespace, tokens(4))
    before = clones(cache)
    with pytest.raises(error, match="KVCache: expected " + message):
        cache.reorder(index)
    assert_content(cache, before)


@in_both_languages
def test_crop_drops_the_last_tokens_too(namespace):
    first, second = tokens(6), tokens(2)
    cache = filled(namespace, first)
    cache.crop(-2)
    kept = {name: x[:, :4] if name == "positions" else x[:, :, :4] for name, x in first.items()}
    assert_content(cache, kept)
    append(cache, second)
    assert_content(cache, joined(kept, second))
    for wrong in (-7, 7):
        with pytest.raises(ValueError, match=f"a length from 0 to 6, or by one from -6, but got {wrong}"):
            cache.crop(wrong)
    cache.crop(-6)
    assert cache.length == 0
    assert cache.positions is None
    assert cache.log_decay is None


@in_both_languages
def test_a_copy_holds_the_same_and_goes_on_alone(namespace):
    first, second, third = tokens(4), tokens(2), tokens(3)
    cache = filled(namespace, first)
    with torch.inference_mode():
        twin = cache.copy()
    assert_content(twin, first)
    append(cache, second)
    append(twin, third)
    twin.reorder(torch.tensor([2, 2, 2]))
    assert_content(cache, joined(first, second))
    assert_content(twin, {name: x[[2, 2, 2]] for name, x in joined(first, third).items()})
    assert not twin.keys.is_inference()
    with pytest.raises(ValueError, match="max_length 10 tokens"):
        append(twin, tokens(4))


@in_both_languages
def test_an_empty_cache_is_copied(namespace):
    twin, new = filled(namespace).copy(), tokens(2)
    append(twin, new)
    assert_content(twin, new)


EMBED_DIM, QUERY_HEADS, HEAD_DIM, LENGTH = 32, 4, 8, 12


def rotary(**options):
    return lambda nn: [nn.Rotary(HEAD_DIM, **options)]


# Encodings of a layer, the first of which rotates its keys where the name has no "alone".
EVICTIONS = {
    "rotary": rotary(),
    "yarn": rotary(scaling=posenc.scaling.Yarn(4.0, 4)),
    "interleaved": rotary(interleaved=True),
    "partial": rotary(rotary_dim=4),
    "one length": rotary(scaling=posenc.scaling.DynamicNTK(2.0, 4), seq_len=32),
    "learnable": rotary(learnable=True),
    "xpos": lambda nn: [nn.XPos(HEAD_DIM, scale_base=8.0, centre=3.0)],
    "rotary alibi": lambda nn: [nn.Rotary(HEAD_DIM), nn.ALiBi(QUERY_HEADS)],
    "rotary gate keys": lambda nn: [nn.Rotary(HEAD_DIM), nn.CoPE(HEAD_DIM, 5, gate="key")],
    "rotary decays": lambda nn: [nn.Rotary(HEAD_DIM), nn.ForgettingBias(EMBED_DIM, QUERY_HEADS)],
    "nope alone": lambda nn: [],
    "alibi alone": lambda nn: [nn.ALiBi(QUERY_HEADS)],
    "rerope alone": lambda nn: [nn.ReRoPE(HEAD_DIM, 3)],
}


def layer_and_rotary(case, namespace, dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        encodings = EVICTIONS[case](namespace)
        layer = namespace.Attention(EMBED_DIM, QUERY_HEADS, num_kv_heads=HEADS, encodings=encodings)
    layer.to(dtype)
    return layer, None if "alone" in case else encodings[0]


def layer_cache(namespace, dtype):
    return namespace.KVCache(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=dtype)


@in_both_languages
@pytest.mark.parametrize("placed", [False, True], ids=["counted", "positions"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("case", EVICTIONS)
def test_after_an_eviction_the_cache_equals_one_filled_with_what_is_kept(case, dtype, tolerance, placed, namespace):
    """StreamingLLM: the first 4 tokens and the last ones are kept."""
    layer, rope = layer_and_rotary(case, namespace, dtype)
    x = torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=dtype)
    kept = [0, 1, 2, 3, 7, 8, 9]
    places = torch.arange(7) + torch.tensor([[0], [5], [9]]) if placed else None
    full = None if places is None else torch.arange(10) + places[:, :1]
    cache, anew = layer_cache(namespace, dtype), layer_cache(namespace, dtype)
    with torch.no_grad():
        layer.forward(x[:, :10], positions=full, cache=cache)
        memory = cache.keys.data_ptr()
        cache.evict(4, 3, rope)
        layer.forward(x[:, kept], positions=places, cache=anew)
        assert cache.length == 7
        assert cache.keys.data_ptr() == memory
        for name, expected in content(anew).items():
            torch.testing.assert_close(content(cache)[name], expected, rtol=tolerance, atol=tolerance)
        for step in (slice(10, 11), slice(11, 12)):
            y, expected = (layer.forward(x[:, step], cache=each) for each in (cache, anew))
            torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


def test_keys_evicted_while_gradients_are_recorded_join_no_graph():
    layer, rope = layer_and_rotary("learnable", posenc.nn, torch.float32)
    cache = layer_cache(posenc.nn, torch.float32)
    with torch.no_grad():
        layer(torch.randn(BATCH, 6, EMBED_DIM), cache=cache)
    cache.evict(0, 2, rope)
    assert not cache.keys.requires_grad


@in_both_languages
def test_tokens_at_either_end_and_none_and_all_can_be_evicted(namespace):
    new = tokens(6)
    for start, count in ((0, 2), (4, 2), (3, 0), (6, 0), (0, 6)):
        cache = filled(namespace, new)
        cache.evict(start, count)
        if count == 6:
            assert cache.length == 0
            assert cache.positions is None
            assert cache.log_decay is None
            continue
        kept = [i for i in range(6) if not start <= i < start + count]
        expected = {name: x[:, kept] if name == "positions" else x[:, :, kept] for name, x in new.items()}
        expected["positions"] = torch.cat(
            [new["positions"][:, :start], new["positions"][:, start + count :] - count], dim=1
        )
        assert_content(cache, expected)


@in_both_languages
def test_floating_positions_move_up(namespace):
    cache, k = namespace.KVCache(1, 1, 6, 4), torch.randn(1, 1, 4, 4)
    cache.append(k, k, positions=torch.tensor([0.5, 1.5, 2.5, 3.5]))
    cache.evict(1, 2)
    assert cache.positions.tolist() == [[0.5, 1.5]]


@in_both_languages
def test_tokens_with_positions_of_several_axes_are_known_to_have_moved(namespace):
    def filled_cache():
        cache, k = namespace.KVCache(1, 1, 8, 4), torch.randn(1, 1, 3, 4)
        cache.append(k, k)
        cache.append(k, k, positions=torch.zeros(2, 1, 3))
        return cache

    for start, count, cropped, known in ((0, 2, 2, False), (0, 2, 1, True), (2, 3, 3, False), (3, 3, 3, True)):
        cache = filled_cache()
        cache.evict(start, count)
        cache.crop(cropped)
        if known:
            assert cache.next_positions(1) is None
        else:
            with pytest.raises(ValueError, match="have several axes"):
                cache.next_positions(1)


@in_both_languages
def test_what_cannot_be_evicted_is_refused_and_nothing_changes(namespace):
    cache = filled(namespace, tokens(6))
    before = clones(cache)
    for start, count in ((-1, 2), (2, -1), (5, 2), (7, 0)):
        with pytest.raises(ValueError, match=f"tokens from 0 to 6, but got start {start} and count {count}"):
            cache.evict(start, count)
    for start, count, name in ((0.0, 1, "start"), (0, 1.5, "count")):
        with pytest.raises(TypeError, match=rf"KVCache: expected {name} to be an int, but got |evict\(\)"):
            cache.evict(start, count)
    for rope, axes in ((namespace.AxialRotary(4), 2), (namespace.MultimodalRotary(4, [1, 0, 1]), 3)):
        with pytest.raises(ValueError, match=f"rotary to have positions on one axis, but got .*Rotary.* with {axes}"):
            cache.evict(1, 2, rope)
    with pytest.raises(ValueError, match="Rotary: expected key of shape"):
        cache.evict(1, 2, namespace.Rotary(8))
    dynamic = namespace.Rotary(4, scaling=posenc.scaling.DynamicNTK(2.0, 16))
    with pytest.raises(ValueError, match="Rotary: expected seq_len, one length for all calls"):
        cache.evict(1, 2, dynamic)
    assert_content(cache, before)


def test_rotary_must_be_a_rotary_encoding_that_can_shift_keys():
    class Own(posenc.nn.RotaryEncoding):
        head_dim = WIDTH

    cache = filled(posenc.nn, tokens(6))
    before = clones(cache)
    with pytest.raises(TypeError, match="KVCache: expected rotary to be a rotary encoding, but got ALiBi"):
        cache.evict(1, 2, posenc.nn.ALiBi(2))
    with pytest.raises(NotImplementedError, match="Own: keys that it has rotated cannot be shifted"):
        cache.evict(1, 2, Own())
    assert_content(cache, before)
