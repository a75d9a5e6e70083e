"""ShawRelative, TransformerXL, ReRoPE, SelfExtend, CoPE and ForgettingBias under test, through attend."""

import torch

import contextual_reference
from encoding_case import LENGTH, Case

HEADS, GROUPS, WIDTH, EMBED_DIM = 4, 2, 8, 12


def _inputs(width=WIDTH):
    """dtype -> queries, keys and values, with fewer key heads."""

    def make(dtype):
        def normal(heads):
            return torch.randn(2, heads, LENGTH, width, dtype=torch.float64).to(dtype)

        return normal(HEADS), normal(GROUPS), normal(GROUPS)

    return make


def _on_device(x, call):
    """The tensors of a call, where x is."""
    return {name: value.to(x.device) if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def _attend(call):
    return lambda module, q, k, v: module.attend(q, k, v, **_on_device(q, call))


def _case(name, python, arguments, options, reference, parameters=(), width=WIDTH, call=None, **more) -> Case:
    return Case(
        name=name,
        python=python,
        arguments=arguments,
        options=options,
        inputs=_inputs(width),
        reference=lambda parameters, q, k, v: (reference(parameters, q, k, v),),
        parameters=parameters,
        call=_attend(call or {}),
        is_attend=True,
        **more,
    )


def _shaw(name, radius, call=None, **options) -> Case:
    call = call or {}
    return _case(
        name,
        "ShawRelative",
        (WIDTH, radius),
        options,
        lambda p, q, k, v: contextual_reference.shaw(q, k, v, p["rel_k"], p.get("rel_v"), **call),
        parameters=("rel_k", "rel_v") if options.get("values", True) else ("rel_k",),
        call=call,
    )


def _disentangled(name, max_distance, call=None, **options) -> Case:
    call = call or {}
    tables = [name for name, option in (("rel_k", "c2p"), ("rel_q", "p2c")) if options.get(option, True)]
    return _case(
        name,
        "DisentangledRelative",
        (WIDTH, HEADS, max_distance),
        options,
        lambda p, q, k, v: contextual_reference.disentangled(
            q, k, v, p.get("rel_k"), p.get("rel_q"), max_distance, options.get("buckets"), **call
        ),
        parameters=tuple(tables),
        call=call,
    )


def _transformer_xl(name, call=None, **options) -> Case:
    call = call or {}
    layout = options.get("layout", "concatenated")
    return _case(
        name,
        "TransformerXL",
        (WIDTH, HEADS),
        options,
        lambda p, q, k, v: contextual_reference.transformer_xl(q, k, v, p, layout=layout, **call),
        parameters=("content_bias", "position_bias", "pos_proj"),
        call=call,
        rounds_within=True,
    )


def _rerope(name, window, call=None, width=WIDTH, **options) -> Case:
    call = call or {}
    return _case(
        name,
        "ReRoPE",
        (width, window),
        options,
        lambda p, q, k, v: contextual_reference.rerope(q, k, v, window, **options, **call),
        width=width,
        call=call,
        rounds_within=True,
    )


def _self_extend(name, group, window, call=None, **options) -> Case:
    call = call or {}
    return _case(
        name,
        "SelfExtend",
        (WIDTH,),
        {"group": group, "window": window, **options},
        lambda p, q, k, v: contextual_reference.self_extend(q, k, v, group, window, **options, **call),
        call=call,
        rounds_within=True,
    )


def _cope(name, max_positions, call=None, **options) -> Case:
    call = call or {}
    by_value = options.get("gate") == "value"

    def expected(p, q, k, v):
        return contextual_reference.cope(
            q,
            k,
            v,
            p["pos_emb"],
            gate_key=v if by_value else None,
            gate_bias=p.get("gate_bias"),
            scale_position_logits=options.get("scale_position_logits", False),
            **call,
        )

    return _case(
        name,
        "CoPE",
        (WIDTH, max_positions),
        options,
        expected,
        parameters=("pos_emb",) if options.get("gate_bias") is None else ("pos_emb", "gate_bias"),
        call=call,
    )


def _forgetting(name, call=None, **options) -> Case:
    """q, k, v and the input of the layer."""
    call = call or {}

    def inputs(dtype):
        return (*_inputs()(dtype), torch.randn(2, LENGTH, EMBED_DIM, dtype=torch.float64).to(dtype))

    def attend(module, q, k, v, x):
        return module.attend(q, k, v, log_decay=module.forward(x), **_on_device(q, call))

    def expected(p, q, k, v, x):
        decays = contextual_reference.log_decay(x, p["weight"], p.get("bias"))
        return (contextual_reference.forgetting(q, k, v, decays, **call),)

    return Case(
        name=name,
        python="ForgettingBias",
        arguments=(EMBED_DIM, HEADS),
        options=options,
        inputs=inputs,
        reference=expected,
        parameters=("weight",) if options.get("kind") == "cable" else ("weight", "bias"),
        call=attend,
        is_attend=True,
    )


# The second row restarts, with another segment.
BY_ROW = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 10, 11, 0, 1, 2, 3]])
SEGMENTS = torch.tensor([[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]])
LEFT_PADDED = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
RESTARTING = {"q_positions": BY_ROW, "k_positions": BY_ROW, "segment_ids": SEGMENTS}

