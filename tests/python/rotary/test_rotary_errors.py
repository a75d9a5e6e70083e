"""Every unusable input of the rotary ops: the kind of exception, and a message that names op, argument, rule and value.

One table drives posenc.ops, torch.ops and the meta device, so no entry point and no backend can lack a check.
"""

import re

import pytest
import torch

import posenc
from tolerances import assert_bits

X = (2, 4, 5, 8)
K = (2, 2, 5, 8)
F = ("f64", 4)
TABLE = ("f32", 5, 4)
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "bool": torch.bool,
    "c64": torch.complex64,
}


def tensor(spec, device):
    """(dtype name, *shape) or just a float32 shape -> a tensor of zeros."""
    dtype, shape = (DTYPES[spec[0]], spec[1:]) if spec and isinstance(spec[0], str) else (torch.float32, spec)
    return torch.zeros(shape, dtype=dtype, device=device)


# Fragments that describe x for each op that takes it as x, or as q and k.
ROTATED = [
    (X[1:], ValueError, [r"\[4, 5, 8\]"]),
    ((1, *X), ValueError, [r"\[1, 2, 4, 5, 8\]"]),
    ((), ValueError, [r"\[\]"]),
    (("i64", *X), TypeError, ["Long"]),
    (("bool", *X), TypeError, ["Bool"]),
    (("c64", *X), TypeError, ["ComplexFloat"]),
    ((*X[:3], 7), ValueError, [r"at least|at most half", r"\[2, 4, 5, 7\]"]),
    ((*X[:3], 0), ValueError, [r"at least|at most half", r"\[2, 4, 5, 0\]"]),
]

# (positions, inv_freq, keyword arguments, exception, fragments) for 5 tokens.
ANGLES = [
    (None, ("bf16", 4), {}, TypeError, ["inv_freq", "BFloat16"]),
    (None, ("f16", 4), {}, TypeError, ["inv_freq", "Half"]),
    (None, ("i64", 4), {}, TypeError, ["inv_freq", "Long"]),
    (None, ("f64",), {}, ValueError, ["inv_freq", r"\[\]"]),
    (None, ("f64", 1, 1, 1, 4), {}, ValueError, ["inv_freq", r"\[1, 1, 1, 4\]"]),
    (None, ("f64", 0, 4), {}, ValueError, ["inv_freq", r"\[0, 4\]"]),
    (("bool", 5), F, {}, TypeError, ["positions", "Bool"]),
    (("c64", 5), F, {}, TypeError, ["positions", "ComplexFloat"]),
    (("i64",), F, {}, ValueError, ["positions", r"\[\]"]),
    (("i64", 4), F, {}, ValueError, ["positions", "5", r"\[4\]"]),
    (("i64", 6), F, {}, ValueError, ["positions", "5", r"\[6\]"]),
    (("i64", 0), F, {}, ValueError, ["positions", "5", r"\[0\]"]),
    (("i64", 2, 4), F, {}, ValueError, ["positions", "5", r"\[2, 4\]"]),
    (("i64", 5, 2), F, {}, ValueError, ["positions", r"\[5, 2\]"]),
    (("i64", 2, 1, 5), F, {}, ValueError, ["positions", r"\[2, 1, 5\]"]),
    (("i64", 5), ("f64", 2, 4), {}, ValueError, ["positions", "axes", r"\[5\]"]),
    (("i64", 3, 5), ("f64", 2, 4), {}, ValueError, ["axes", "2", r"\[3, 5\]"]),
    (("i64", 5), F, {"axes": [0, 0, 0, 0]}, ValueError, ["positions", "axes", r"\[5\]"]),
    (("i64", 2, 5), F, {"axes": [0, 0, 1]}, ValueError, ["axes", "4", "3"]),
    (("i64", 2, 5), F, {"axes": []}, ValueError, ["axes", "4", "0"]),
    (("i64", 2, 5), F, {"axes": [0, 0, 1, 2]}, ValueError, ["axes", "2"]),
    (("i64", 2, 5), F, {"axes": [0, 0, 1, -1]}, ValueError, ["axes", "-1"]),
    (("i64", 2, 5), ("f64", 2, 4), {"axes": [0, 0, 1, 1]}, ValueError, ["inv_freq", "axes", r"\[2, 4\]"]),
    (("i64", 5), F, {"offset": 3}, ValueError, ["offset", "positions", "3"]),
    (("i64", 5), F, {"offsets": ("i64", 2)}, ValueError, ["offset", "positions"]),
    (None, F, {"offset": 3, "offsets": ("i64", 2)}, ValueError, ["offset"]),
    (None, F, {"offsets": ("f32", 2)}, TypeError, ["offset", "Float"]),
    (None, F, {"offsets": ("bool", 2)}, TypeError, ["offset", "Bool"]),
    (None, F, {"offsets": ("i64", 2, 1)}, ValueError, ["offset", r"\[2, 1\]"]),
    (None, F, {"offsets": ("i64",)}, ValueError, ["offset", r"\[\]"]),
    (None, F, {"attention_scaling": float("nan")}, ValueError, ["attention_scaling", "nan"]),
    (None, F, {"attention_scaling": float("inf")}, ValueError, ["attention_scaling", "inf"]),
]
# The same for rules that concern the shape of x too.
ANGLES_OF_X = [
    (None, ("f64", 5), {}, ValueError, ["rotary width 10", r"\[2, 4, 5, 8\]"]),
    (None, ("f64", 2, 3, 4), {}, ValueError, ["3", "heads", r"\[2, 4, 5, 8\]"]),
    (("i64", 3, 5), F, {}, ValueError, ["positions", "2", r"\[3, 5\]"]),
    (("i64", 2, 3, 5), ("f64", 2, 4), {}, ValueError, ["positions", "2", r"\[2, 3, 5\]"]),
    (None, F, {"offsets": ("i64", 3)}, ValueError, ["offset", r"\[3\]"]),
]

