"""Decoding with a KVCache equals one pass over the whole, for every encoding, in both languages."""

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS, KV_HEADS, POSITIONED, STACKS
from tolerances import assert_bits

BATCH, LENGTH = 2, 9
CHUNKS = {
    "token by token": [1] * LENGTH,
    "prompt, then tokens": [5, 1, 1, 1, 1],
    "chunks": [2, 4, 3],
    "at once": [LENGTH],
}

every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)
in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def new_cache(namespace=posenc.nn, dtype=torch.float64):
    return namespace.KVCache(BATCH, KV_HEADS, LENGTH + 3, HEAD_DIM, dtype=dtype)


def as_double(block):
    block.to(torch.float64)
    return block


def embeddings():
    return torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64)


@torch.no_grad()
def decode(block, x, chunks, cache, positions=None, key_mask=None, segment_ids=None):
    """The outputs of all chunks, each fed with what it may know."""
    outputs, begin = [], 0
    for count in chunks:
        end = begin + count
        outputs.append(
            block.forward(
                x[:, begin:end],
                positions=None if positions is None else positions[..., begin:end],
                key_mask=None if key_mask is None else key_mask[:, :end],
                segment_ids=None if segment_ids is None else segment_ids[:, :end],
                cache=cache,
            )
        )
        begin = end
    assert cache.length == begin
    return torch.cat(outputs, dim=1)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@every_stack
@in_both_languages
@pytest.mark.parametrize("chunks", CHUNKS)
def test_decoding_equals_one_pass(stack, namespace, chunks):
    block, x = as_double(stack.block(namespace)), embeddings()
    positions = None if stack.axes is None else stack.positions(torch.arange(LENGTH).expand(BATCH, -1))
    with torch.no_grad():
        whole = block.forward(x, positions=positions)
    assert_close(decode(block, x, CHUNKS[chunks], new_cache(namespace), positions), whole)


@pytest.mark.parametrize("stack", POSITIONED, ids=str)
@pytest.mark.parametrize("chunks", ["token by token", "prompt, then tokens"])
def test_decoding_with_left_padding_equals_each_row_alone(stack, chunks):
    """Rows of 9, 6 tokens: what the pads hold reaches nobody, and positions count from each row's first token."""
    block, x = as_double(stack.block()), embeddings()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, :3] = False
    places = posenc.positions.positions_from_mask(mask)
    call = {"positions": stack.positions(places), "key_mask": mask}
    with torch.no_grad():
        whole = block(x, **call)
        alone = block(x[1:, 3:], positions=None if stack.axes is None else stack.positions(places[1:, 3:]))
    decoded = decode(block, x, CHUNKS[chunks], new_cache(), **call)
    assert_close(decoded[mask], whole[mask])
    assert_close(whole[1:, 3:], alone)


@every_stack
def test_decoding_goes_on_after_crop_and_reset(stack):
    block, x = as_double(stack.block()), embeddings()
    positions = None if stack.axes is None else stack.positions(torch.arange(LENGTH).expand(BATCH, -1))
    cache = new_cache()
    first = decode(block, x, [4, 3], cache, positions)
    cache.crop(5)
    with torch.no_grad():
        again = block(x[:, 5:7], positions=None if positions is None else positions[..., 5:7], cache=cache)
    assert_close(again, first[:, 5:])
    cache.reset()
    assert_close(decode(block, x, [7], cache, positions), first)


@pytest.mark.parametrize("name", ["rotary", "alibi", "rerope", "cope", "learned_absolute"])
def test_window_and_segments_span_the_cache(name):
    block = as_double(BY_NAME[name].block(window=4))
    x = embeddings()
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [3, 3, 3, 3, 3, 3, 3, 3, 3]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
    with torch.no_grad():
        whole = block(x, positions=positions, segment_ids=segments)
    assert_close(decode(block, x, [3, 1, 2, 3], new_cache(), positions, segment_ids=segments), whole)


