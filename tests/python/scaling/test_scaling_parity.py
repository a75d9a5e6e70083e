"""exact=False against transformers' own initialisers, bit for bit."""

import pytest
import torch

import scaling_reference as reference
from posenc import scaling
from scaling_cases import CASES, IDS
from tolerances import assert_bits

transformers = pytest.importorskip("transformers")
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

SHAPES = [(4, 10000.0), (8, 123456.7), (64, 150000.0), (80, 1e6), (96, 10000.0), (128, 500000.0), (256, 1e6)]
CPU = torch.device("cpu")


def theirs(dim, base, seq_len=None, *, length=4096, **rope):
    """As a model computes it: the length is the tensor max(position_ids) + 1."""
    config = transformers.LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=length,
        rope_parameters={"rope_theta": base, **rope},
    )
    if rope["rope_type"] == "default":
        return transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    tensor_length = None if seq_len is None else torch.tensor(seq_len)
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, CPU, seq_len=tensor_length)


def assert_parity(expected, dim, base, value, seq_len=None):
    inv_freq, attention_scaling = expected
    ours, our_scaling = scaling.frequencies(dim, base, value, seq_len, exact=False)
    assert_bits(ours, inv_freq)
    assert our_scaling == attention_scaling


@pytest.mark.parametrize(("dim", "base"), SHAPES)
class TestBits:
    def test_default(self, dim, base):
        assert_parity(theirs(dim, base, rope_type="default"), dim, base, None)

    def test_linear(self, dim, base):
        for factor in (1.0, 2.0, 3.7):
            expected = theirs(dim, base, rope_type="linear", factor=factor)
            assert_parity(expected, dim, base, scaling.Linear(factor))

    def test_dynamic(self, dim, base):
        for factor in (1.0, 2.0, 2.7):
            for seq_len in (None, 1, 2048, 2049, 3001, 65537):
                # Up to the original length, its models keep the frequencies of their construction.
                beyond = seq_len if seq_len is not None and seq_len > 2048 else None
                expected = theirs(dim, base, beyond, length=2048, rope_type="dynamic", factor=factor)
                assert_parity(expected, dim, base, scaling.DynamicNTK(factor, 2048), seq_len)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"truncate": False},
            {"beta_fast": 16.0, "beta_slow": 2.0},
            {"attention_factor": 1.25},
            {"mscale": 1.0, "mscale_all_dim": 1.0},
            {"mscale": 0.707, "mscale_all_dim": 1.0},
            {"mscale": 1.0, "mscale_all_dim": 0.0},
        ],
        ids=str,
    )
    def test_yarn(self, dim, base, options):
        for factor, original in ((4.0, 8192), (40.0, 4096), (1.0, 4096), (16.0, 4), (4.0, 10**9)):
            rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **options}
            assert_parity(theirs(dim, base, **rope), dim, base, scaling.Yarn(factor, original, **options))

    @pytest.mark.parametrize("options", [{"factor": 32.0}, {"factor": 1.0}, {"attention_factor": 1.2}], ids=str)
    def test_longrope(self, dim, base, options):
        short = [1.0 + 0.013 * k for k in range(dim // 2)]
        long = [1.1 + 0.71 * k for k in range(dim // 2)]
        rope = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096, **options}
        for seq_len in (None, 4096, 4097):
            expected = theirs(dim, base, seq_len, rope_type="longrope", **rope)
            assert_parity(expected, dim, base, scaling.LongRoPE(short, long, 4096, **options), seq_len)

    @pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (2.0, 7.5), (0.5, 32.0), (1.0, 1.0)])
    def test_llama3(self, dim, base, low, high):
        rope = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": 8192}
        for factor in (8.0, 32.0):
            expected = theirs(dim, base, length=131072, rope_type="llama3", factor=factor, **rope)
            assert_parity(expected, dim, base, scaling.Llama3(factor, 8192, low, high))

    @pytest.mark.parametrize("fraction", [0.0, 0.25, 0.33, 0.5, 1.0])
    def test_proportional(self, dim, base, fraction):
        for factor in (1.0, 3.0):
            rope = {"rope_type": "proportional", "partial_rotary_factor": fraction, "factor": factor}
            assert_parity(theirs(dim, base, **rope), dim, base, scaling.Proportional(fraction, factor))


def test_every_type_of_transformers_is_compared():
    tests = {name.removeprefix("test_") for name in vars(TestBits) if name.startswith("test_")}
    assert set(ROPE_INIT_FUNCTIONS) <= tests


@pytest.mark.parametrize("base", [10000.0, 1e6])
@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
def test_float32_is_the_same_formula_rounded(cls, arguments, formula, base):
    for seq_len in (None, 10_000):
        value = cls(**arguments)
        length = {"seq_len": seq_len} if scaling.depends_on_length(value) else {}
        found = scaling.frequencies(64, base, value, seq_len, exact=False)[0]
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(formula(64, base, **arguments, **length), rel=3e-6, abs=1e-12)


def test_prope_is_proportional_without_a_factor():
    for fraction in (0.0, 0.25, 0.75, 1.0):
        for exact in (True, False):
            assert_bits(
                scaling.frequencies(64, 1e4, scaling.PRoPE(fraction), exact=exact)[0],
                scaling.frequencies(64, 1e4, scaling.Proportional(fraction), exact=exact)[0],
            )


def test_yarn_magnitude_agrees_with_the_plain_formula():
    for factor in (1.0, 4.0, 40.0):
        found = scaling.attention_scaling(scaling.Yarn(factor, 4096, mscale=0.6, mscale_all_dim=0.4))
        expected = reference.yarn_g(factor, 0.6) / reference.yarn_g(factor, 0.4)
        assert found == pytest.approx(expected, rel=1e-15)
