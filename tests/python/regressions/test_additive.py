"""Faults of other libraries' additive biases: the right numbers, in both languages."""

import pytest
import torch

import posenc
from posenc.nn import ALiBi, T5RelativeBias

both = pytest.mark.parametrize("library", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])


def buckets_as_weights(module):
    """weight[b, h] = b, so that a bias shows its bucket."""
    weight = dict(module.named_parameters())["weight"]
    with torch.no_grad():
        weight.copy_(torch.arange(len(weight)).unsqueeze(1).expand_as(weight))
    return module


class TestALiBiSlopes:
    expected = {
        1: [0.00390625],
        3: [0.0625, 0.00390625, 0.25],
        6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
        8: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625],
    }

    @pytest.mark.parametrize("heads", expected)
    def test_slopes_are_those_of_the_published_code(self, heads):
        assert posenc.ops.alibi_slopes(heads).tolist() == self.expected[heads]

    def test_eight_heads_come_first_of_twelve(self):
        slopes = posenc.ops.alibi_slopes(12)
        assert slopes[:8].tolist() == self.expected[8]
        torch.testing.assert_close(
            slopes[8:], torch.tensor([0.7071068, 0.3535534, 0.1767767, 0.0883883]), rtol=0, atol=1e-7
        )

    @both
    @pytest.mark.parametrize("heads", [*expected, 12, 71])
    def test_modules_use_these_slopes(self, library, heads):
        bias = library.ALiBi(heads).bias(1, 2)
        torch.testing.assert_close(bias[:, 0, 0], -posenc.ops.alibi_slopes(heads), rtol=0, atol=0)


@both
class TestALiBiWithACache:
    def test_new_queries_are_the_last_rows(self, library):
        module = library.ALiBi(2)
        slopes = torch.tensor([0.0625, 0.00390625])
        assert module.bias(1, 4)[0].tolist() == [[-0.1875, -0.125, -0.0625, 0]]
        two = module.bias(2, 5)
        assert two[0, 0, :4].tolist() == [-0.1875, -0.125, -0.0625, 0]
        assert two[0, 1].tolist() == [-0.25, -0.1875, -0.125, -0.0625, 0]
        distance = (torch.arange(4).unsqueeze(1) - torch.arange(4)).abs()
        torch.testing.assert_close(module.bias(4), -slopes.view(2, 1, 1) * distance, rtol=0, atol=0)

    @pytest.mark.parametrize("new", [1, 2, 3])
    def test_decoding_equals_the_last_rows(self, library, new):
        module = library.ALiBi(6)
        torch.testing.assert_close(module.bias(new, 7), module.bias(7)[:, -new:], rtol=0, atol=0)
        q, k, v = torch.randn(3, 2, 6, 7, 8)
        full = module.attend(q, k, v, is_causal=True)
        torch.testing.assert_close(module.attend(q[:, :, -new:], k, v, is_causal=True), full[:, :, -new:])


@both
class TestT5WithACache:
    def test_new_queries_are_the_last_rows(self, library):
        module = buckets_as_weights(library.T5RelativeBias(3))
        for head in range(3):
            assert module.bias(1, 4)[head].tolist() == [[3, 2, 1, 0]]
        torch.testing.assert_close(module.bias(2, 5), module.bias(5)[:, 3:], rtol=0, atol=0)
        assert module.bias(5, None).shape == (3, 5, 5)

    @pytest.mark.parametrize("new", [1, 2])
    def test_decoding_equals_the_last_rows(self, library, new):
        module = buckets_as_weights(library.T5RelativeBias(4))
        q, k, v = torch.randn(3, 2, 4, 5, 8)
        full = module.attend(q, k, v, is_causal=True)
        torch.testing.assert_close(module.attend(q[:, :, -new:], k, v, is_causal=True), full[:, :, -new:])
        positions = {"q_positions": torch.arange(5 - new, 5), "k_positions": torch.arange(5)}
        torch.testing.assert_close(module.attend(q[:, :, -new:], k, v, is_causal=True, **positions), full[:, :, -new:])


class TestT5Direction:
    def test_sign_is_key_minus_query(self):
        relative = torch.tensor([-1, 0, 1, 5])
        assert posenc.ops.t5_bucket(relative, bidirectional=True).tolist() == [1, 0, 17, 21]
        assert posenc.ops.t5_bucket(relative, bidirectional=False).tolist() == [1, 0, 0, 0]

    @both
    def test_encoder_and_decoder_differ(self, library):
        encoder = buckets_as_weights(library.T5RelativeBias(2, bidirectional=True))
        decoder = buckets_as_weights(library.T5RelativeBias(2))
        assert encoder.bias(3)[0].tolist() == [[0, 17, 18], [1, 0, 17], [2, 1, 0]]
        assert decoder.bias(3)[0].tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0]]

    @both
    def test_transposing_swaps_the_halves(self, library):
        bias = buckets_as_weights(library.T5RelativeBias(1, bidirectional=True)).bias(140)[0]
        later = torch.ones_like(bias).triu(1).bool()
        torch.testing.assert_close(bias.T[later] + 16, bias[later], rtol=0, atol=0)


def test_slopes_belong_to_all_heads_of_a_model():
    """A rank of tensor parallelism takes its share of the whole list, not the list of its share."""
    whole = ALiBi(6)
    share = ALiBi(3, slopes=posenc.ops.alibi_slopes(6)[3:])
    torch.testing.assert_close(share.bias(5), whole.bias(5)[3:], rtol=0, atol=0)


def test_t5_is_a_decoder_unless_told_otherwise():
    assert not T5RelativeBias(1).bidirectional