@pytest.mark.parametrize("name", ["rotary", "alibi", "sinusoidal_rotary_alibi"])
def test_positions_given_in_some_calls_hold_for_all_tokens(name):
    """A gap after the prompt; the tokens before it were counted."""
    block, x, cache = as_double(BY_NAME[name].block()), embeddings(), new_cache()
    positions = torch.tensor([0, 1, 2, 3, 7, 8, 9, 10, 11])
    with torch.no_grad():
        whole = block(x, positions=positions)
        parts = [block(x[:, :4], cache=cache), block(x[:, 4:], positions=positions[4:], cache=cache)]
    assert_close(torch.cat(parts, dim=1), whole)
    assert cache.positions.tolist() == [positions.tolist()] * BATCH


@in_both_languages
@pytest.mark.parametrize("name", ["rotary", "alibi", "sinusoidal_rotary_alibi"])
def test_left_out_positions_follow_the_largest_of_each_row(name, namespace):
    """They once counted from the place in the cache, here 4, without a word."""
    block, x, cache = as_double(BY_NAME[name].block(namespace)), embeddings(), new_cache(namespace)
    positions = torch.stack([torch.arange(10, 10 + LENGTH), torch.arange(3, 3 + LENGTH)])
    with torch.no_grad():
        whole = block.forward(x, positions=positions)
        parts = [block.forward(x[:, :4], positions=positions[:, :4], cache=cache)]
        parts += [block.forward(x[:, begin:end], cache=cache) for begin, end in ((4, 5), (5, LENGTH))]
    assert_close(torch.cat(parts, dim=1), whole)
    assert cache.positions.tolist() == positions.tolist()


@in_both_languages
def test_left_out_positions_without_a_next_one_are_refused(namespace):
    x = embeddings()
    floating = (BY_NAME["rotary"], torch.arange(0, 2, 0.5))
    several = (BY_NAME["multimodal"], torch.zeros(3, BATCH, 4, dtype=torch.int64))
    for (stack, positions), kind in ((floating, "are floating"), (several, "have several axes")):
        block, cache = as_double(stack.block(namespace)), new_cache(namespace)
        with torch.no_grad():
            block.forward(x[:, :4], positions=positions, cache=cache)
            with pytest.raises(ValueError, match=f"those of cached ones {kind} .*: pass positions"):
                block.forward(x[:, 4:5], cache=cache)
            assert cache.length == 4
            block.forward(x[:, 4:8], positions=positions, cache=cache)


def test_positions_of_several_axes_may_be_left_out_where_they_always_are():
    block, x = as_double(BY_NAME["multimodal"].block()), embeddings()
    with torch.no_grad():
        assert_close(decode(block, x, [4, 1, 1, 3], new_cache()), block(x))


def test_cached_keys_are_turned_by_rotary_encodings_and_left_by_rerope():
    x = embeddings()
    positions = torch.arange(LENGTH)
    for name, turned in (("rotary", True), ("rerope", False), ("self_extend", False)):
        block, cache = as_double(BY_NAME[name].block()), new_cache()
        with torch.no_grad():
            block(x, cache=cache)
            k = block.k_proj(x).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
            k = posenc.nn.Rotary(HEAD_DIM)(k, positions=positions) if turned else k
        keys, _ = cache.append(*torch.zeros(2, BATCH, KV_HEADS, 0, HEAD_DIM, dtype=torch.float64))
        assert_bits(keys, k)


def test_gate_keys_are_cached_for_gates_by_key_alone():
    for name, expected in (("cope_keys", True), ("cope", False), ("cope_values", False)):
        block, cache = as_double(BY_NAME[name].block()), new_cache()
        decode(block, embeddings(), [4], cache)
        assert (cache.gate_keys is not None) == expected


