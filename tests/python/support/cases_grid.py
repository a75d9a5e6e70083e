"""DecomposedRelative and GridRelativeBias under test, through attend."""

import torch

import grid_reference
from encoding_case import Case

HEADS, GROUPS, WIDTH = 4, 2, 8


def _inputs(tokens):
    """dtype -> queries, keys and values, with fewer key heads."""

    def make(dtype):
        return tuple(
            torch.randn(2, heads, tokens, WIDTH, dtype=torch.float64).to(dtype) for heads in (HEADS, GROUPS, GROUPS)
        )

    return make


def _case(name, python, first, window, options, reference, parameters, call, tokens) -> Case:
    call = call or {}

    def attend(module, q, k, v):
        on_device = {key: x.to(q.device) if isinstance(x, torch.Tensor) else x for key, x in call.items()}
        return module.attend(q, k, v, **on_device)

    return Case(
        name=name,
        python=python,
        arguments=(first, window),
        options=options,
        inputs=_inputs(tokens),
        reference=lambda p, q, k, v: (reference(p, q, k, v, **call),),
        parameters=parameters,
        call=attend,
        is_attend=True,
    )


def _grid_bias(name, window, call=None, tokens=None, **options) -> Case:
    class_token, continuous = options.get("class_token", False), options.get("kind") == "cpb"
    return _case(
        name,
        "GridRelativeBias",
        HEADS,
        window,
        options,
        lambda p, q, k, v, **call: grid_reference.grid_bias(q, k, v, p, window, class_token=class_token, **call),
        ("mlp.0.weight", "mlp.0.bias", "mlp.2.weight") if continuous else ("table",),
        call,
        tokens or window[0] * window[1] + class_token,
    )


def _decomposed(name, size, call=None, tokens=None) -> Case:
    return _case(
        name,
        "DecomposedRelative",
        WIDTH,
        size,
        {},
        lambda p, q, k, v, **call: grid_reference.decomposed(q, k, v, p["rel_y"], p["rel_x"], **call),
        ("rel_y", "rel_x"),
        call,
        tokens or size[0] * size[1],
    )


# Two pictures of other sizes than the window, the second seen from elsewhere.
PICTURES = torch.tensor([[[0, 0, 0, 1, 1, 1], [5, 6, 7, 5, 6, 7]], [[0, 1, 9, 0, 1, 2], [3, 3, 3, 1, 1, -4]]])
CALLED = {"k_positions": PICTURES, "q_positions": PICTURES.flip(1), "is_causal": True}
PADDED = {"key_mask": torch.tensor([[False, True, True, True, True, True], [True] * 6]), "scale": 0.3}

CASES = [
    _grid_bias("grid_relative_bias", (2, 3)),
    _grid_bias("grid_relative_bias_masked", (3, 2), PADDED),
    _grid_bias("grid_relative_bias_by_place", (2, 2), CALLED, 6),
    _grid_bias("grid_relative_bias_class_token", (2, 3), class_token=True),
    _grid_bias("grid_relative_bias_class_token_of_a_column", (4, 1), {"is_causal": True}, class_token=True),
    _grid_bias("grid_relative_bias_cpb", (2, 3), kind="cpb"),
    _grid_bias("grid_relative_bias_cpb_of_a_row", (1, 4), {"k_positions": PICTURES[:, 0]}, 6, kind="cpb"),
    _decomposed("decomposed_relative", (2, 3)),
    _decomposed("decomposed_relative_masked", (3, 2), PADDED),
    _decomposed("decomposed_relative_by_place", (2, 2), CALLED, 6),
]
