"""How the rotary ops are registered: schemas, opcheck, meta kernels, autocast, inference mode, version counters."""

import pytest
import torch

import layouts
import posenc
import reference
from tolerances import DTYPES, assert_bits

OPS = torch.ops.posenc
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
GRID = ["contiguous", "transposed", "packed", "every_second"]

RULE = "float attention_scaling=1., bool interleaved=False, bool inverse=False"
COUNT = "SymInt offset=0, Tensor? offsets=None"
SCHEMAS = {
    "rotary": f"(Tensor x, Tensor? positions, Tensor inv_freq, *, {RULE}, int[]? axes=None, bool exact=True, {COUNT})"
    " -> Tensor",
    "rotary_qk": f"(Tensor q, Tensor k, Tensor? positions, Tensor inv_freq, *, {RULE}, int[]? axes=None,"
    f" bool exact=True, {COUNT}) -> (Tensor, Tensor)",
    "rotary_qk_": f"(Tensor(a!) q, Tensor(b!) k, Tensor? positions, Tensor inv_freq, *, {RULE}, int[]? axes=None,"
    f" bool exact=True, {COUNT}) -> ()",
    "rotary_tables": f"(Tensor? positions, Tensor inv_freq, *, SymInt? length=None, {COUNT},"
    " float attention_scaling=1., int[]? axes=None, bool exact=True, ScalarType? dtype=None) -> (Tensor, Tensor)",
    "apply_rotary": "(Tensor x, Tensor cos, Tensor sin, *, bool interleaved=False, bool inverse=False) -> Tensor",
    "apply_rotary_qk": "(Tensor q, Tensor k, Tensor cos, Tensor sin, *, bool interleaved=False, bool inverse=False)"
    " -> (Tensor, Tensor)",
    "apply_rotary_qk_": "(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, *, bool interleaved=False,"
    " bool inverse=False) -> ()",
}


def frequencies():
    return reference.inverse_frequencies(8)


def tables():
    return posenc.ops.rotary_tables(None, frequencies(), length=5)


def calls(layout, dtype, requires_grad=False):
    """One call of every op on x, q (2, 4, 5, 10) and k (2, 2, 5, 10)."""

    def tensor(heads, wants=requires_grad):
        made = layouts.make(layout, (2, heads, 5, 10), dtype).detach()
        return made.requires_grad_(wants)

    positions = torch.tensor([4, 0, 2, 2, 9])
    per_row = torch.tensor([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]], dtype=torch.float32)
    multi_axis = {"axes": [0, 1, 1, 0]}
    f = frequencies
    return {
        "rotary": [
            ((tensor(4), positions, f()), {}),
            ((tensor(4), None, f()), {"offset": 3, "interleaved": True}),
            ((tensor(4), None, f()), {"offsets": torch.tensor([1, 7]), "inverse": True}),
            ((tensor(4), torch.stack([positions, positions]), f()), multi_axis),
            ((tensor(4), torch.stack([positions, positions]), torch.stack([f(), f()])), {}),
        ],
        "rotary_qk": [
            ((tensor(4), tensor(2), per_row, f()), {"attention_scaling": 1.25}),
            ((tensor(4), tensor(2), None, f().float()), {"exact": False}),
            ((tensor(4), tensor(2), per_row, f().requires_grad_(requires_grad)), {}),
        ],
        "rotary_qk_": [((tensor(4, False), tensor(2, False), positions, f()), {})],
        "rotary_tables": [
            ((positions, f()), {"dtype": dtype}),
            ((None, f().requires_grad_(requires_grad)), {"length": 5, "offset": 2}),
            ((torch.stack([per_row, per_row]), torch.rand(2, 3, 4, dtype=torch.float64)), {}),
        ],
        "apply_rotary": [((tensor(4), *tables()), {"interleaved": True})],
        "apply_rotary_qk": [
            ((tensor(4), tensor(2), *(t.requires_grad_(requires_grad) for t in tables())), {"inverse": True})
        ],
        "apply_rotary_qk_": [((tensor(4, False), tensor(2, False), *tables()), {})],
    }


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name):
    """The published arguments, in this order; later ones are keywords with defaults, so no caller breaks."""
    expected = torch._C.parse_schema(f"posenc::{name}{SCHEMAS[name]}")
    actual = getattr(OPS, name).default._schema
    published = len(expected.arguments)

    def facts(arguments):
        return [(a.name, str(a.type), a.default_value, a.kwarg_only, a.is_write) for a in arguments]

    assert facts(actual.arguments[:published]) == facts(expected.arguments)
    assert [str(r.type) for r in actual.returns] == [str(r.type) for r in expected.returns]
    assert all(a.kwarg_only and a.has_default_value() for a in actual.arguments[published:])


