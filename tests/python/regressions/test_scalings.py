"""Faults of other libraries' scaled frequencies, in the modules that use them (the formulas: scaling/)."""

import pytest
import torch

import posenc
import reference
from rotary_calls import unit_pairs
from tolerances import assert_bits

pytestmark = pytest.mark.kernels

nn, scaling = posenc.nn, posenc.scaling


class TestCachedKeys:
    """DynamicNTK(factor 2, original 16), d = 8: 16 tokens of prefill, then one more."""

    dynamic = scaling.DynamicNTK(2.0, 16)
    builds = {
        "rotary": lambda **o: nn.Rotary(8, **o),
        "multimodal": lambda **o: nn.MultimodalRotary(8, (1, 1, 2), **o),
    }

    @pytest.mark.parametrize("name", builds)
    def test_a_fixed_length_keeps_cached_keys_consistent(self, name):
        module = self.builds[name](scaling=self.dynamic, seq_len=17)
        q, k = torch.randn(1, 2, 17, 8), torch.randn(1, 2, 17, 8)
        whole = module(q, k)
        prefill = module(q[:, :, :16], k[:, :, :16])
        decoded = module(q[:, :, 16:], k[:, :, 16:], offset=16)
        for first, last, e in zip(prefill, decoded, whole, strict=True):
            assert_bits(torch.cat([first, last], dim=2), e)
        per_call = self.builds[name](scaling=self.dynamic)
        for first, last, e in zip(
            per_call(q[:, :, :16], k[:, :, :16], seq_len=17),
            per_call(q[:, :, 16:], k[:, :, 16:], offset=16, seq_len=17),
            whole,
            strict=True,
        ):
            assert_bits(torch.cat([first, last], dim=2), e)

    @pytest.mark.parametrize("name", builds)
    def test_without_a_fixed_length_the_base_moves_with_the_length(self, name):
        module, key = self.builds[name](scaling=self.dynamic), unit_pairs(8, 17)
        assert module(key)[0, 0, 15, 1].item() == pytest.approx(0.1281930, abs=5e-7)
        assert module(key[:, :, :16])[0, 0, 15, 1].item() == pytest.approx(0.0707372, abs=5e-7)

    def test_the_docstring_says_that_keys_of_two_lengths_do_not_match(self):
        text = " ".join(nn.Rotary.__doc__.split())
        assert "Keys rotated under one length do not match queries rotated under another" in text


class TestYarnMagnitude:
    @pytest.mark.parametrize("exact", [True, False])
    @pytest.mark.parametrize(
        ("arguments", "magnitude"),
        [
            ({"factor": 128, "attention_factor": 1.4852030}, 1.4852030),
            ({"factor": 128}, 1.4852030),
            ({"factor": 40, "mscale": 1, "mscale_all_dim": 1}, 1.0),
            ({"factor": 40, "mscale": 1, "mscale_all_dim": 0}, 1.3688879),
            ({"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ],
        ids=str,
    )
    def test_norms_grow_by_the_magnitude_once(self, arguments, magnitude, exact):
        yarn = scaling.Yarn(original_max_positions=4096, **arguments)
        q = torch.randn(2, 3, 5, 64)
        for module in (
            nn.Rotary(64, scaling=yarn, exact=exact),
            nn.Rotary(64, scaling=yarn, exact=exact, learnable=True),
            nn.MultimodalRotary(64, (8, 12, 12), scaling=yarn, exact=exact),
        ):
            ratio = module(q).detach().norm(dim=-1) / q.norm(dim=-1)
            torch.testing.assert_close(ratio, torch.full_like(ratio, magnitude), rtol=1e-6, atol=0)


class TestYarnRampEdges:
    @pytest.mark.parametrize(
        ("original", "factor", "expected"),
        [
            (64, 4.0, [1, 0.625, 0.25, 0.25]),
            (4, 4.0, [1, 0.25, 0.25, 0.25]),
            (163840, 4.0, [1, 1, 1, 0.75]),
            (64, 1.0, [1, 1, 1, 1]),
        ],
    )
    def test_modules_turn_by_the_ramp(self, original, factor, expected):
        yarn = scaling.Yarn(factor, original, attention_factor=1.0)
        for module in (nn.Rotary(8, scaling=yarn), nn.MultimodalRotary(8, (1, 1, 2), scaling=yarn)):
            y = module(unit_pairs(8, 1, torch.float64), offset=1).flatten()
            turned = torch.atan2(y[4:], y[:4]) / reference.inverse_frequencies(8)
            assert turned.tolist() == pytest.approx(expected, rel=1e-9)


class TestLongRopeChoice:
    """d = 4, original length 8, short factors (1, 1), long ones (2, 4)."""

    kind = scaling.LongRoPE([1.0, 1.0], [2.0, 4.0], 8, factor=4.0, attention_factor=1.0)
    short, long = [1, 0.01], [0.5, 0.0025]
    builds = {
        "rotary": (lambda **o: nn.Rotary(4, **o), 0),
        "multimodal": (lambda **o: nn.MultimodalRotary(4, (1, 1), **o), 2),
    }

    @staticmethod
    def turned_at_1(module, call, axes):
        """Frequencies in a call of 2 rows at positions 0..3, except as `call` says,
        read off the token at position 1."""
        x = unit_pairs(4, 4, torch.float64).expand(2, -1, -1, -1)
        positions = call.pop("positions", None)
        if positions is not None and axes:
            positions = positions.expand(axes, *positions.shape)
        y = module(x, positions=positions, **call)[0, 0, 1]
        return torch.atan2(y[2:], y[:2]).tolist()

    @pytest.mark.parametrize("name", builds)
    def test_the_list_of_long_rope_follows_the_length_of_the_call(self, name):
        build, axes = self.builds[name]
        module = build(scaling=self.kind)
        in_range, beyond = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 7]]), torch.tensor([[0, 1, 2, 3], [8, 9, 10, 11]])
        for call, expected in (
            ({}, self.short),
            ({"seq_len": 8}, self.short),
            ({"seq_len": 9}, self.long),
            ({"positions": in_range}, self.short),
            ({"positions": beyond}, self.long),
            ({"positions": beyond, "seq_len": 4}, self.short),
            ({}, self.short),
        ):
            assert self.turned_at_1(module, dict(call), axes) == pytest.approx(expected, rel=1e-9)
        fixed = build(scaling=self.kind, seq_len=32)
        assert self.turned_at_1(fixed, {}, axes) == pytest.approx(self.long, rel=1e-9)

    @pytest.mark.parametrize("name", builds)
    def test_lists_of_wrong_length_raise_at_construction(self, name):
        with pytest.raises(ValueError, match="2 numbers for dim 4, but got 3"):
            self.builds[name][0](scaling=scaling.LongRoPE([1.0] * 3, [2.0] * 3, 8))


def test_a_configuration_whose_layers_differ_in_heads_is_read():
    """Which attribute was asked for first followed from the hash seed of the process."""

    class Config:
        model_type = "llama"
        rope_parameters = {"rope_type": "default", "rope_theta": 5e5}
        head_dim = 64
        max_position_embeddings = 4096

        @property
        def num_attention_heads(self):
            raise RuntimeError("varies by layer")

    assert posenc.nn.Rotary.from_hf(Config()).base == 5e5