# (cos, sin, exception, fragments) for x of shape X.
TABLES = [
    (("i64", 5, 4), ("i64", 5, 4), TypeError, ["cos", "Long"]),
    (("c64", 5, 4), ("c64", 5, 4), TypeError, ["cos", "ComplexFloat"]),
    (TABLE, ("bool", 5, 4), TypeError, ["sin", "Bool"]),
    (("f32", 4), ("f32", 4), ValueError, ["cos", r"\[4\]"]),
    (("f32", 1, 1, 1, 5, 4), ("f32", 1, 1, 1, 5, 4), ValueError, ["cos", r"\[1, 1, 1, 5, 4\]"]),
    (("f32", 6, 4), ("f32", 6, 4), ValueError, ["cos", "5", r"\[6, 4\]"]),
    (("f32", 0, 4), ("f32", 0, 4), ValueError, ["cos", "5", r"\[0, 4\]"]),
    (TABLE, ("f32", 4, 4), ValueError, ["sin", r"\[4, 4\]"]),
    (TABLE, ("f32", 5, 3), ValueError, ["cos", "sin", r"\[5, 4\]", r"\[5, 3\]"]),
    (TABLE, ("f32", 1, 5, 4), ValueError, ["cos", "sin", r"\[5, 4\]", r"\[1, 5, 4\]"]),
    (("f32", 1, 5, 4), ("f32", 2, 5, 4), ValueError, ["cos", "sin", r"\[1, 5, 4\]", r"\[2, 5, 4\]"]),
    (("f32", 5, 8), ("f32", 5, 8), ValueError, ["cos", "half", r"\[2, 4, 5, 8\]", r"\[5, 8\]", r"\[\.\.\., :R//2\]"]),
    (("f32", 5, 5), ("f32", 5, 5), ValueError, ["cos", "half", r"\[5, 5\]"]),
    (("f32", 3, 5, 4), ("f32", 3, 5, 4), ValueError, ["cos", "2", r"\[3, 5, 4\]"]),
    (("f32", 3, 1, 5, 4), ("f32", 3, 1, 5, 4), ValueError, ["cos", "2", r"\[3, 1, 5, 4\]"]),
    (("f32", 2, 3, 5, 4), ("f32", 2, 3, 5, 4), ValueError, ["cos", "4", r"\[2, 3, 5, 4\]"]),
]

QK = [
    (X, (3, 2, 5, 8), ValueError, [r"\bq\b.*\bk\b", r"\[2, 4, 5, 8\]", r"\[3, 2, 5, 8\]"]),
    (X, (2, 2, 6, 8), ValueError, [r"\bq\b.*\bk\b", r"\[2, 4, 5, 8\]", r"\[2, 2, 6, 8\]"]),
    (X, (2, 2, 1, 8), ValueError, [r"\bq\b.*\bk\b", r"\[2, 4, 5, 8\]", r"\[2, 2, 1, 8\]"]),
    (X, (1, 2, 5, 8), ValueError, [r"\bq\b.*\bk\b", r"\[2, 4, 5, 8\]", r"\[1, 2, 5, 8\]"]),
]


