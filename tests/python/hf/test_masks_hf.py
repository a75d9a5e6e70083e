"""The mask of attn_implementation="posenc": eager's own numbers to all who look, and structure to posenc."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache, MistralConfig, StaticCache, masking_utils
from transformers.models.llama.modeling_llama import eager_attention_forward

import hf_models
import posenc.hf
from posenc.hf.visibility import LazyMask

assert posenc.hf.register  # registered by the import

BATCH, TOKENS, WINDOW, CHUNK = 2, 14, 5, 4
SMALL = dict(hidden_size=8, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1)
A_BLOCK = torch.tensor([[-1, 0, 0, 0, -1, -1]])
MAKERS = {
    "causal": masking_utils.create_causal_mask,
    "window": masking_utils.create_sliding_window_causal_mask,
    "chunks": masking_utils.create_chunked_causal_mask,
    "bidirectional": masking_utils.create_bidirectional_mask,
    "bidirectional window": masking_utils.create_bidirectional_sliding_window_mask,
}
CAUSAL = ("causal", "window", "chunks")


def config_of(implementation, **options):
    config = MistralConfig(
        **SMALL,
        sliding_window=WINDOW,
        **options,
    )
    config.attention_chunk_size = CHUNK
    config._attn_implementation = implementation
    return config


def padding(where, length=TOKENS):
    mask = torch.ones(BATCH, length, dtype=torch.long)
    if where == "left":
        mask[1, :3] = 0
    if where == "right":
        mask[1, -4:] = 0
    if where == "holes":
        mask[0, 5], mask[1, 7:9] = 0, 0
    return None if where is None else mask


def masks(maker, *, queries=TOKENS, cache=None, **options):
    """What transformers makes for eager attention, and for posenc."""
    made = []
    for implementation in ("eager", "posenc"):
        config = config_of(implementation)
        embeds = torch.zeros(BATCH, queries, 8)
        given = {"attention_mask": None, hf_models.cache_keyword(): copy.deepcopy(cache)} | options
        made.append(MAKERS[maker](config, embeds, **given))
    return made


def assert_same_mask(eager, ours, *, says=None):
    assert isinstance(ours, LazyMask)
    if eager is None:
        eager = torch.zeros(ours.shape)
    assert (ours.shape, ours.dtype, ours.device) == (eager.shape, eager.dtype, eager.device)
    assert (says is None) or set(ours.visibility.call()) == set(says), ours
    torch.testing.assert_close(ours + 0, eager, rtol=0, atol=0)


def filled(length, kind, window=None):
    """A cache that holds ``length`` tokens."""
    config = config_of("eager") if window else MistralConfig(**SMALL, sliding_window=None)
    cache = DynamicCache(config=config) if kind == "dynamic" else StaticCache(config, max_cache_len=24)
    if length or kind == "static":
        states = torch.zeros(BATCH, 1, max(length, 1), 4)
        cache.update(states, states, 0)
        if not length:
            cache.reset()
    return cache


@pytest.mark.parametrize("where", [None, "full", "left", "right", "holes"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_forward(maker, where):
    eager, ours = masks(maker, attention_mask=padding(where))
    says = {"causal": {"is_causal"}, "window": {"is_causal", "window"}, "bidirectional": set()}
    says |= {"bidirectional window": {"window"}, "chunks": {"is_causal", "segment_ids"}}
    hides = {"key_mask"} if where in ("left", "right", "holes") else set()
    assert_same_mask(eager, ours, says=says[maker] | hides)


@pytest.mark.parametrize("lengths", [(9, 5), (1, 12, 1)])
@pytest.mark.parametrize("maker", CAUSAL)
def test_packed_sequences(maker, lengths):
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    eager, ours = masks(maker, position_ids=positions)
    assert_same_mask(eager, ours, says={"is_causal", "segment_ids"} | ({"window"} if maker == "window" else set()))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("where", [None, "left", "right"])
@pytest.mark.parametrize("maker", ["causal", "window"])
def test_blocks_of_images(maker, where, packed):
    blocks = torch.full((BATCH, TOKENS), -1)
    blocks[0, 2:9], blocks[1, 4:6], blocks[1, 8:12] = 0, 0, 1
    positions = torch.cat([torch.arange(7), torch.arange(7)])[None] if packed and where is None else None
    eager, ours = masks(maker, attention_mask=padding(where), block_sequence_ids=blocks, position_ids=positions)
    # transformers 5.20 lets blocks reach over packed sequences.
    if positions is None or hasattr(masking_utils, "remap_positions_for_packed_sequence"):
        assert "block_ids" in ours.visibility.call()
    assert_same_mask(eager, ours)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("length", [0, 2, 6, 11])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("maker", CAUSAL)
def test_caches(maker, kind, length, queries):
    for where in (None, "left"):
        window = maker if maker == "window" else None
        cache = filled(length, kind, window)
        mask = padding(where, length + queries)
        eager, ours = masks(maker, queries=queries, cache=cache, attention_mask=mask)
        assert_same_mask(eager, ours)
        assert "attn_mask" not in ours.visibility.call()


def test_blocks_on_a_cache_of_fixed_size():
    blocks = torch.full((BATCH, 6), -1)
    blocks[:, 1:4] = 0
    eager, ours = masks("causal", queries=6, cache=filled(0, "static"), block_sequence_ids=blocks)
    assert_same_mask(eager, ours)


@pytest.mark.parametrize("maker", MAKERS)
def test_rules_of_the_users_own(maker):
    def odd(batch, head, query, key):
        return (query + key) % 3 != 0

    for options in ({"and_mask_function": odd}, {"or_mask_function": odd}):
        eager, ours = masks(maker, attention_mask=padding("left"), **options)
        assert_same_mask(eager, ours, says={"attn_mask"})


def test_cross_attention_of_another_length():
    eager, ours = masks(
        "bidirectional", queries=3, encoder_hidden_states=torch.zeros(BATCH, TOKENS, 8), attention_mask=padding("right")
    )
    assert_same_mask(eager, ours, says={"key_mask"})


def unusual_functions():
    causal, both, any_of = masking_utils.causal_mask_function, masking_utils.and_masks, masking_utils.or_masks
    yield any_of(causal, masking_utils.bidirectional_mask_function)
    yield both(any_of(causal, masking_utils.blockwise_overlay(A_BLOCK)), masking_utils.sliding_window_overlay(2))
    yield masking_utils.blockwise_overlay(torch.tensor([[-1, 0, 0, 0, 1, 1]]))
    chunks = [masking_utils.chunked_overlay(size, torch.tensor([size - 2])) for size in (2, 3)]
    yield both(*chunks)
    yield lambda batch, head, query, key: key <= query + 1
    if hasattr(masking_utils, "remap_positions_for_packed_sequence"):  # not in 5.20
        unsorted = torch.tensor([[0, 2, 1, 3, 5, 4]])
        packed = masking_utils.packed_sequence_mask_function(torch.tensor([[0, 0, 0, 1, 1, 1]]))
        yield both(masking_utils.remap_positions_for_packed_sequence(causal, unsorted), packed)


@pytest.mark.parametrize("function", list(unusual_functions()))
def test_unusual_combinations_are_slow_but_right(function):
    from posenc.hf.masks import posenc_mask

    eager = masking_utils.eager_mask(1, 6, 6, mask_function=function, dtype=torch.float32)
    ours = posenc_mask(1, 6, 6, mask_function=function)
    assert_same_mask(eager, ours, says={"attn_mask"})


def test_any_look_at_the_mask_finds_eagers():
    eager, ours = masks("window", attention_mask=padding("left"))
    torch.testing.assert_close(ours[:, :, :, :5], eager[:, :, :, :5], rtol=0, atol=0)
    torch.testing.assert_close(torch.where(ours == 0, 1, 2), torch.where(eager == 0, 1, 2), rtol=0, atol=0)
    torch.testing.assert_close(ours.bool(), eager.bool(), rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([ours, ours], 2), torch.cat([eager, eager], 2), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(ours) + 0, eager, rtol=0, atol=0)
    assert float(ours.min()) == torch.finfo(torch.float32).min
    torch.testing.assert_close(torch.tensor(ours.tolist()), eager, rtol=0, atol=0)
    torch.testing.assert_close(torch.from_numpy(ours.numpy()), eager, rtol=0, atol=0)
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again + 0, eager, rtol=0, atol=0)
    assert ours.contiguous() is ours and ours.to("cpu") is ours
    assert "key_mask" in repr(ours)


@pytest.mark.parametrize("maker", MAKERS)
def test_attention_with_the_structure_equals_eager_with_the_mask(maker):
    from posenc.hf.attention import posenc_attention

    eager, ours = masks(maker, attention_mask=padding("left"))
    layer = SimpleNamespace(num_key_value_groups=2, training=False)
    module = torch.nn.Identity()
    q = torch.randn(BATCH, 4, TOKENS, 8)
    k, v = (torch.randn(BATCH, 2, TOKENS, 8) for _ in range(2))
    expected = eager_attention_forward(layer, q, k, v, eager, 0.3)[0]
    found, weights = posenc_attention(module, q, k, v, ours, scaling=0.3)
    assert weights is None and found.is_contiguous()
    seen = padding("left").bool()
    torch.testing.assert_close(found[seen], expected[seen])
