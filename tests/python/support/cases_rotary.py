"""The rotary encodings under test."""

import torch

import posenc
import reference
from encoding_case import LENGTH, Case


def _rotary(name, head_dim, *, frequencies=None, magnitude=1.0, **options) -> Case:
    rotary_dim = options.get("rotary_dim", head_dim)
    exact = options.get("exact", True)
    if frequencies is None:
        formula = reference.inverse_frequencies if exact else reference.float32_frequencies
        frequencies = formula(rotary_dim, options.get("base", 10000.0))

    def inputs(dtype):
        q = torch.randn(2, 4, LENGTH, head_dim, dtype=torch.float64).to(dtype)
        k = torch.randn(2, 2, LENGTH, head_dim, dtype=torch.float64).to(dtype)
        return q, k

    def rotated(parameters, q, k):
        inv_freq = parameters.get("inv_freq", frequencies)
        rule = {"attention_scaling": magnitude, "interleaved": options.get("interleaved", False), "exact": exact}
        return reference.rotary(q, None, inv_freq, **rule), reference.rotary(k, None, inv_freq, **rule)

    return Case(
        name=name,
        python="Rotary",
        arguments=(head_dim,),
        options=options,
        inputs=inputs,
        reference=rotated,
        parameters=("inv_freq",) if options.get("learnable") else (),
    )


ROTARY_CASES = [
    _rotary("rotary_half", 8),
    _rotary("rotary_interleaved", 8, interleaved=True),
    _rotary("rotary_wide", 128, base=500000.0),
    _rotary("rotary_partial", 10, rotary_dim=6),
    _rotary("rotary_odd_head", 7, rotary_dim=4, interleaved=True),
    _rotary("rotary_width_0", 4, rotary_dim=0, frequencies=torch.empty(0, dtype=torch.float64)),
    _rotary("rotary_float32_angles", 16, exact=False),
    _rotary("rotary_learnable", 8, learnable=True),
    _rotary("rotary_learnable_partial", 9, rotary_dim=6, interleaved=True, learnable=True),
    _rotary(
        "rotary_linear",
        8,
        scaling=posenc.scaling.Linear(4.0),
        frequencies=reference.linear_frequencies(8, 1e4, 4.0),
    ),
    _rotary("rotary_ntk", 8, scaling=posenc.scaling.NTK(4.0), frequencies=reference.ntk_frequencies(8, 1e4, 4.0)),
    _rotary(
        "rotary_dynamic_ntk_beyond",
        8,
        scaling=posenc.scaling.DynamicNTK(2.0, 4),
        frequencies=reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 4, LENGTH),
    ),
    _rotary(
        "rotary_dynamic_ntk_given_length",
        8,
        scaling=posenc.scaling.DynamicNTK(2.0, 16),
        seq_len=17,
        frequencies=reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 16, 17),
    ),
    _rotary(
        "rotary_yarn",
        16,
        scaling=posenc.scaling.Yarn(16.0, 64),
        frequencies=reference.yarn_frequencies(16, 1e4, 16.0, 64),
        magnitude=reference.yarn_magnitude(16.0),
    ),
    _rotary(
        "rotary_yarn_constant_magnitude",
        16,
        interleaved=True,
        scaling=posenc.scaling.Yarn(16.0, 4096, attention_factor=0.707 * reference.yarn_magnitude(16.0)),
        frequencies=reference.yarn_frequencies(16, 1e4, 16.0, 4096),
        magnitude=0.707 * reference.yarn_magnitude(16.0),
    ),
]


def _queries_and_keys(head_dim, key_heads=2):
    def inputs(dtype):
        q = torch.randn(2, 4, LENGTH, head_dim, dtype=torch.float64).to(dtype)
        k = torch.randn(2, key_heads, LENGTH, head_dim, dtype=torch.float64).to(dtype)
        return q, k

    return inputs


def _at(positions):
    """A call at these positions, on the device of the queries."""
    return lambda module, q, k: module(q, k, positions.to(q.device))


def _xpos(name, head_dim, **options) -> Case:
    def turned(parameters, q, k):
        positions = torch.arange(LENGTH)
        return reference.xpos(q, positions, growth=1, **options), reference.xpos(k, positions, growth=-1, **options)

    return Case(
        name=name,
        python="XPos",
        arguments=(head_dim,),
        options=options,
        inputs=_queries_and_keys(head_dim),
        reference=turned,
    )