def entries():
    """(op, positional specs, keyword arguments, exception, fragments) for every rule and every op it concerns."""
    for spec, error, fragments in ROTATED:
        yield "rotary", (spec, None, F), {}, error, [r"\bx\b", *fragments]
        yield "apply_rotary", (spec, TABLE, TABLE), {}, error, [r"\bx\b", *fragments]
        for op in ("rotary_qk", "rotary_qk_"):
            yield op, (spec, spec, None, F), {}, error, [r"\bq\b", *fragments]
        for op in ("apply_rotary_qk", "apply_rotary_qk_"):
            yield op, (spec, spec, TABLE, TABLE), {}, error, [r"\bq\b", *fragments]
    for spec, error, fragments in ROTATED[:6]:
        for op in ("rotary_qk", "rotary_qk_"):
            yield op, (X, spec, None, F), {}, error, [r"\bk\b", *fragments]
        for op in ("apply_rotary_qk", "apply_rotary_qk_"):
            yield op, (X, spec, TABLE, TABLE), {}, error, [r"\bk\b", *fragments]
    for positions, inv_freq, kwargs, error, fragments in ANGLES + ANGLES_OF_X:
        yield "rotary", (X, positions, inv_freq), kwargs, error, fragments
        for op in ("rotary_qk", "rotary_qk_"):
            yield op, (X, X, positions, inv_freq), kwargs, error, fragments
    for cos, sin, error, fragments in TABLES:
        yield "apply_rotary", (X, cos, sin), {}, error, fragments
        for op in ("apply_rotary_qk", "apply_rotary_qk_"):
            yield op, (X, X, cos, sin), {}, error, fragments
    for q, k, error, fragments in QK:
        for op in ("rotary_qk", "rotary_qk_"):
            yield op, (q, k, None, F), {}, error, fragments
        for op in ("apply_rotary_qk", "apply_rotary_qk_"):
            yield op, (q, k, TABLE, TABLE), {}, error, fragments
    for op in ("rotary_qk", "rotary_qk_"):
        yield op, (X, K, None, ("f64", 1, 4, 4)), {}, ValueError, [r"\bk\b", "4", "heads", r"\[2, 2, 5, 8\]"]
    for op in ("apply_rotary_qk", "apply_rotary_qk_"):
        tables = (("f32", 2, 4, 5, 4),) * 2
        yield op, (X, K, *tables), {}, ValueError, [r"\bk\b", "cos", r"\[2, 4, 5, 4\]"]

    yield "rotary_tables", (None, F), {}, ValueError, ["length", "positions"]
    yield "rotary_tables", (None, F), {"length": -1}, ValueError, ["length", "-1"]
    yield "rotary_tables", (("i64", 5), F), {"length": 4}, ValueError, ["length", "4", r"\[5\]"]
    yield "rotary_tables", (None, F), {"length": 5, "dtype": torch.int64}, TypeError, ["dtype", "Long"]
    yield "rotary_tables", (None, F), {"length": 5, "dtype": torch.bool}, TypeError, ["dtype", "Bool"]
    for positions, inv_freq, kwargs, error, fragments in ANGLES:
        yield "rotary_tables", (positions, inv_freq), {"length": 5, **kwargs}, error, fragments


ENTRIES = list(entries())
IDS = [f"{op}-{i}-{error.__name__}" for i, (op, _, _, error, _) in enumerate(ENTRIES)]


def build(args, kwargs, device):
    args = [a if a is None else tensor(a, device) for a in args]
    kwargs = {key: tensor(v, device) if key == "offsets" else v for key, v in kwargs.items()}
    return args, kwargs


def message_of(call, error):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    return str(caught.value).split("\nException raised from")[0]


@pytest.mark.parametrize(("op", "args", "kwargs", "error", "fragments"), ENTRIES, ids=IDS)
def test_unusable_input(op, args, kwargs, error, fragments):
    tensors, keywords = build(args, kwargs, "cpu")
    with torch.no_grad():
        message = message_of(lambda: getattr(torch.ops.posenc, op)(*tensors, **keywords), error)
    assert message.startswith(f"{op}: ")
    for fragment in fragments:
        assert re.search(fragment, message), f"{fragment!r} is not in {message!r}"

    meta, meta_keywords = build(args, kwargs, "meta")
    on_meta = message_of(lambda: getattr(torch.ops.posenc, op)(*meta, **meta_keywords), error)
    assert on_meta.replace("meta", "cpu") == message

    if not ("offset" in keywords and "offsets" in keywords):
        if "offsets" in keywords:
            keywords["offset"] = keywords.pop("offsets")
        assert message_of(lambda: getattr(posenc.ops, op)(*tensors, **keywords), error) == message


