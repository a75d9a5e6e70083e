"""DisentangledRelative: the formula of arXiv 2006.03654, DeBERTa v2's buckets, and the rows of distances."""

import math

import pytest
import torch

import posenc
from contextual_calls import GROUPS, HEADS, WIDTH, assert_equals, heads_of, nn, with_parameters
from tolerances import assert_bits, assert_near


def bucket(distance: int, buckets: int | None, max_distance: int) -> int:
    """Of a distance i - j; with buckets as DeBERTa v2 has them, computed in float32."""
    middle = (buckets or 0) // 2
    if buckets is None or abs(distance) <= middle:
        return distance
    far = torch.log(torch.tensor(abs(distance)) / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
    return int(math.copysign(math.ceil((far * (middle - 1)).item()) + middle, distance))


def scores(module, q, k, positions=None, scale=None):
    """(B, H, Tq, Tk), one pair at a time."""
    span = module.buckets or module.max_distance
    q_len, k_len = q.shape[2], k.shape[2]
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    rows = []
    for i in range(q_len):
        for j in range(k_len):
            distance = k_len - q_len + i - j if positions is None else int(positions[0][i] - positions[1][j])
            r = span + max(-span, min(span - 1, bucket(distance, module.buckets, module.max_distance)))
            score = (q[:, :, i] * keys[:, :, j]).sum(-1)
            if module.c2p:
                score = score + (q[:, :, i] * module.rel_k[:, r]).sum(-1)
            if module.p2c:
                score = score + (keys[:, :, j] * module.rel_q[:, r]).sum(-1)
            rows.append(score)
    scale = 1 / math.sqrt(WIDTH * (1 + module.c2p + module.p2c)) if scale is None else scale
    return scale * torch.stack(rows, -1).unflatten(-1, (q_len, k_len))


CALLS = {
    "both_ways": (9, 9, {}),
    "causal": (7, 9, {"is_causal": True}),
    "decode": (1, 9, {"is_causal": True}),
    "scaled": (5, 5, {"scale": 0.4}),
    "positions": (3, 4, {"q_positions": torch.tensor([900, 0, 31]), "k_positions": torch.tensor([3, 20, 0, 29])}),
}
OPTIONS = {
    "v1": {"max_distance": 3},
    "v2": {"max_distance": 20, "buckets": 8},
    "c2p": {"max_distance": 4, "p2c": False},
    "p2c": {"max_distance": 30, "buckets": 4, "c2p": False},
}


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_equals_the_paper(which, kind):
    q_len, k_len, call = CALLS[which]
    module = with_parameters(nn.DisentangledRelative(WIDTH, HEADS, **OPTIONS[kind]))
    q, k, v = (x.requires_grad_() for x in heads_of(q_len, k_len))
    positions = (call["q_positions"], call["k_positions"]) if "q_positions" in call else None
    expected = scores(module, q, k, positions, call.get("scale"))
    if call.get("is_causal"):
        hidden = torch.ones(q_len, k_len).triu(k_len - q_len + 1).bool()
        expected = expected.masked_fill(hidden, -torch.inf)
    assert_near(module.logits(q, k, **call), expected.detach(), scale=10)
    out = expected.softmax(-1) @ v.repeat_interleave(HEADS // GROUPS, 1)
    assert_equals(module.attend(q, k, v, **call), out, (q, k, v, *module.parameters()))


def row_of(module, distance):
    """The row of rel_k that a query `distance` tokens after a key reads."""
    q, k = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1, 1).double()
    call = {"q_positions": torch.tensor([distance]), "k_positions": torch.tensor([0]), "scale": 1.0}
    return int(module.logits(q, k, **call))


def test_buckets_of_deberta_v3():
    """Values of transformers' make_log_bucket_position with 256 buckets and 512 positions."""
    module = nn.DisentangledRelative(1, 1, 512, buckets=256, p2c=False).double()
    with torch.no_grad():
        module.rel_k.copy_(torch.arange(512).view(1, -1, 1))
    buckets = {0: 0, 127: 127, 128: 128, 130: 130, 200: 169, 256: 192, 300: 207, 400: 233, 511: 255}
    for distance, bucket in buckets.items():
        assert row_of(module, distance) == 256 + bucket
        assert row_of(module, -distance) == 256 - bucket
    assert [row_of(module, d) for d in (512, 9999, -512, -9999)] == [511, 511, 0, 0]


def test_every_distance_has_the_bucket_of_transformers():
    modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    for buckets, max_distance in ((256, 512), (16, 40), (32, 512), (64, 65536)):
        distance = torch.cat([torch.arange(-600, 601), torch.tensor([65535, 65536, 70000, -65535, -65536, -70000])])
        theirs = modeling.make_log_bucket_position(distance, buckets, max_distance).long()
        table = torch.arange(2 * buckets).view(1, -1, 1).double()
        by_distance = torch.ops.posenc._disentangled_table(table, max_distance, buckets).flatten()
        # Tables of attention have the distances k - q, clipped.
        ours = by_distance[max_distance - distance.clamp(-max_distance, max_distance)]
        assert_bits(ours, (theirs + buckets).clamp(0, 2 * buckets - 1).double())


def test_initial_tables_are_normal_with_debertas_deviation():
    module = nn.DisentangledRelative(64, 12, 128)
    for table in (module.rel_k, module.rel_q):
        assert table.shape == (12, 256, 64)
        assert 0.0198 < table.detach().std() < 0.0202
    assert not torch.equal(module.rel_k, module.rel_q)
    before = module.rel_q.detach().clone()
    module.reset_parameters()
    assert not torch.equal(module.rel_q, before)


def test_a_table_that_is_not_wanted_is_not_there():
    assert list(nn.DisentangledRelative(4, 2, 3, p2c=False).state_dict()) == ["rel_k"]
    assert list(nn.DisentangledRelative(4, 2, 3, c2p=False).state_dict()) == ["rel_q"]


@pytest.mark.parametrize("package", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
def test_wrong_options_are_refused(package):
    wrong = [
        ((0, 2, 3), {}, "head_dim to be at least 1, but got 0"),
        ((8, 0, 3), {}, "num_heads to be at least 1, but got 0"),
        ((8, 2, 0), {}, "max_distance to be at least 1, but got 0"),
        ((8, 2, 65537), {}, "max_distance from 1 to 65536, but got 65537"),
        ((8, 2, 9), {"buckets": 5}, "buckets to be even, half of them for each direction, and at least 4, but got 5"),
        ((8, 2, 9), {"buckets": 2}, "buckets to be at least 4, but got 2"),
        ((8, 2, 9), {"buckets": 16}, r"max_distance to be larger than buckets / 2 \+ 1, 9, .* but got 9"),
        ((8, 2, 9), {"c2p": False, "p2c": False}, "c2p or p2c, but got neither"),
    ]
    for arguments, options, message in wrong:
        with pytest.raises(ValueError, match=f"^DisentangledRelative: expected {message}"):
            package.DisentangledRelative(*arguments, **options)
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match="DisentangledRelative: expected query of shape"):
        package.DisentangledRelative(8, 4, 3).attend(q, q, q)
