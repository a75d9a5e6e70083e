"""What ShawRelative, TransformerXL, ReRoPE, SelfExtend and CoPE refuse, in Python and C++, and that the messages
name the module."""

import pytest
import torch

import posenc
from contextual_calls import BUILD, HEADS, WIDTH, heads_of

PACKAGES = {"python": posenc.nn, "cpp": posenc.nn.cpp}
every_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
CLASS = {
    "shaw": "ShawRelative",
    "disentangled": "DisentangledRelative",
    "transformer_xl": "TransformerXL",
    "rerope": "ReRoPE",
    "leaky_rerope": "ReRoPE",
    "self_extend": "SelfExtend",
    "cope": "CoPE",
}

OPTIONS = {
    "ShawRelative": [
        ((0, 2), {}, "expected head_dim to be at least 1, but got 0"),
        ((8, -1), {}, "expected max_distance to be at least 0, but got -1"),
        ((8, 2), {"num_heads": 0}, "expected num_heads to be at least 1, but got 0"),
    ],
    "TransformerXL": [
        ((0, 2), {}, "expected head_dim to be at least 1, but got 0"),
        ((8, 0), {}, "expected num_heads to be at least 1, but got 0"),
        ((8, 2), {"pos_dim": 0}, "expected pos_dim to be at least 1, but got 0"),
        ((8, 2), {"pos_dim": 7}, "expected pos_dim, to be even, but got 7"),
        ((3, 3), {}, r"expected pos_dim, num_heads \* head_dim, to be even, but got 9"),
        ((8, 2), {"layout": "turns"}, "expected layout to be 'concatenated' or 'interleaved', but got 'turns'"),
    ],
    "ReRoPE": [
        ((0,), {}, "expected head_dim to be at least 1, but got 0"),
        ((7,), {}, "expected head_dim to be even, but got 7"),
        ((8, 0), {}, "expected window to be at least 1, but got 0"),
        ((8,), {"leak": 0.5}, "expected leak to be at least 1 and finite, but got 0.5"),
        ((8,), {"leak": float("inf")}, "expected leak to be at least 1 and finite, but got inf"),
        ((8,), {"log_scale_length": 1}, "expected log_scale_length to be at least 2, but got 1"),
    ],
    "SelfExtend": [
        ((7,), {}, "expected head_dim to be even, but got 7"),
        ((8,), {"group": 0}, "expected group to be at least 1, but got 0"),
        ((8,), {"window": -3}, "expected window to be at least 1, but got -3"),
    ],
    "CoPE": [
        ((0, 4), {}, "expected head_dim to be at least 1, but got 0"),
        ((8, 0), {}, "expected max_positions to be at least 1, but got 0"),
        ((8, 4), {"num_heads": 0}, "expected num_heads to be at least 1, but got 0"),
        ((8, 4), {"gate": "keys"}, "expected gate to be 'logits', 'key' or 'value', but got 'keys'"),
        ((8, 4), {"gate_bias": 0.0}, "expected num_heads with gate_bias"),
        ((8, 4), {"gate_bias": float("nan"), "num_heads": 2}, "expected a finite gate_bias, but got nan"),
    ],
}


@every_package
@pytest.mark.parametrize("kind", OPTIONS)
def test_wrong_options(kind, package):
    for arguments, options, message in OPTIONS[kind]:
        with pytest.raises(ValueError, match=f"^{kind}: {message}"):
            getattr(package, kind)(*arguments, **options)


@pytest.mark.parametrize("kind", ["ReRoPE", "SelfExtend"])
def test_wrong_base(kind):
    with pytest.raises(ValueError, match="base"):
        getattr(posenc.nn, kind)(8, base=0.0)


@every_package
@pytest.mark.parametrize("name", BUILD)
def test_head_width(name, package):
    module, (q, k, v) = BUILD[name](package), heads_of(5, 5, width=WIDTH + 2, dtype=torch.float32)
    message = rf"^{CLASS[name]}: expected query of shape \(batch, heads, length, head_dim\) with head_dim 8, but got \["
    for call in (lambda: module.attend(q, k, v), lambda: module.logits(q, k), lambda: module.attend(q[0], k, v)):
        with pytest.raises(ValueError, match=message):
            call()


@every_package
@pytest.mark.parametrize("name", ["shaw", "transformer_xl", "cope"])
def test_head_count(name, package):
    module, (q, k, v) = BUILD[name](package), heads_of(5, 5, heads=HEADS + 2, dtype=torch.float32)
    for call in (lambda: module.attend(q, k, v), lambda: module.logits(q, k)):
        with pytest.raises(ValueError, match=rf"^{CLASS[name]}: .* num_heads 4, but got \[2, 6, 5, 8\]"):
            call()


