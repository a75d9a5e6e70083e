"""Every module can be built and run under FakeTensorMode, and keeps its constants' numbers for afterwards."""

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

import posenc
from block_stacks import EMBED_DIM, HEADS, KV_HEADS, STACKS

nn = posenc.nn


def build(stack):
    return nn.Attention(EMBED_DIM, HEADS, num_kv_heads=KV_HEADS, encodings=stack.encodings(nn)).eval()


def run(stack, layer):
    places = None if stack.axes is None else stack.positions(torch.arange(5).expand(2, -1))
    return layer(torch.empty(2, 5, EMBED_DIM), positions=places)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_layer_built_under_fake_tensors_is_fake_and_runs(stack):
    with FakeTensorMode():
        layer = build(stack)
        assert all(isinstance(tensor, FakeTensor) for tensor in [*layer.parameters(), *layer.buffers()])
        y = run(stack, layer)
        assert isinstance(y, FakeTensor) and y.shape == (2, 5, EMBED_DIM)
        y.sum().backward()
        assert all(p.grad is None or isinstance(p.grad, FakeTensor) for p in layer.parameters())


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_layer_built_under_fake_tensors_names_what_a_real_one_names(stack):
    real = build(stack)
    with FakeTensorMode():
        fake = build(stack)
    named = [(name, t.shape, t.dtype) for name, t in [*fake.named_parameters(), *fake.named_buffers()]]
    assert named == [(name, t.shape, t.dtype) for name, t in [*real.named_parameters(), *real.named_buffers()]]
    assert repr(fake) == repr(real)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_weights_may_come_after_the_fake_tensors(stack):
    real = build(stack)
    with FakeTensorMode():
        layer = build(stack)
    layer.load_state_dict(real.state_dict(), assign=True)
    x = torch.randn(2, 5, EMBED_DIM)
    places = None if stack.axes is None else stack.positions(torch.arange(5).expand(2, -1))
    torch.testing.assert_close(layer(x, positions=places), real(x, positions=places), rtol=0, atol=0)


def test_fixed_slopes_are_a_fake_buffer():
    with FakeTensorMode() as mode:
        module = nn.ALiBi(HEADS)
        assert isinstance(module.slopes, FakeTensor)
        assert module.slopes.fake_mode is mode
        assert module.slopes.dtype == torch.float64 and module.slopes.shape == (HEADS,)