@in_both_languages
@pytest.mark.parametrize(
    "scaling",
    [posenc.scaling.DynamicNTK(2.0, 16), posenc.scaling.LongRoPE([1.0] * 4, [2.0] * 4, 16)],
    ids=["ntk", "long"],
)
def test_scalings_by_length_need_one_length_beside_a_cache(namespace, scaling):
    x = torch.randn(BATCH, 1, EMBED_DIM)
    options = {"num_kv_heads": KV_HEADS}
    block = namespace.Attention(EMBED_DIM, HEADS, encodings=[namespace.Rotary(HEAD_DIM, scaling=scaling)], **options)
    cache = new_cache(namespace, torch.float32)
    with torch.no_grad(), pytest.raises(ValueError, match="Attention: .* give the rotary encoding seq_len, one length"):
        block.forward(x, cache=cache)
    assert cache.length == 0
    block.forward(x)
    rope = namespace.Rotary(HEAD_DIM, scaling=scaling, seq_len=64)
    with torch.no_grad():
        namespace.Attention(EMBED_DIM, HEADS, encodings=[rope], **options).forward(x, cache=cache)


@in_both_languages
def test_a_call_that_raises_leaves_the_cache_as_it_was(namespace):
    block, cache = BY_NAME["alibi"].block(namespace), new_cache(namespace, torch.float32)
    x = torch.randn(BATCH, 3, EMBED_DIM)
    with torch.no_grad():
        block.forward(x, cache=cache)
        with pytest.raises(ValueError, match="key_mask"):
            block.forward(x, key_mask=torch.ones(BATCH, 3, dtype=torch.bool), cache=cache)
        with pytest.raises(TypeError, match="key_mask"):
            block.forward(x, key_mask=torch.ones(BATCH, 6), cache=cache)
        with pytest.raises(ValueError, match="max_length 12 tokens, but got 10 new after 3 cached"):
            block.forward(torch.randn(BATCH, 10, EMBED_DIM), cache=cache)
    assert cache.length == 3


@in_both_languages
def test_a_call_that_raises_leaves_the_positions_in_the_cache(namespace):
    """Floating ones, which scores by distance refuse, would make all that follow floating."""
    block, x = BY_NAME["alibi"].block(namespace), torch.randn(BATCH, 6, EMBED_DIM)
    for positions in (None, torch.arange(3)):
        cache, undisturbed = new_cache(namespace, torch.float32), new_cache(namespace, torch.float32)
        with torch.no_grad():
            for each in (cache, undisturbed):
                block.forward(x[:, :3], positions=positions, cache=each)
            with pytest.raises(TypeError, match="expected integer q_positions"):
                block.forward(x[:, 3:], positions=torch.arange(3, 6.0), cache=cache)
            known = cache.positions
            assert known is None if positions is None else known.tolist() == [[0, 1, 2]] * BATCH
            assert known is None or known.dtype == torch.int64
            outputs = [block.forward(x[:, 3:], cache=each) for each in (cache, undisturbed)]
        assert_bits(*outputs)


@in_both_languages
def test_a_first_call_that_raises_leaves_the_cache_empty(namespace):
    block, cache = BY_NAME["cope_keys"].block(namespace), new_cache(namespace, torch.float32)
    x = torch.randn(BATCH, 3, EMBED_DIM)
    with torch.no_grad(), pytest.raises(ValueError, match="key_mask"):
        block.forward(x, positions=torch.arange(3), key_mask=torch.ones(BATCH, 4, dtype=torch.bool), cache=cache)
    assert (cache.length, cache.gate_keys, cache.positions) == (0, None, None)


@in_both_languages
def test_gradients_beside_a_cache_are_refused(namespace):
    block, cache = BY_NAME["rotary"].block(namespace), new_cache(namespace, torch.float32)
    with pytest.raises(RuntimeError, match=r"a cache is for inference .* torch.no_grad\(\)"):
        block.forward(torch.randn(BATCH, 3, EMBED_DIM), cache=cache)
    with torch.inference_mode():
        block.forward(torch.randn(BATCH, 3, EMBED_DIM), cache=cache)
    assert cache.length == 3
