"""ForgettingBias in Attention and KVCache: decays of the layer's input, kept for all tokens, in both languages.

What holds for every encoding there is tested by way of block_stacks.py.
"""

import pytest
import torch

import block_reference
import contextual_reference
import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS, KV_HEADS
from tolerances import assert_bits

BATCH, LENGTH = 2, 9

in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def embeddings(dtype=torch.float64):
    return torch.randn(BATCH, LENGTH, EMBED_DIM, dtype=torch.float64).to(dtype)


def new_cache(namespace=posenc.nn, dtype=torch.float64):
    return namespace.KVCache(BATCH, KV_HEADS, LENGTH, HEAD_DIM, dtype=dtype)


def test_block_is_what_the_papers_say():
    """Decays are of the layer's input, what absolute encodings add included; rotary encodings turn q and k alone."""
    for kind in ("fox", "cable"):
        absolute, bias = posenc.nn.Sinusoidal(EMBED_DIM), posenc.nn.ForgettingBias(EMBED_DIM, HEADS, kind=kind)
        block = BY_NAME["nope"].block(encodings=[absolute, posenc.nn.Rotary(HEAD_DIM), bias]).double()
        x, positions = embeddings(), torch.arange(LENGTH)
        moved = absolute(x)
        parameters = {name: p.detach() for name, p in bias.named_parameters()}
        sums = contextual_reference.log_decay(moved, **parameters).cumsum(-1)
        expected = block_reference.block(
            {name: p.detach() for name, p in block.named_parameters()},
            moved,
            HEADS,
            KV_HEADS,
            visible=(positions[:, None] >= positions).expand(BATCH, -1, -1),
            rotate=lambda t, positions=positions: block_reference.rope(t, positions),
            bias=sums.unsqueeze(-1) - sums.unsqueeze(-2),
        )
        torch.testing.assert_close(block(x).detach(), expected, rtol=1e-10, atol=1e-10)


def test_hooks_of_the_encoding_fire():
    """The block calls the module, so that what wraps modules (hooks, sharding) sees its parameters used."""
    block, seen = BY_NAME["fox"].block(), []
    block.encodings[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    block(embeddings(torch.float32))
    assert seen == [(BATCH, HEADS, LENGTH)]


@in_both_languages
@pytest.mark.parametrize("name", ["fox", "rotary_cable"])
def test_decoding_with_window_segments_and_mask(namespace, name):
    block = BY_NAME[name].block(namespace, window=4)
    block.to(torch.float64)
    x, cache, outputs = embeddings(), new_cache(namespace), []
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [3] * LENGTH])
    mask = torch.tensor([[True] * 6 + [False] + [True] * 2, [False] * 2 + [True] * 7])
    with torch.no_grad():
        whole = block.forward(x, segment_ids=segments, key_mask=mask)
        for begin, end in ((0, 3), (3, 4), (4, 6), (6, 9)):
            masks = {"segment_ids": segments[:, :end], "key_mask": mask[:, :end]}
            outputs.append(block.forward(x[:, begin:end], cache=cache, **masks))
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-9, atol=1e-9)


@in_both_languages
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_decays_are_cached_unrounded(namespace, dtype):
    """In half width k and v are rounded, sums of decays over thousands of tokens must not be."""
    block, cache = BY_NAME["fox"].block(namespace), new_cache(namespace, dtype)
    block.to(dtype)
    x = embeddings(dtype)
    with torch.no_grad():
        for begin, end in ((0, 4), (4, 5), (5, 7)):
            block.forward(x[:, begin:end], cache=cache)
    assert cache.log_decay.dtype == torch.promote_types(dtype, torch.float32)
    parameters = dict(block.named_parameters())
    weight, bias = (parameters[f"encodings.0.{name}"].detach().double() for name in ("weight", "bias"))
    expected = contextual_reference.log_decay(x[:, :7].double(), weight, bias)
    torch.testing.assert_close(cache.log_decay.double(), expected, rtol=1e-5, atol=1e-5)