def _axial(name, head_dim, positions, **options) -> Case:
    learnable, rule = options.get("learnable", False), {"interleaved": options.get("interleaved", True)}

    def turned(parameters, q, k):
        if learnable:
            return tuple(reference.rotary(x, positions, parameters["inv_freq"], **rule) for x in (q, k))
        return tuple(reference.axial(x, positions, base=options.get("base", 100.0), **rule) for x in (q, k))

    return Case(
        name=name,
        python="AxialRotary",
        arguments=(head_dim,),
        options=options,
        inputs=_queries_and_keys(head_dim, key_heads=options.get("num_heads", 2)),
        reference=turned,
        parameters=("inv_freq",) if learnable else (),
        call=_at(positions),
    )


def _multimodal(name, head_dim, sections, positions, *, frequencies=None, magnitude=1.0, **options) -> Case:
    exact = options.get("exact", True)
    rotary_dim = options.get("rotary_dim", head_dim)
    formula = reference.inverse_frequencies if exact else reference.float32_frequencies
    inv_freq = formula(rotary_dim, options.get("base", 10000.0)) if frequencies is None else frequencies
    rule = {
        "axes": reference.multimodal_axes(sections, options.get("interleaved_sections", False)),
        "attention_scaling": magnitude,
        "interleaved": options.get("interleaved", False),
        "exact": exact,
    }
    return Case(
        name=name,
        python="MultimodalRotary",
        arguments=(head_dim, sections),
        options=options,
        inputs=_queries_and_keys(head_dim),
        reference=lambda parameters, q, k: tuple(reference.rotary(x, positions, inv_freq, **rule) for x in (q, k)),
        call=_at(positions),
    )


# A row of patches as a 2 x 3 grid after a class token at place 0; frames, rows and columns that differ by batch row.
GRID = torch.tensor([[0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 1, 2, 3]])
UNIT_GRID = (GRID + 0.5) / 4
SPANS = torch.tensor(
    [
        [[0, 1, 2, 2, 2, 2, 4], [0, 0, 0, 1, 1, 1, 3]],
        [[0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 0, 1, 2, 3]],
        [[0, 1, 2, 3, 2, 3, 4], [2, 1, 0, 2, 1, 0, 3]],
    ]
)

XPOS_CASES = [
    _xpos("xpos", 8),
    _xpos("xpos_half", 8, interleaved=False),
    _xpos("xpos_centre", 64, base=500000.0, scale_base=4.0, centre=3.5),
]

AXIAL_ROTARY_CASES = [
    _axial("axial", 16, GRID),
    _axial("axial_half_unit_coordinates", 16, UNIT_GRID, interleaved=False, base=10000.0),
    _axial("axial_3_axes_by_row", 12, SPANS, num_axes=3),
    _axial("axial_1_axis", 6, GRID[:1], num_axes=1),
    _axial("axial_learnable", 8, GRID, learnable=True, base=10.0),
    _axial("axial_learnable_heads", 8, UNIT_GRID, learnable=True, num_heads=4, interleaved=False),
    _axial("axial_learnable_heads_by_row", 12, SPANS, num_axes=3, learnable=True, num_heads=4),
]

MULTIMODAL_ROTARY_CASES = [
    _multimodal("multimodal", 16, (2, 3, 3), SPANS),
    _multimodal("multimodal_interleaved", 8, (1, 1, 2), SPANS[:, 1], interleaved=True, base=1e6),
    _multimodal("multimodal_sections_in_turns", 16, (4, 2, 2), SPANS, interleaved_sections=True),
    _multimodal("multimodal_partial", 11, (2, 1, 1), SPANS, rotary_dim=8),
    _multimodal("multimodal_4_axes", 8, (0, 1, 2, 1), torch.cat([SPANS, SPANS[:1] + 0.5])),
    _multimodal("multimodal_float32_angles", 16, (2, 3, 3), SPANS, exact=False),
    _multimodal(
        "multimodal_yarn",
        16,
        (4, 2, 2),
        SPANS,
        interleaved_sections=True,
        scaling=posenc.scaling.Yarn(16.0, 64),
        frequencies=reference.yarn_frequencies(16, 1e4, 16.0, 64),
        magnitude=reference.yarn_magnitude(16.0),
    ),
    _multimodal(
        "multimodal_dynamic_ntk",
        8,
        (1, 1, 2),
        SPANS,
        scaling=posenc.scaling.DynamicNTK(2.0, 16),
        seq_len=17,
        frequencies=reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 16, 17),
    ),
]

CASES = ROTARY_CASES + XPOS_CASES + AXIAL_ROTARY_CASES + MULTIMODAL_ROTARY_CASES