def test_unusable_input_is_refused_where_a_gradient_is_wanted():
    """Autograd kernels check too, and leave nothing half done."""
    x = torch.randn(2, 4, 5, 7, requires_grad=True)
    inv_freq = torch.ones(4, dtype=torch.float64, requires_grad=True)
    message = r"rotary: expected the last dimension of x to be at least the rotary width 8.*\[2, 4, 5, 7\]"
    with pytest.raises(ValueError, match=message):
        posenc.ops.rotary(x, None, inv_freq)
    with pytest.raises(ValueError, match=message):
        torch.func.vmap(lambda x: posenc.ops.rotary(x, None, inv_freq.detach()))(x.detach()[None])
    with pytest.raises(ValueError, match=message):
        torch.func.jvp(lambda x: posenc.ops.rotary(x, None, inv_freq.detach()), (x.detach(),), (x.detach(),))


def test_the_message_of_the_design():
    message = (
        "rotary: expected the last dimension of x to be at least the rotary width 64, but got x of shape [2, 8, 16, 48]"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        posenc.ops.rotary(torch.zeros(2, 8, 16, 48), None, torch.ones(32, dtype=torch.float64))


@pytest.mark.parametrize("op", ["rotary_qk_", "apply_rotary_qk_"])
def test_a_refused_in_place_call_changes_nothing(op):
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8)
    copies = q.clone(), k.clone()
    rest = (None, torch.ones(4, dtype=torch.float64)) if op == "rotary_qk_" else (torch.ones(5, 4), torch.ones(5, 4))
    with pytest.raises(ValueError, match=op):
        getattr(posenc.ops, op)(q, k, *rest)
    assert_bits(q, copies[0])
    assert_bits(k, copies[1])


@pytest.mark.parametrize("shape", [(2**20, 2**20, 2**20, 0), (0, 2**30, 2**20, 8), (2**31, 1, 0, 8)], ids=str)
def test_empty_tensors_of_extreme_shape(shape):
    """No element to touch, but sizes whose product or whose count of rows must not be walked."""
    inv_freq = torch.ones(shape[-1] // 2, dtype=torch.float64)
    assert posenc.ops.rotary(torch.empty(shape), None, inv_freq).shape == shape


@pytest.mark.parametrize("bad", ["not a tensor", None, 3])
def test_things_that_are_no_tensors(bad):
    inv_freq = torch.ones(4, dtype=torch.float64)
    with pytest.raises((TypeError, RuntimeError)):
        posenc.ops.rotary(bad, None, inv_freq)
    with pytest.raises((TypeError, RuntimeError)):
        posenc.ops.rotary(torch.zeros(2, 4, 5, 8), None, bad)


@pytest.mark.parametrize("where", ["positions", "inv_freq", "k", "offset", "cos"])
def test_tensors_on_different_devices(where):
    def on(name, *shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device="meta" if name == where else "cpu")

    q, k = torch.zeros(2, 4, 5, 8), on("k", 2, 2, 5, 8)
    with pytest.raises(ValueError, match=rf"{where}.*(cpu|meta).*(cpu|meta)"):
        if where == "cos":
            posenc.ops.apply_rotary_qk(q, k, on("cos", 5, 4), torch.zeros(5, 4))
        elif where == "offset":
            offset = on("offset", 2, dtype=torch.int64)
            posenc.ops.rotary_qk(q, k, None, torch.ones(4, dtype=torch.float64), offset=offset)
        else:
            inv_freq = on("inv_freq", 4, dtype=torch.float64)
            posenc.ops.rotary_qk(q, k, on("positions", 5, dtype=torch.int64), inv_freq)


def test_a_stray_keyword_is_refused():
    x, inv_freq = torch.zeros(2, 4, 5, 8), torch.ones(4, dtype=torch.float64)
    with pytest.raises(TypeError, match="interleave"):
        posenc.ops.rotary(x, None, inv_freq, interleave=True)
    with pytest.raises(TypeError):
        posenc.ops.rotary(x, None, inv_freq, 1.0)
    with pytest.raises((TypeError, RuntimeError), match="offset"):
        posenc.ops.rotary(x, None, inv_freq, offset=1.5)