def test_autocast_beside_a_cache_in_half_width():
    block, cache, x = BY_NAME["fox"].block(), new_cache(dtype=torch.bfloat16), embeddings(torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        parts = [block(x[:, begin:end], cache=cache) for begin, end in ((0, 5), (5, 6), (6, LENGTH))]
    assert_bits(cache.log_decay, block.encodings[0](x).detach())
    torch.testing.assert_close(torch.cat(parts, dim=1).float(), block(x).detach(), rtol=4e-2, atol=4e-2)


@in_both_languages
def test_a_call_that_raises_leaves_the_decays_in_the_cache(namespace):
    block, x = BY_NAME["fox"].block(namespace), embeddings(torch.float32)
    cache, wrong = new_cache(namespace, torch.float32), torch.ones(BATCH, 2, dtype=torch.bool)
    with torch.no_grad():
        with pytest.raises(ValueError, match="key_mask"):
            block.forward(x[:, :3], key_mask=wrong, cache=cache)
        assert (cache.length, cache.log_decay) == (0, None)
        block.forward(x[:, :3], cache=cache)
        known = cache.log_decay.clone()
        with pytest.raises(ValueError, match="key_mask"):
            block.forward(x[:, 3:5], key_mask=wrong, cache=cache)
        assert_bits(cache.log_decay, known)
        again = block.forward(x[:, 3:], cache=cache)
        torch.testing.assert_close(again, block.forward(x)[:, 3:], rtol=1e-5, atol=1e-5)


def test_compiled_decoding(fresh_compiler):
    block, x = BY_NAME["fox"].block(), embeddings(torch.float32)
    caches = [new_cache(dtype=torch.float32) for _ in range(2)]
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 9)):
            y = compiled(x[:, begin:end], cache=caches[0])
            torch.testing.assert_close(y, block(x[:, begin:end], cache=caches[1]), rtol=1e-5, atol=1e-5)
    assert_bits(caches[0].log_decay, caches[1].log_decay)


@pytest.mark.parametrize("name", ["fox", "rotary_cable"])
def test_compiled_and_exported(name, fresh_compiler):
    block, x = BY_NAME[name].block(), embeddings(torch.float32).requires_grad_()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[0, :2] = False
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    y, expected = compiled(x, key_mask=mask), block(x, key_mask=mask)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    grad, wanted = torch.randn_like(y), [x, *block.parameters()]
    for result, e in zip(
        torch.autograd.grad(y, wanted, grad), torch.autograd.grad(expected, wanted, grad), strict=True
    ):
        torch.testing.assert_close(result, e, rtol=1e-4, atol=1e-4)
    program = torch.export.export(block, (x.detach(),), {"key_mask": mask})
    assert set(program.state_dict) == set(block.state_dict())
    assert_bits(program.module()(x, key_mask=mask).detach(), expected.detach())


REFUSED = {
    "causality": (
        lambda nn: [nn.ForgettingBias(EMBED_DIM, HEADS)],
        {"is_causal": False},
        "expected is_causal to be true with",
    ),
    "width": (
        lambda nn: [nn.ForgettingBias(16, HEADS)],
        {},
        "ForgettingBias.* to have embed_dim 32, as the block's embed_dim is 32, but got 16",
    ),
    "heads": (lambda nn: [nn.ForgettingBias(EMBED_DIM, 2)], {}, "ForgettingBias.* num_heads 4, .* but got 2"),
    "a second one": (
        lambda nn: [nn.ForgettingBias(EMBED_DIM, HEADS), nn.ForgettingBias(EMBED_DIM, HEADS, kind="cable")],
        {},
        "at most one score encoding with state of tokens of a kind",
    ),
}


@in_both_languages
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_together_is_refused(namespace, case):
    encodings, options, message = REFUSED[case]
    with pytest.raises(ValueError, match="Attention: .*" + message):
        namespace.Attention(EMBED_DIM, HEADS, encodings=encodings(namespace), **options)


@in_both_languages
def test_calls_that_do_not_fit_are_refused(namespace):
    block, x = BY_NAME["fox"].block(namespace), embeddings(torch.float32)
    with pytest.raises(ValueError, match="with a score encoding, whose distances have one axis"):
        block.forward(x, positions=torch.zeros(3, BATCH, LENGTH))
    with pytest.raises(ValueError, match="expected key_mask of shape"):
        block.forward(x, key_mask=torch.ones(BATCH, 6, dtype=torch.bool))
