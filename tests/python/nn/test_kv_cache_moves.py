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
