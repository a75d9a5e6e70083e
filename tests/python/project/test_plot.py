"""posenc.plot: every encoding can be drawn, axes say what they show, and the numbers are those of the encoding."""

import math
import re
import sys

import matplotlib
import pytest
import torch

import cases
import posenc
import reference
from processes import ROOT, python, run

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (needs the backend)

nn, plot = posenc.nn, posenc.plot
LENGTH = 24

SCORES = {
    "ALiBi": lambda: nn.ALiBi(4),
    "T5RelativeBias": lambda: nn.T5RelativeBias(4),
    "Kerple": lambda: nn.Kerple(4, kind="power"),
    "Sandwich": lambda: nn.Sandwich(4),
    "FIRE": lambda: nn.FIRE(4),
    "ShawRelative": lambda: nn.ShawRelative(8, 5, num_heads=4),
    "DisentangledRelative": lambda: nn.DisentangledRelative(8, 4, 12, buckets=8),
    "TransformerXL": lambda: nn.TransformerXL(8, 4),
    "ReRoPE": lambda: nn.ReRoPE(8, 6),
    "SelfExtend": lambda: nn.SelfExtend(8, group=4, window=8),
    "CoPE": lambda: nn.CoPE(8, 6),
    "ForgettingBias": lambda: nn.ForgettingBias(16, 4),
}
ROTARY = {
    "Rotary": lambda: nn.Rotary(16, scaling=posenc.scaling.Yarn(4.0, 16)),
    "XPos": lambda: nn.XPos(16),
    "AxialRotary": lambda: nn.AxialRotary(16),
    "MultimodalRotary": lambda: nn.MultimodalRotary(16, (2, 3, 3)),
}
ABSOLUTE = {
    "Sinusoidal": lambda: nn.Sinusoidal(16),
    "LearnedAbsolute": lambda: nn.LearnedAbsolute(LENGTH, 16),
    "CAPE": lambda: nn.CAPE(16).eval(),
}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def assert_line(axes, label, x, y, tolerance=1e-5):
    drawn_x, drawn_y = lines(axes)[label]
    assert drawn_x == list(x)
    values = torch.tensor(drawn_y, dtype=torch.float64)
    torch.testing.assert_close(values, torch.as_tensor(y).double(), rtol=tolerance, atol=tolerance)


def test_every_encoding_can_be_drawn():
    assert {*SCORES, *ROTARY, *ABSOLUTE} == cases.ENCODINGS - cases.GRIDS


@pytest.mark.parametrize("name", [*SCORES, *ROTARY, *ABSOLUTE])
def test_axes_are_labelled_and_given_ones_are_used(name, tmp_path):
    def draw(**options):
        if name in SCORES:
            return plot.bias(SCORES[name](), LENGTH, **options)
        if name in ROTARY:
            return plot.rotation(ROTARY[name](), **options)
        return plot.embedding(ABSOLUTE[name](), LENGTH, **options)

    axes = draw()
    assert axes.get_xlabel() and axes.get_ylabel()
    assert name in axes.get_title()
    _, given = pyplot.subplots()
    assert draw(ax=given) is given
    assert all(other.get_ylabel() for other in given.figure.axes)
    given.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 2000


# The numbers


@pytest.mark.parametrize("name", ["ALiBi", "T5RelativeBias", "Kerple", "Sandwich", "FIRE"])
@pytest.mark.parametrize("ahead", [False, True])
def test_bias_of_the_last_query(name, ahead):
    encoding = SCORES[name]()
    axes = plot.bias(encoding, LENGTH, heads=[0, 3], ahead=ahead)
    added = encoding.bias(LENGTH).detach()
    distances = range(1 - LENGTH if ahead else 0, LENGTH)
    assert set(lines(axes)) == {"head 0", "head 3"}
    for head in (0, 3):
        expected = [
            added[head, LENGTH - 1, LENGTH - 1 - distance] if distance >= 0 else added[head, 0, -distance]
            for distance in distances
        ]
        assert_line(axes, f"head {head}", distances, torch.stack(expected))


def test_alibi_falls_by_its_slope():
    assert_line(plot.bias(nn.ALiBi(8), 4), "head 0", range(4), [0.0, -0.5, -1.0, -1.5])