@pytest.mark.parametrize("name", SCHEMAS)
def test_tag(name):
    assert torch.Tag.pt2_compliant_tag in getattr(OPS, name).default.tags


@every_dtype
@pytest.mark.parametrize("layout", GRID)
@pytest.mark.parametrize("name", SCHEMAS)
def test_opcheck(name, layout, dtype):
    """Schema, autograd registration, fake tensors and AOT dispatch, static and dynamic."""
    requires_grad = dtype == torch.float32
    entries = calls(layout, dtype, requires_grad)[name]
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    # Graphs with gradients, and without: the other dtypes give the graphs of bfloat16.
    if layout in ("contiguous", "packed") and dtype in (torch.float32, torch.bfloat16):
        tests += ("test_aot_dispatch_dynamic",)
    for args, kwargs in entries:
        torch.library.opcheck(getattr(OPS, name).default, args, kwargs, test_utils=tests)


def to_meta(value):
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value


@every_dtype
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("name", ["rotary", "rotary_qk", "rotary_tables", "apply_rotary", "apply_rotary_qk"])
def test_meta_kernels_agree_with_the_cpu(name, layout, dtype):
    for args, kwargs in calls(layout, dtype)[name]:
        real = getattr(OPS, name)(*args, **kwargs)
        meta = getattr(OPS, name)(*(to_meta(a) for a in args), **{key: to_meta(value) for key, value in kwargs.items()})
        pairs = zip(real, meta, strict=True) if isinstance(real, tuple) else [(real, meta)]
        for r, m in pairs:
            assert m.device.type == "meta"
            assert (m.shape, m.stride(), m.dtype) == (r.shape, r.stride(), r.dtype)


@every_dtype
@pytest.mark.parametrize("name", ["rotary", "rotary_qk", "rotary_tables", "apply_rotary", "apply_rotary_qk"])
@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_nothing(autocast_dtype, name, dtype):
    for args, kwargs in calls("contiguous", dtype)[name]:
        expected = getattr(OPS, name)(*args, **kwargs)
        with torch.autocast("cpu", dtype=autocast_dtype):
            results = getattr(OPS, name)(*args, **kwargs)
        pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
        for result, e in pairs:
            assert_bits(result, e)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", SCHEMAS)
def test_without_gradients(name, mode):
    for args, kwargs in calls("packed", torch.float32)[name]:
        copies = [layouts.with_strides_of(a, a) if isinstance(a, torch.Tensor) else a for a in args]
        expected = getattr(OPS, name)(*copies, **kwargs)
        with mode():
            inside = [layouts.with_strides_of(a, a) if isinstance(a, torch.Tensor) else a for a in args]
            results = getattr(OPS, name)(*inside, **kwargs)
        if name.endswith("_"):
            results, expected = tuple(inside[:2]), tuple(copies[:2])
        pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
        for result, e in pairs:
            assert not result.requires_grad
            assert_bits(result.clone(), e)


