"""Faults of other libraries' attention layers: positions by row, devices, masked rows."""

import math

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, KV_HEADS, POSITIONED, STACKS
from tolerances import assert_bits

every_stack = pytest.mark.parametrize("stack", STACKS, ids=str)
every_positioned_stack = pytest.mark.parametrize("stack", POSITIONED, ids=str)


def counted(stack, length, rows=1):
    """Positions 0, 1, .. where the stack cannot count for itself."""
    return None if stack.axes is None else stack.positions(torch.arange(length).expand(rows, -1))


def embeddings(rows, length):
    return torch.randn(rows, length, EMBED_DIM)


# A row of a batch is encoded as it is alone.


@every_positioned_stack
def test_left_padded_rows_equal_their_prompts_alone(stack):
    block, x = stack.block(), embeddings(2, 5)
    places = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    y = block(x, positions=stack.positions(places), key_mask=mask)
    short, long = x[:1, 2:], x[1:]
    torch.testing.assert_close(y[:1, 2:], block(short, positions=counted(stack, 3)), rtol=1e-6, atol=5e-6)
    torch.testing.assert_close(y[1:], block(long, positions=counted(stack, 5)), rtol=1e-6, atol=5e-6)


@every_positioned_stack
def test_packed_sequences_equal_each_alone(stack):
    block, x = stack.block(), embeddings(1, 8)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    y = block(x, positions=stack.positions(places), segment_ids=segments)
    for begin in (0, 4):
        alone = block(x[:, begin : begin + 4], positions=counted(stack, 4))
        torch.testing.assert_close(y[:, begin : begin + 4], alone, rtol=1e-6, atol=5e-6)


@every_positioned_stack
def test_positions_may_repeat_in_any_order_and_broadcast(stack):
    block, x = stack.block(), embeddings(2, 5)
    places = torch.tensor([[7, 2, 2, 0, 5]])
    y = block(x, positions=stack.positions(places))
    assert_bits(y, block(x, positions=stack.positions(places.expand(2, -1))))
    for row in range(2):
        alone = block(x[row : row + 1], positions=stack.positions(places))
        torch.testing.assert_close(y[row : row + 1], alone, rtol=1e-6, atol=5e-6)


# Others know where a token is, not only how far from another one. So does CoPE behind rotary encodings: the queries
# that its position logits are made of are turned.
ABSOLUTE = {
    "sinusoidal",
    "sinusoidal_axes",
    "learned_absolute",
    "cape",
    "fire",
    "rotary_cope",
    "xpos_cope_keys",
    "sinusoidal_rotary_alibi",
    "t5_fire_deberta",
}
RELATIVE = [stack for stack in POSITIONED if stack.name not in ABSOLUTE]


@pytest.mark.parametrize("stack", RELATIVE, ids=str)
def test_shifting_all_positions_changes_no_relative_scheme(stack):
    block, x = stack.block().double(), embeddings(2, 6).double()
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 2, 4, 4, 6]])
    y, shifted = (block(x, positions=stack.positions(places) + shift) for shift in (0, 50))
    torch.testing.assert_close(shifted, y, rtol=1e-5, atol=1e-5)


# Nothing depends on a default device, and mixed devices raise.


@every_stack
def test_the_default_device_is_not_used_after_construction(stack):
    x = embeddings(2, 6)
    with torch.no_grad():
        expected = stack.block()(x, positions=counted(stack, 6))
    with torch.device("meta"):
        block = stack.block()
        cache = posenc.nn.KVCache(2, KV_HEADS, 6, HEAD_DIM, device="cpu")
    block.to_empty(device="cpu")
    block.load_state_dict(stack.block().state_dict())
    block.eval()
    positions = counted(stack, 6)
    with torch.device("meta"), torch.no_grad():
        assert_bits(block(x, positions=positions), expected)
        decoded = block(x, positions=positions, cache=cache)
    torch.testing.assert_close(decoded, expected, rtol=1e-5, atol=1e-5)


MISPLACED = {
    "positions": torch.arange(6),
    "key_mask": torch.ones(2, 6, dtype=torch.bool),
    "segment_ids": torch.zeros(2, 6, dtype=torch.int64),
}


@pytest.mark.parametrize("name", ["rotary", "alibi", "rerope", "cope", "learned_absolute"])
@pytest.mark.parametrize("argument", MISPLACED)
def test_arguments_on_another_device_raise(name, argument):
    if (name, argument) == ("cope", "positions"):
        name = "rotary_cope"  # CoPE alone counts for itself
    block = BY_NAME[name].block()
    with pytest.raises((ValueError, RuntimeError), match="meta"):
        block(embeddings(2, 6), **{argument: MISPLACED[argument].to("meta")})


def test_a_cache_on_another_device_raises():
    block = BY_NAME["rotary"].block()
    cache = posenc.nn.KVCache(2, KV_HEADS, 6, HEAD_DIM, device="meta")
    with torch.no_grad(), pytest.raises(ValueError, match="on the cache's device meta, but got cpu"):
        block(embeddings(2, 6), cache=cache)


# A query that sees nothing gives zeros, and what is masked reaches nobody.


@every_stack
def test_a_row_without_keys_gives_zeros_and_finite_gradients(stack):
    block, x = stack.block(), embeddings(2, 3).requires_grad_()
    mask = torch.tensor([[True, True, True], [False, False, False]])
    y = block(x, positions=counted(stack, 3, rows=2), key_mask=mask)
    assert_bits(y[1], block.o_proj.bias.detach().expand(3, -1))
    torch.testing.assert_close(y[:1], block(x[:1], positions=counted(stack, 3)), rtol=1e-6, atol=5e-6)
    gradients = torch.autograd.grad(y.square().sum(), [x, *block.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert_bits(gradients[0][1], torch.zeros(3, EMBED_DIM))


@every_stack
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_poison_in_a_masked_token_stays_there(stack, poison):
    block, clean = stack.block(), embeddings(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 2] = False
    poisoned = clean.clone()
    poisoned[0, 2] = poison
    call = {"positions": counted(stack, 6, rows=2), "key_mask": mask}
    expected, y = block(clean, **call), block(poisoned, **call)
    assert_bits(y[mask], expected[mask])


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_hidden_keys_get_no_gradient(stack):
    """Not even through the sums of gates or tables of an encoding."""
    block, x = stack.block(), embeddings(2, 6).requires_grad_()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, :2] = False
    y = block(x, positions=counted(stack, 6, rows=2), key_mask=mask)
    (gradient,) = torch.autograd.grad(y[0, 2:].square().sum(), x)
    assert_bits(gradient[0, :2], torch.zeros(2, EMBED_DIM))
    assert_bits(gradient[1], torch.zeros(6, EMBED_DIM))


@pytest.mark.parametrize("causal", [True, False])
def test_queries_before_all_keys_see_nothing(causal):
    """Positions may make every key later than a query."""
    block = BY_NAME["nope"].block(is_causal=causal)
    x = embeddings(2, 4)
    mask = torch.tensor([[False, True, True, True]] * 2)
    y = block(x, key_mask=mask)
    first = block.o_proj.bias.detach().expand(2, -1)
    assert torch.equal(y[:, 0], first) == causal