@every_package
def test_value_width(package):
    """Where values meet something of the head's width."""
    q, k, v = heads_of(5, 5, dtype=torch.float32)
    for module in (package.ShawRelative(WIDTH, 2), package.CoPE(WIDTH, 4, gate="value")):
        with pytest.raises(
            ValueError, match=r"^(ShawRelative|CoPE): expected value of shape .* 8, but got \[2, 2, 5, 6\]"
        ):
            module.attend(q, k, v[..., :6])


@every_package
@pytest.mark.parametrize("name", ["rerope", "leaky_rerope", "self_extend"])
def test_positions_of_piecewise_encodings(name, package):
    module, (q, k, v) = BUILD[name](package), heads_of(5, 5, dtype=torch.float32)
    for which in ("q_positions", "k_positions"):
        with pytest.raises(TypeError, match=f"^{CLASS[name]}: expected {which} to be an integer type, .* got Float"):
            module.attend(q, k, v, **{which: torch.arange(5.0)})
        for positions in (torch.arange(4), torch.zeros(3, 5).long(), torch.zeros(1, 1, 5).long()):
            with pytest.raises(ValueError, match=rf"^{CLASS[name]}: expected {which} of shape \(length\) or"):
                module.logits(q, k, **{which: positions})
    with pytest.raises(ValueError, match=f"^{CLASS[name]}: expected key of shape .* with head_dim 8"):
        module.attend(q, k[..., :6], v)
    with pytest.raises(TypeError, match=f"^{CLASS[name]}: expected query to be float32, .* but got Long"):
        module.attend(q.long(), k, v)


def test_floating_positions_of_shaw():
    module, (q, k, v) = BUILD["shaw"](), heads_of(5, 5, dtype=torch.float32)
    with pytest.raises(TypeError, match="expected integer q_positions"):
        module.attend(q, k, v, q_positions=torch.arange(5.0))


@every_package
class TestGateKeys:
    def test_missing(self, package):
        module, (q, k, v) = package.CoPE(WIDTH, 4, gate="key"), heads_of(5, 5, dtype=torch.float32)
        for call in (lambda: module.attend(q, k, v), lambda: module.logits(q, k)):
            with pytest.raises(
                ValueError, match=r"^CoPE: expected gate_key \(batch, kv_heads, keys, head_dim\) with gate"
            ):
                call()
        with pytest.raises(ValueError, match="^CoPE: expected gate_key, the values, in logits with gate='value'"):
            package.CoPE(WIDTH, 4, gate="value").logits(q, k)

    def test_without_use(self, package):
        q, k, v = heads_of(5, 5, dtype=torch.float32)
        for gate in ("logits", "value"):
            with pytest.raises(ValueError, match=f"^CoPE: expected no gate_key with gate='{gate}'"):
                package.CoPE(WIDTH, 4, gate=gate).attend(q, k, v, gate_key=k)
        with pytest.raises(ValueError, match="^CoPE: expected no gate_key with gate='logits'"):
            package.CoPE(WIDTH, 4).logits(q, k, gate_key=k)

    def test_cope_takes_neither_causality_nor_positions(self, package):
        module, (q, k, v) = package.CoPE(WIDTH, 4), heads_of(5, 5, dtype=torch.float32)
        for unknown in ({"is_causal": False}, {"q_positions": torch.arange(5)}, {"k_positions": torch.arange(5)}):
            with pytest.raises(TypeError):
                module.attend(q, k, v, **unknown)


@every_package
def test_cope_module_form(package):
    module, query = package.CoPE(WIDTH, 4), torch.randn(2, 4, 3, WIDTH)
    per_head = package.CoPE(WIDTH, 4, num_heads=2)
    logits = torch.randn(2, 4, 3, 5)
    for call, error, message in [
        (lambda: module.forward(query[..., :6], logits), ValueError, r"expected query of shape .* head_dim 8, but got"),
        (
            lambda: module.forward(query, logits[0]),
            ValueError,
            r"expected attn_logits of shape \(batch, heads, queries",
        ),
        (
            lambda: module.forward(query, logits[:, :, :2]),
            ValueError,
            r"expected attn_logits of shape .* \[2, 4, 2, 5\]",
        ),
        (lambda: per_head.forward(query, logits), ValueError, "expected query with the 2 heads of pos_emb, but got"),
        (lambda: module.forward(query.long(), logits), TypeError, "expected query to be float32, .* but got Long"),
        (
            lambda: module.forward(query, logits.bool()),
            TypeError,
            "expected attn_logits to be float32, .* but got Bool",
        ),
        (lambda: module.forward(query.to("meta"), logits), ValueError, "expected query on cpu, but it is on meta"),
    ]:
        with pytest.raises(error, match=f"^CoPE: {message}"):
            call()


@pytest.mark.parametrize("name", BUILD)
def test_options_are_read_only(name):
    for option in {"head_dim", "window", "leak", "threshold", "gate", "num_heads"}:
        if hasattr(BUILD[name](), option):
            with pytest.raises(AttributeError, match=f"{option} is fixed at construction"):
                setattr(BUILD[name](), option, 8)