@pytest.mark.parametrize("name", ["rotary_qk_", "apply_rotary_qk_"])
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_in_place_ops_bump_the_version(name, view):
    args, _ = calls("packed" if view else "contiguous", torch.float32)[name][0]
    before = [a._version for a in args]
    getattr(OPS, name)(*args)
    assert args[0]._version > before[0]
    assert args[1]._version > before[1]
    assert [a._version for a in args[2:]] == before[2:]


def in_place(name, q, k):
    if name == "rotary_qk_":
        OPS.rotary_qk_(q, k, None, frequencies())
    else:
        OPS.apply_rotary_qk_(q, k, *tables())


@pytest.mark.parametrize("name", ["rotary_qk_", "apply_rotary_qk_"])
@pytest.mark.parametrize("which", [0, 1], ids=["q", "k"])
def test_in_place_ops_refuse_inputs_that_require_a_gradient(name, which):
    tensors = [torch.randn(2, 4, 5, 10), torch.randn(2, 2, 5, 10)]
    tensors[which].requires_grad_()
    unchanged = [t.detach().clone() for t in tensors]
    with pytest.raises(RuntimeError, match=name):
        in_place(name, *tensors)
    with pytest.raises(RuntimeError, match=name):
        in_place(name, *(t * 1 for t in tensors))
    for t, u in zip(tensors, unchanged, strict=True):
        assert_bits(t.detach(), u)
    with torch.no_grad():
        in_place(name, *tensors)
    assert not torch.equal(tensors[0].detach(), unchanged[0])


@pytest.mark.parametrize("name", ["rotary_qk_", "apply_rotary_qk_"])
def test_autograd_notices_a_saved_tensor_rotated_in_place(name):
    w = torch.randn(2, 4, 5, 10, requires_grad=True)
    q, k = torch.randn(2, 4, 5, 10), torch.randn(2, 2, 5, 10)
    z = (w * q).sum()
    in_place(name, q, k)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("name", ["rotary_qk_", "apply_rotary_qk_"])
def test_in_place_ops_refuse_memory_that_overlaps(name):
    """Rotating an element twice would be silently wrong."""
    with pytest.raises((RuntimeError, ValueError)):
        in_place(name, torch.randn(2, 1, 5, 10).expand(2, 4, 5, 10), torch.randn(2, 2, 5, 10))
    same = torch.randn(2, 4, 5, 10)
    before = same.clone()
    with pytest.raises((RuntimeError, ValueError)):
        in_place(name, same, same)
    assert_bits(same, before)


@pytest.mark.parametrize("name", ["rotary", "rotary_qk", "apply_rotary", "apply_rotary_qk"])
def test_no_grad_fn_where_nothing_requires_a_gradient(name):
    for args, kwargs in calls("contiguous", torch.float32)[name]:
        results = getattr(OPS, name)(*args, **kwargs)
        assert all(not r.requires_grad for r in (results if isinstance(results, tuple) else (results,)))


@pytest.mark.parametrize("name", ["rotary", "rotary_qk", "rotary_tables", "apply_rotary", "apply_rotary_qk"])
def test_detached_frequencies_and_tables_get_no_gradient(name):
    for args, kwargs in calls("contiguous", torch.float32, requires_grad=True)[name]:
        frozen = [a.detach() if isinstance(a, torch.Tensor) and a.ndim < 4 else a for a in args]
        results = getattr(OPS, name)(*frozen, **kwargs)
        results = results if isinstance(results, tuple) else (results,)
        assert all(r.requires_grad == (name != "rotary_tables") for r in results)


@pytest.mark.parametrize("name", [name for name in SCHEMAS if not name.endswith("_")])
def test_python_function_is_the_dispatcher_op(name):
    for args, kwargs in calls("transposed", torch.float32)[name]:
        expected = getattr(OPS, name)(*args, **kwargs)
        python_kwargs = dict(kwargs)
        if "offsets" in python_kwargs:
            python_kwargs["offset"] = python_kwargs.pop("offsets")
        results = getattr(posenc.ops, name)(*args, **python_kwargs)
        pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
        for result, e in pairs:
            assert_bits(result, e)