def test_both_sides_of_a_bidirectional_bias():
    encoding = nn.T5RelativeBias(2, bidirectional=True)
    with torch.no_grad():
        encoding.weight.copy_(torch.arange(32.0).unsqueeze(1).expand(-1, 2))
    axes = plot.bias(encoding, 6, ahead=True)
    # Buckets of key - query = 5, 1, 0, -1, .., -5 (reference values of T5).
    assert_line(axes, "head 0", range(-5, 6), [21.0, 20, 19, 18, 17, 0, 1, 2, 3, 4, 5])


def test_table_of_shaw_for_a_query():
    encoding = nn.ShawRelative(4, 2)
    query = torch.randn(3, 5, 4)
    axes = plot.bias(encoding, 5, query=query, ahead=True, heads=[2])
    table = encoding.rel_k.detach()
    expected = []
    for distance in range(-4, 5):
        row = query[2, -1] if distance >= 0 else query[2, 0]
        expected.append(row @ table[2 + max(-2, min(2, -distance))] / 2.0)
    assert_line(axes, "head 2", range(-4, 5), torch.stack(expected))


def test_rows_of_transformer_xl_for_a_query():
    encoding = nn.TransformerXL(4, 2, pos_dim=6)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    query = torch.randn(2, 5, 4)
    axes = plot.bias(encoding, 5, query=query, ahead=True, heads=[1])
    v, weight = encoding.position_bias[1].detach(), encoding.pos_proj[4:].detach()
    expected = []
    for distance in range(-4, 5):
        row = query[1, -1] if distance >= 0 else query[1, 0]
        angles = distance * encoding.inv_freq
        expected.append((row + v) @ weight @ torch.cat([angles.sin(), angles.cos()]).float() / 2.0)
    assert_line(axes, "head 1", range(-4, 5), torch.stack(expected))


@pytest.mark.parametrize("kind", ["fox", "cable"])
def test_what_tokens_forget(kind):
    encoding, x = nn.ForgettingBias(6, 2, kind=kind), torch.randn(5, 6)
    axes = plot.bias(encoding, 5, x=x)
    decays = encoding(x[None])[0].detach()
    for head in (0, 1):
        sums = [decays[head, 5 - distance :].sum() for distance in range(5)]
        assert_line(axes, f"head {head}", range(5), torch.stack(sums))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("head_dim", [2, 16])
def test_distance_of_rerope_and_self_extend(interleaved, head_dim):
    def drawn(encoding, expected):
        axes = plot.bias(encoding, 300)
        assert_line(axes, type(encoding).__name__, range(300), [float(expected(n)) for n in range(300)], 1e-4)

    options = {"interleaved": interleaved}
    drawn(nn.ReRoPE(head_dim, 40, **options), lambda n: min(n, 40))
    drawn(nn.ReRoPE(head_dim, 40, log_scale_length=16, **options), lambda n: min(n, 40))
    drawn(nn.ReRoPE(head_dim, 40, leak=4.0, **options), lambda n: n if n < 40 else 40 + (n - 40) / 4)
    drawn(
        nn.SelfExtend(head_dim, group=8, window=32, **options),
        lambda n: n if n < 32 else 299 // 8 + 32 - 4 - (299 - n) // 8,
    )


@pytest.mark.parametrize("gate_bias", [None, -0.5])
def test_positions_and_gates_of_cope(gate_bias):
    heads, length, width = 2, 9, 4
    encoding = nn.CoPE(width, 4, num_heads=heads, gate_bias=gate_bias)
    query, key = torch.randn(heads, length, width), torch.randn(heads, length, width)
    axes = plot.bias(encoding, length, query=query, key=key)
    right = next(other for other in axes.figure.axes if other is not axes)
    for head in range(heads):
        scores = key[head] @ query[head, -1] / math.sqrt(width) + (gate_bias or 0.0)
        gates = torch.sigmoid(scores).flip(0)
        assert_line(axes, f"head {head}", range(length), gates.cumsum(0).clamp(max=3))
        bars = [float(bar.get_height()) for bar in right.containers[head]]
        torch.testing.assert_close(torch.tensor(bars), gates.detach(), rtol=1e-5, atol=1e-5)


