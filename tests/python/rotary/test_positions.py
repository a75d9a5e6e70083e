"""Positions of padded, packed and multimodal sequences, against counting in Python loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.positions import (
    multimodal_positions,
    positions_from_cu_seqlens,
    positions_from_mask,
    segments_from_cu_seqlens,
)

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def count_row(row: list[int]) -> list[int]:
    """Positions of the tokens shown so far; 0 at padding."""
    result, seen = [], 0
    for shown in row:
        result.append(seen if shown else 0)
        seen += 1 if shown else 0
    return result


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS])
def test_positions_count_from_the_first_unmasked_token(dtype):
    rows = [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    found = positions_from_mask(torch.tensor(rows, dtype=dtype))
    assert found.dtype == torch.int64
    assert found.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]


@given(st.integers(0, 7).flatmap(lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n), max_size=5)))
def test_mask_equals_counting(rows):
    width = len(rows[0]) if rows else 3
    mask = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), width)
    assert positions_from_mask(mask).tolist() == [count_row(row) for row in rows]
    for row in rows:
        assert positions_from_mask(torch.tensor(row, dtype=torch.int64)).tolist() == count_row(row)


def test_mask_of_any_strides_is_left_as_it_is():
    mask = torch.tensor([[0, 1], [1, 1], [1, 0]]).T
    before = mask.clone()
    assert positions_from_mask(mask).tolist() == [count_row(row) for row in before.tolist()]
    assert torch.equal(mask, before)


def test_mask_of_another_shape_or_dtype_is_refused():
    with pytest.raises(ValueError, match=r"positions_from_mask: expected mask of shape \(T\) or \(B, T\).*\[1, 2, 3\]"):
        positions_from_mask(torch.ones(1, 2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="positions_from_mask: expected mask to be bool or integer, but got Float"):
        positions_from_mask(torch.ones(2, 3))


@given(st.lists(st.integers(0, 6), max_size=6), st.sampled_from(INTEGERS))
def test_packs_equal_counting(lengths, dtype):
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    cu_seqlens = torch.tensor(ends, dtype=dtype)
    positions = positions_from_cu_seqlens(cu_seqlens, ends[-1])
    segments = segments_from_cu_seqlens(cu_seqlens, ends[-1])
    assert positions.dtype == segments.dtype == torch.int64
    assert positions.tolist() == [i for length in lengths for i in range(length)]
    assert segments.tolist() == [n for n, length in enumerate(lengths) for _ in range(length)]


PACK_OPS = [positions_from_cu_seqlens, segments_from_cu_seqlens]


@pytest.mark.parametrize("op", PACK_OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize(
    ("cu_seqlens", "total", "message"),
    [
        ([1, 4], 4, "to start with 0, but got 1"),
        ([0, 3, 2, 4], 4, r"not to decrease, but got \[0, 3, 2, 4\]"),
        ([0, 3], 4, "to end with total 4, but got 3"),
        ([0, 5], 4, "to end with total 4, but got 5"),
        ([], 0, "to start with 0, but it is empty"),
        ([[0, 4]], 4, r"of shape \(N \+ 1\), but got \[1, 2\]"),
    ],
)
def test_impossible_packs_are_refused(op, cu_seqlens, total, message):
    with pytest.raises(ValueError, match=f"{op.__name__}: expected cu_seqlens {message}"):
        op(torch.tensor(cu_seqlens, dtype=torch.int64), total)


@pytest.mark.parametrize("op", PACK_OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_packs_of_another_dtype_are_refused(op, dtype):
    with pytest.raises(TypeError, match=f"{op.__name__}: expected cu_seqlens to be integer"):
        op(torch.tensor([0, 1], dtype=dtype), 1)


def test_opcheck():
    cu_seqlens = torch.tensor([0, 2, 2, 5])
    torch.library.opcheck(torch.ops.posenc.positions_from_cu_seqlens, (cu_seqlens, 5))
    torch.library.opcheck(torch.ops.posenc.segments_from_cu_seqlens, (cu_seqlens, 5))
    torch.library.opcheck(torch.ops.posenc.positions_from_mask, (torch.tensor([[0, 1, 1]]),))


def test_compile(fresh_compiler):
    @torch.compile(fullgraph=True, dynamic=True)
    def all_of_them(mask, cu_seqlens, tokens):
        total = tokens.shape[0]
        return (
            positions_from_mask(mask),
            positions_from_cu_seqlens(cu_seqlens, total),
            segments_from_cu_seqlens(cu_seqlens, total),
        )

    for total in (4, 7):
        by_mask, positions, segments = all_of_them(
            torch.ones(2, total, dtype=torch.bool), torch.tensor([0, 2, total]), torch.zeros(total)
        )
        assert by_mask.tolist() == [list(range(total))] * 2
        assert positions.tolist() == [0, 1, *range(total - 2)]
        assert segments.tolist() == [0, 0] + [1] * (total - 2)


def count_spans(spans) -> list[list[int]]:
    """Qwen2-VL (arXiv 2409.12191): each span starts one above the largest position before it."""
    tokens: list[tuple[int, int, int]] = []
    for kind, size in spans:
        start = max((max(token) for token in tokens), default=-1) + 1
        if kind == "text":
            tokens += [(start + i,) * 3 for i in range(size)]
        else:
            frames, height, width = size
            for t in range(frames):
                for h in range(height):
                    tokens += [(start + t, start + h, start + w) for w in range(width)]
    return [[token[axis] for token in tokens] for axis in range(3)]


grids = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
text_spans = st.tuples(st.just("text"), st.integers(0, 4))
grid_spans = st.tuples(st.sampled_from(["image", "video"]), grids)


@given(st.lists(text_spans | grid_spans, max_size=6))
def test_multimodal_positions_equal_counting(spans):
    found = multimodal_positions(spans)
    assert found.dtype == torch.int64
    assert found.tolist() == count_spans(spans)


def test_text_resumes_above_the_largest_side_of_an_image():
    found = multimodal_positions([("text", 4), ("image", (1, 2, 3)), ("text", 2)])
    assert found.tolist() == [
        [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8],
        [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8],
        [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8],
    ]


def test_text_alone_counts_on_all_axes():
    assert multimodal_positions([("text", 5)]).tolist() == [list(range(5))] * 3
    assert multimodal_positions([("text", 2), ("text", 3)]).tolist() == [list(range(5))] * 3
    assert multimodal_positions([]).shape == (3, 0)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (("sound", 3), "named 'sound' with one number"),
        (("text", (1, 2, 3)), "named 'text' with three numbers"),
        (("image", 3), "named 'image' with one number"),
        (("text", -1), "expected the length of text to be at least 0, but got -1"),
        (("video", (1, 0, 2)), r"every side of a grid \(t, h, w\) to be at least 1, but got \(1, 0, 2\)"),
    ],
)
def test_impossible_spans_are_refused(span, message):
    with pytest.raises(ValueError, match=f"multimodal_positions: .*{message}"):
        multimodal_positions([span])
    with pytest.raises(TypeError):
        multimodal_positions([("image", (1, 2))])


def test_multimodal_positions_are_numbers_under_a_meta_device():
    with torch.device("meta"):
        assert multimodal_positions([("text", 3)]).tolist() == [[0, 1, 2]] * 3


def test_multimodal_positions_agree_with_transformers():
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    config = transformers.Qwen2VLConfig()
    merge = config.vision_config.spatial_merge_size
    spans = [("text", 3), ("image", (1, 4, 6)), ("text", 2), ("image", (1, 2, 2)), ("text", 5)]
    kinds = [0 if kind == "text" else 1 for kind, size in spans for _ in range(_tokens(size))]
    grids = [(t, h * merge, w * merge) for t, h, w in (size for kind, size in spans if kind == "image")]
    model = Qwen2VLModel.__new__(Qwen2VLModel)
    torch.nn.Module.__init__(model)
    model.config = config
    positions, _ = model.get_rope_index(
        torch.ones(1, len(kinds), dtype=torch.int64),
        mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor(grids),
    )
    assert torch.equal(positions[:, 0], multimodal_positions(spans))


def _tokens(size) -> int:
    return size if isinstance(size, int) else size[0] * size[1] * size[2]