SHAW_CASES = [
    _shaw("shaw", 2),
    _shaw("shaw_causal", 3, {"is_causal": True, "key_mask": LEFT_PADDED}),
    _shaw("shaw_scores_only", 2, {"scale": 0.3}, values=False),
    _shaw("shaw_per_head", 2, {"is_causal": True, **RESTARTING}, num_heads=HEADS),
    _shaw("shaw_distance_0", 0, {"window": 3}),
]

DISENTANGLED_CASES = [
    _disentangled("disentangled", 3),
    _disentangled("disentangled_buckets", 7, {"is_causal": True, "key_mask": LEFT_PADDED}, buckets=4),
    _disentangled("disentangled_c2p", 2, {"scale": 0.3, "window": 3}, p2c=False),
    _disentangled("disentangled_p2c", 20, RESTARTING, buckets=8, c2p=False),
]

TRANSFORMER_XL_CASES = [
    _transformer_xl("transformer_xl"),
    _transformer_xl("transformer_xl_interleaved", {"scale": 0.4}, layout="interleaved"),
    _transformer_xl("transformer_xl_causal", {"is_causal": True, "key_mask": LEFT_PADDED}, pos_dim=6),
    _transformer_xl("transformer_xl_window", {"window": 3, "segment_ids": SEGMENTS}, pos_dim=2, layout="interleaved"),
]

REROPE_CASES = [
    _rerope("rerope", 3),
    _rerope("rerope_interleaved", 2, {"key_mask": LEFT_PADDED}, interleaved=True, base=500.0),
    _rerope("rerope_log_scaled", 4, log_scale_length=3),
    _rerope("rerope_by_row", 2, RESTARTING, width=6),
    _rerope("rerope_not_causal", 3, {"is_causal": False, "scale": 0.5}),
    _rerope("leaky_rerope", 3, leak=16.0),
    _rerope("leaky_rerope_fraction", 2, RESTARTING, leak=2.5, interleaved=True, log_scale_length=2),
]

SELF_EXTEND_CASES = [
    _self_extend("self_extend", 2, 3),
    _self_extend("self_extend_fraction", 3, 4, interleaved=True, base=500.0),
    _self_extend("self_extend_by_row", 2, 2, RESTARTING),
]

COPE_CASES = [
    _cope("cope", 4),
    _cope("cope_long_table", 16, {"key_mask": LEFT_PADDED}),
    _cope("cope_one_position", 1),
    _cope("cope_two_positions", 2, {"scale": 0.7}),
    _cope("cope_per_head", 4, {"segment_ids": SEGMENTS}, num_heads=HEADS),
    _cope("cope_scaled", 4, {"window": 4}, scale_position_logits=True),
    _cope("cope_from_values", 4, gate="value"),
    _cope("cope_gate_bias", 5, num_heads=HEADS, gate_bias=-0.4),
]

FORGETTING_CASES = [
    _forgetting("fox"),
    _forgetting("fox_masked", {"key_mask": LEFT_PADDED, "scale": 0.7}, kind="fox"),
    _forgetting("cable", kind="cable"),
    _forgetting("cable_packed", {"segment_ids": SEGMENTS, "window": 3}, kind="cable"),
]

CASES = (
    SHAW_CASES
    + TRANSFORMER_XL_CASES
    + DISENTANGLED_CASES
    + REROPE_CASES
    + SELF_EXTEND_CASES
    + COPE_CASES
    + FORGETTING_CASES
)