def test_gates_of_cope_by_keys_of_their_own():
    encoding = nn.CoPE(4, 8, gate="key")
    query, key, gate_key = torch.randn(3, 1, 6, 4)
    axes = plot.bias(encoding, 6, query=query, key=key, gate_key=gate_key)
    gates = torch.sigmoid(gate_key[0] @ query[0, -1] / 2.0).flip(0)
    assert_line(axes, "head 0", range(6), gates.cumsum(0).clamp(max=7))


def test_what_is_not_given_is_drawn_from_a_seed_of_its_own():
    def draw():
        return lines(plot.bias(nn.CoPE(4, 8), 6))

    torch.manual_seed(1)
    first = draw()
    after = torch.rand(1)
    assert draw() == first
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


def test_spectrum_before_and_after_scaling():
    rope = nn.Rotary(16, base=500.0, scaling=posenc.scaling.Yarn(4.0, 16))
    axes = plot.rotation(rope)
    before = reference.inverse_frequencies(16, 500.0)
    after = reference.yarn_frequencies(16, 500.0, 4.0, 16)
    assert axes.get_yscale() == "log"
    assert_line(axes, "before", range(8), before)
    assert_line(axes, "Yarn, magnitude 1.139", range(8), after)
    assert list(lines(plot.rotation(nn.Rotary(16)))) == ["in use"]


def test_spectrum_at_a_length():
    rope = nn.Rotary(8, scaling=posenc.scaling.DynamicNTK(2.0, 16))
    expected = reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 16, 40)
    assert_line(plot.rotation(rope, seq_len=40), "DynamicNTK", range(4), expected)


def test_learned_spectrum():
    rope = nn.Rotary(8, learnable=True)
    with torch.no_grad():
        rope.inv_freq.mul_(0.5)
    axes = plot.rotation(rope)
    assert_line(axes, "before", range(4), reference.inverse_frequencies(8, 1e4))
    assert_line(axes, "learned", range(4), reference.inverse_frequencies(8, 1e4) / 2)
    mixed = nn.AxialRotary(8, learnable=True, num_heads=2)
    with torch.no_grad():
        mixed.inv_freq.copy_(torch.arange(1.0, 17.0).view(2, 2, 4))
    assert_line(plot.rotation(mixed), "learned, axis 1, head 0", range(4), [9.0, 10, 11, 12])


def test_pairs_by_axis():
    axes = plot.rotation(nn.MultimodalRotary(16, (2, 3, 3)))
    spectrum = reference.inverse_frequencies(16, 1e4)
    assert_line(axes, "in use, axis 0", [0, 1], spectrum[:2])
    assert_line(axes, "in use, axis 2", [5, 6, 7], spectrum[5:])
    axes = plot.rotation(nn.AxialRotary(8))
    assert_line(axes, "angle, axis 1", [2, 3], [1.0, 0.1])


def test_decay_of_xpos():
    axes = plot.rotation(nn.XPos(8))
    right = next(other for other in axes.figure.axes if other is not axes)
    zeta = (torch.arange(0, 8, 2) / 8 + 0.4) / 1.4
    assert_line(right, "decay of scores", range(4), zeta ** (1 / 512))


@pytest.mark.parametrize("name", ABSOLUTE)
def test_embedding_is_what_is_added(name):
    encoding = ABSOLUTE[name]()
    drawn = torch.tensor(plot.embedding(encoding, LENGTH).get_images()[0].get_array().data)
    torch.testing.assert_close(drawn, encoding(torch.zeros(LENGTH, 16)).detach())


# What does not fit


