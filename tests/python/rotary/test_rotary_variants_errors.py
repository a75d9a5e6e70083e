"""What XPos, AxialRotary and MultimodalRotary refuse, in both languages, and what the messages say."""

import math

import pytest
import torch

import posenc

pytestmark = pytest.mark.kernels

GRID = torch.tensor([[0, 1, 1, 1, 2], [0, 1, 2, 3, 1]])
SPANS = torch.tensor([[0, 1, 2, 2, 4], [0, 1, 2, 3, 4], [0, 1, 2, 2, 4]])

OPTIONS = {
    "xpos_odd": ("XPos", (7,), {}, "even.*7"),
    "xpos_empty": ("XPos", (0,), {}, "0"),
    "xpos_base": ("XPos", (8,), {"base": -1.0}, "base.*-1"),
    "xpos_scale_base": ("XPos", (8,), {"scale_base": 0.0}, "scale_base.*0"),
    "xpos_centre": ("XPos", (8,), {"centre": math.nan}, "centre.*nan"),
    "axial_odd": ("AxialRotary", (6,), {}, r"multiple of 2 \* num_axes = 4.*6"),
    "axial_64_on_3_axes": ("AxialRotary", (64,), {"num_axes": 3}, r"multiple of 2 \* num_axes = 6.*64"),
    "axial_no_axes": ("AxialRotary", (8,), {"num_axes": 0}, "num_axes.*0"),
    "axial_base": ("AxialRotary", (8,), {"base": 0.0}, "base.*0"),
    "axial_heads_without_learnable": ("AxialRotary", (8,), {"num_heads": 4}, "num_heads.*learnable"),
    "axial_no_heads": ("AxialRotary", (8,), {"num_heads": 0, "learnable": True}, "num_heads.*0"),
    "multimodal_too_few": ("MultimodalRotary", (8, (1, 1, 1)), {}, r"add up to .*4.*\[1, 1, 1\]"),
    "multimodal_too_many": ("MultimodalRotary", (8, (2, 2, 2)), {}, r"add up to .*4.*\[2, 2, 2\]"),
    "multimodal_doubled": ("MultimodalRotary", (8, (2, 2, 4)), {}, r"add up to .*4.*\[2, 2, 4\]"),
    "multimodal_negative": ("MultimodalRotary", (8, (-1, 2, 3)), {}, r"\[-1, 2, 3\]"),
    "multimodal_none": ("MultimodalRotary", (8, ()), {}, r"\[\]"),
    "multimodal_of_rotary_dim": ("MultimodalRotary", (8, (1, 1, 2)), {"rotary_dim": 6}, r"add up to .*3.*\[1, 1, 2\]"),
    "multimodal_odd": ("MultimodalRotary", (9, (1, 1, 2)), {}, "even.*9"),
    "multimodal_too_wide": ("MultimodalRotary", (8, (2, 2, 2)), {"rotary_dim": 12}, "rotary_dim.*8.*12"),
    "multimodal_turns": ("MultimodalRotary", (8, (1, 3, 0)), {"interleaved_sections": True}, r"section 1.*\[1, 3, 0\]"),
    "multimodal_seq_len": ("MultimodalRotary", (8, (1, 1, 2)), {"seq_len": 0}, "seq_len.*0"),
    "multimodal_scaling": (
        "MultimodalRotary",
        (8, (1, 1, 2)),
        {"scaling": posenc.scaling.LongRoPE([1.0] * 3, [2.0] * 3, 16)},
        "4 numbers for dim 8",
    ),
}


@pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
@pytest.mark.parametrize(("name", "arguments", "options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options(name, arguments, options, message, namespace):
    with pytest.raises(ValueError, match=message):
        getattr(namespace, name)(*arguments, **options)


@pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
def test_options_are_named(namespace):
    for name, arguments in (
        ("XPos", (8, 1e4)),
        ("AxialRotary", (8, 2)),
        ("MultimodalRotary", (8, (1, 1, 2), 8)),
        ("XPos", ("8",)),
        ("MultimodalRotary", (8, 4)),
    ):
        with pytest.raises(TypeError):
            getattr(namespace, name)(*arguments)


AXIAL, HEADS = ("AxialRotary", (8,), {}), ("AxialRotary", (8,), {"learnable": True, "num_heads": 4})
MIXED, MULTIMODAL = ("AxialRotary", (8,), {"learnable": True}), ("MultimodalRotary", (8, (1, 1, 2)), {})
XPOS = ("XPos", (8,), {})
Q, K = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)

CALLS = {
    "axial_without_positions": (AXIAL, (Q, K), {}, "AxialRotary.*positions"),
    "axial_offset_alone": (AXIAL, (Q, K), {"offset": 3}, "AxialRotary.*positions"),
    "axial_one_axis": (AXIAL, (Q, K, GRID[0]), {}, r"2 axes.*\[5\]"),
    "axial_by_row_only": (AXIAL, (Q, K, GRID[:1]), {}, r"2 axes.*\[1, 5\]"),
    "axial_three_axes": (AXIAL, (Q, K, SPANS), {}, r"2 axes.*\[3, 5\]"),
    "axial_axes_last": (AXIAL, (Q, K, GRID.T), {}, r"2 axes.*\[5, 2\]"),
    "axial_length": (AXIAL, (Q, K, GRID[:, :4]), {}, r"length 5.*\[2, 4\]"),
    "axial_batch": (AXIAL, (Q, K, GRID[:, None].expand(2, 3, 5)), {}, r"batch 1 or 2.*\[2, 3, 5\]"),
    "axial_dimensions": (AXIAL, (Q, K, GRID[:, None, None]), {}, r"\[2, 1, 1, 5\]"),
    "axial_offset": (AXIAL, (Q, K, GRID), {"offset": 3}, "offset.*3"),
    "axial_offset_per_row": (AXIAL, (Q, K, GRID), {"offset": torch.tensor([1, 2])}, "offset"),
    "axial_width": (AXIAL, (Q[..., :6], K[..., :6], GRID), {}, r"8.*\[2, 4, 5, 6\]"),
    "axial_dimensions_of_q": (AXIAL, (Q[0], None, GRID), {}, r"\[4, 5, 8\]"),
    "mixed_one_axis": (MIXED, (Q, K, GRID[:1]), {}, r"2 axes.*\[1, 5\]"),
    "mixed_without_positions": (MIXED, (Q, K), {}, "AxialRotary.*positions"),
    "heads_grouped": (HEADS, (Q, K, GRID), {}, r"4 heads.*\[2, 2, 5, 8\]"),
    "multimodal_one_axis": (MULTIMODAL, (Q, K, SPANS[0]), {}, r"3 axes.*\[5\]"),
    "multimodal_by_row": (MULTIMODAL, (Q, K, SPANS[:2]), {}, r"3 axes.*\[2, 5\]"),
    "multimodal_row_first": (MULTIMODAL, (Q, K, SPANS[None].expand(2, 3, 5)), {}, r"3 axes.*\[2, 3, 5\]"),
    "multimodal_length": (MULTIMODAL, (Q, K, SPANS[:, :4]), {}, r"length 5.*\[3, 4\]"),
    "multimodal_batch": (MULTIMODAL, (Q, K, SPANS[:, None].expand(3, 3, 5)), {}, r"batch 1 or 2.*\[3, 3, 5\]"),
    "multimodal_offset": (MULTIMODAL, (Q, K, SPANS), {"offset": 3}, "offset.*3"),
    "multimodal_keys": (MULTIMODAL, (Q, K[:, :, :4], SPANS), {}, r"\[2, 2, 4, 8\]"),
    "xpos_axes": (XPOS, (Q, K, SPANS), {}, r"batch 1 or 2.*\[3, 5"),
    "xpos_length": (XPOS, (Q, K, torch.arange(4)), {}, r"length 5.*\[4\]"),
    "xpos_offset": (XPOS, (Q, K, torch.arange(5)), {"offset": 3}, "offset.*3"),
    "xpos_width": (XPOS, (Q[..., :6], None), {}, r"\[2, 4, 5, 6\]"),
    "xpos_wider": (XPOS, (torch.cat([Q, Q], -1), None), {}, r"8.*\[2, 4, 5, 16\]"),
    "axial_wider": (AXIAL, (torch.cat([Q, Q], -1), None, GRID), {}, r"8.*\[2, 4, 5, 16\]"),
    "multimodal_wider": (MULTIMODAL, (torch.cat([Q, Q], -1), None, SPANS), {}, r"8.*\[2, 4, 5, 16\]"),
    "xpos_keys": (XPOS, (Q, K[:, :, :4]), {}, r"\[2, 2, 4, 8\]"),
    "xpos_keys_at_positions": (XPOS, (Q, K[:, :, :4], torch.arange(5)), {}, "4"),
    "xpos_batch_of_keys": (XPOS, (Q, K[:1]), {}, r"\[1, 2, 5, 8\]"),
    "xpos_dimensions_of_q": (XPOS, (Q[0], None), {}, r"\[4, 5, 8\]"),
}


@pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
@pytest.mark.parametrize(("build", "arguments", "call", "message"), CALLS.values(), ids=CALLS)
def test_calls(build, arguments, call, message, namespace):
    name, positional, options = build
    module = getattr(namespace, name)(*positional, **options)
    with pytest.raises(ValueError, match=message):
        module(*arguments, **call)


@pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
@pytest.mark.parametrize(
    ("build", "positions"), [(XPOS, GRID[0]), (AXIAL, GRID), (HEADS, GRID), (MULTIMODAL, SPANS)], ids=str
)
def test_dtypes(build, positions, namespace):
    name, positional, options = build
    module = getattr(namespace, name)(*positional, **options)
    with pytest.raises(TypeError, match="float32, float64, bfloat16"):
        module(Q.long(), positions=positions)
    with pytest.raises(TypeError, match="positions"):
        module(Q, positions=positions.bool())
    with pytest.raises(TypeError, match="positions"):
        module(Q, positions=positions.to(torch.complex64))


@pytest.mark.parametrize(
    ("build", "positions"), [(XPOS, GRID[0]), (AXIAL, GRID), (MULTIMODAL, SPANS)], ids=["xpos", "axial", "multimodal"]
)
def test_the_same_message_in_a_compiled_graph(build, positions, fresh_compiler):
    name, positional, options = build
    module = getattr(posenc.nn, name)(*positional, **options)
    compiled = torch.compile(module, backend="aot_eager")
    with pytest.raises(Exception, match=r"positions of shape"):
        compiled(Q, K, positions[..., :4])
