"""ALiBi, T5RelativeBias, Kerple, Sandwich and FIRE under test, through attend."""

import torch

import bias_reference
from cases_contextual import LEFT_PADDED, RESTARTING, SEGMENTS
from encoding_case import LENGTH, Case

HEADS, GROUPS, WIDTH = 6, 2, 8


def _inputs(dtype):
    """Queries, keys and values, with fewer key heads."""
    return tuple(
        torch.randn(2, heads, LENGTH, WIDTH, dtype=torch.float64).to(dtype) for heads in (HEADS, GROUPS, GROUPS)
    )


def _case(name, python, bias, options, call, parameters=(), buffers=(), scale=None) -> Case:
    """bias: (parameters by name) -> a bias of bias_reference; scale: the module's own."""
    call = call or {}

    def attend(module, q, k, v):
        on_device = {key: x.to(q.device) if isinstance(x, torch.Tensor) else x for key, x in call.items()}
        return module.attend(q, k, v, **on_device)

    return Case(
        name=name,
        python=python,
        arguments=(HEADS,),
        options=options,
        inputs=_inputs,
        reference=lambda p, q, k, v: (bias_reference.attend(q, k, v, bias(p), **{"scale": scale, **call}),),
        parameters=parameters,
        buffers=buffers,
        call=attend,
        is_attend=True,
    )


def _alibi(name, call=None, **options) -> Case:
    fixed = torch.tensor(options.get("slopes", bias_reference.alibi_slopes(HEADS)), dtype=torch.float64)
    learnable = options.get("learnable", False)
    return _case(
        name,
        "ALiBi",
        lambda p: bias_reference.alibi(p.get("slopes", fixed)),
        options,
        call,
        parameters=("slopes",) if learnable else (),
        buffers=() if learnable else ("slopes",),
    )


def _t5(name, call=None, scale=1.0, **options) -> Case:
    rule = {"max_distance": 128, "bidirectional": False}
    rule |= {key: value for key, value in options.items() if key in rule}
    if scale != 1.0:
        options["scale"] = scale
    return _case(
        name,
        "T5RelativeBias",
        lambda p: bias_reference.t5(p["weight"], **rule),
        options,
        call,
        parameters=("weight",),
        scale=scale,
    )


def _kerple(name, call=None, **options) -> Case:
    return _case(
        name,
        "Kerple",
        lambda p: bias_reference.kerple(p["r1"], p["r2"], **options),
        options,
        call,
        parameters=("r1", "r2"),
    )


def _sandwich(name, call=None, **options) -> Case:
    return _case(name, "Sandwich", lambda p: bias_reference.sandwich(HEADS, **options), options, call)


def _fire(name, call=None, **options) -> Case:
    names = ("c", "threshold", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias")
    return _case(
        name,
        "FIRE",
        lambda p: bias_reference.fire(p, eps=options.get("eps", 1e-6)),
        options,
        call,
        parameters=names,
    )


CAUSAL = {"is_causal": True}
PADDED = {"is_causal": True, "key_mask": LEFT_PADDED}

ALIBI_CASES = [
    _alibi("alibi", CAUSAL),
    _alibi("alibi_both_directions", {"key_mask": LEFT_PADDED, "scale": 0.3}),
    _alibi("alibi_given_slopes", CAUSAL, slopes=(0.3, 0.0, -0.1, 1.0, 2.0, 0.7)),
    _alibi("alibi_learnable", {**CAUSAL, **RESTARTING}, learnable=True),
]

T5_CASES = [
    _t5("t5_decoder", CAUSAL),
    _t5("t5_encoder", {"key_mask": LEFT_PADDED}, bidirectional=True),
    _t5("t5_few_buckets", {**CAUSAL, **RESTARTING}, num_buckets=4, max_distance=5),
    _t5("t5_scaled", {"window": 4}, scale=None, num_buckets=8, max_distance=6, bidirectional=True),
]

# Positions that are given make these read data, which graphs and meta tensors do not have: see test_additive.py.
KERPLE_CASES = [
    _kerple("kerple_log", CAUSAL),
    _kerple("kerple_log_segments", {**PADDED, "segment_ids": SEGMENTS}),
    _kerple("kerple_power", {"scale": 0.5}, kind="power"),
]

SANDWICH_CASES = [
    _sandwich("sandwich", CAUSAL),
    _sandwich("sandwich_narrow", PADDED, dim=6),
]

FIRE_CASES = [
    _fire("fire", CAUSAL, threshold=3.7),
    _fire("fire_both_directions", {"key_mask": LEFT_PADDED}, hidden_dim=5, c=0.5),
    _fire("fire_restarting", {**CAUSAL, **RESTARTING}, hidden_dim=8, threshold=3.0),
    _fire("fire_window", {**PADDED, "segment_ids": SEGMENTS, "window": 3}, hidden_dim=4, threshold=2.5, eps=0.01),
]

CASES = ALIBI_CASES + T5_CASES + KERPLE_CASES + SANDWICH_CASES + FIRE_CASES