REFUSED = {
    "length": (lambda: plot.bias(nn.ALiBi(2), 0), ValueError, "expected length to be at least 1, but got 0"),
    "rotary": (lambda: plot.bias(nn.Rotary(8), 4), TypeError, "expected a score encoding of posenc.nn, but got Rotary"),
    "two axes": (
        lambda: plot.bias(nn.GridRelativeBias(2, (2, 2)), 4),
        TypeError,
        "expected an encoding of distances on one axis, but got GridRelativeBias, whose places have two",
    ),
    "head": (lambda: plot.bias(nn.ALiBi(2), 4, heads=[2]), ValueError, "expected heads from 0 to 1, but got 2"),
    "query": (lambda: plot.bias(nn.ALiBi(2), 4, query=torch.ones(2, 4, 8)), ValueError, "no query for ALiBi"),
    "key": (lambda: plot.bias(nn.ShawRelative(8, 2), 4, key=torch.ones(1, 4, 8)), ValueError, "no key for Shaw"),
    "gate_key": (lambda: plot.bias(nn.CoPE(8, 2), 4, gate_key=torch.ones(1, 4, 8)), ValueError, "no gate_key for CoPE"),
    "x": (lambda: plot.bias(nn.CoPE(8, 2), 4, x=torch.ones(4, 8)), ValueError, "no x for CoPE"),
    "shape of x": (
        lambda: plot.bias(nn.ForgettingBias(8, 2), 4, x=torch.ones(4, 6)),
        ValueError,
        r"expected x of shape \[4, 8\], but got \[4, 6\]",
    ),
    "ahead": (lambda: plot.bias(nn.CoPE(8, 2), 4, ahead=True), ValueError, "no ahead=True for CoPE"),
    "heads": (lambda: plot.bias(nn.ReRoPE(8, 2), 4, heads=[0]), ValueError, "no heads for ReRoPE"),
    "shape": (
        lambda: plot.bias(nn.CoPE(8, 2), 4, query=torch.ones(1, 5, 8)),
        ValueError,
        r"query of shape \(heads, length, head_dim\) with length 4 and head_dim 8, but got \[1, 5, 8\]",
    ),
    "score": (lambda: plot.rotation(nn.ALiBi(2)), TypeError, "expected a rotary encoding of posenc.nn, but got ALiBi"),
    "seq_len": (
        lambda: plot.rotation(nn.XPos(8), seq_len=3),
        ValueError,
        "plot.rotation: expected no seq_len for XPos",
    ),
    "no tokens": (
        lambda: plot.rotation(nn.Rotary(8), seq_len=0),
        ValueError,
        "plot.rotation: expected seq_len to be at least 1, but got 0",
    ),
    "heads of key": (
        lambda: plot.bias(nn.CoPE(8, 4), 6, key=torch.ones(2, 6, 8)),
        ValueError,
        r"expected key to have as many heads as query, or a divisor of them, but got key of shape \[2, 6, 8\] and no "
        r"query, which then has 1: give a query",
    ),
    "heads of gate_key": (
        lambda: plot.bias(
            nn.CoPE(8, 4, gate="key"),
            6,
            query=torch.ones(2, 6, 8),
            key=torch.ones(1, 6, 8),
            gate_key=torch.ones(3, 6, 8),
        ),
        ValueError,
        r"gate_key of shape \[3, 6, 8\] and query of shape \[2, 6, 8\]",
    ),
    "absolute": (lambda: plot.embedding(nn.ALiBi(2), 4), TypeError, "expected an absolute encoding of posenc.nn"),
    "no rows": (lambda: plot.embedding(nn.Sinusoidal(8), 0), ValueError, "expected length to be at least 1"),
    "beyond the table": (lambda: plot.embedding(nn.LearnedAbsolute(3, 8), 4), ValueError, "max_positions is 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    draw, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        draw()


def test_matplotlib_is_optional():
    """Importing posenc does not load it, and without it a plot says what to install."""
    code = """
import sys
import posenc
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    posenc.plot.bias(posenc.nn.ALiBi(2), 4)
except ImportError as error:
    print(error)
"""
    assert "pip install 'posenc[plot]'" in python(code)
    assert sys.modules["matplotlib"] is matplotlib


# The pictures of the documentation


def test_script_makes_the_pictures_that_the_documentation_shows(tmp_path):
    run(sys.executable, ROOT / "docs/make_figures.py", tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    kept = {path.name: path.stat().st_size for path in (ROOT / "docs/figures").iterdir()}
    shown = set(re.findall(r"\(figures/(\w+\.png)\)", (ROOT / "docs/encodings.md").read_text()))
    assert made == set(kept) == shown
    assert max(kept.values()) < 60_000
