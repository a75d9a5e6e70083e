"""One entry for each scaling: the class, arguments, and the reference function that takes the same arguments."""

import scaling_reference as reference
from posenc import scaling

LONG = [1.0 + 0.5 * k for k in range(32)]
SHORT = [1.0 + 0.01 * k for k in range(32)]

# (class, keyword arguments, reference); all fit dim 64.
CASES = [
    (scaling.Linear, {"factor": 4.0}, reference.linear),
    (scaling.NTK, {"factor": 8.0}, reference.ntk),
    (scaling.DynamicNTK, {"factor": 2.0, "original_max_positions": 2048}, reference.dynamic_ntk),
    (scaling.NTKByParts, {"factor": 16.0, "original_max_positions": 4096}, reference.ntk_by_parts),
    (
        scaling.NTKByParts,
        {"factor": 4.0, "original_max_positions": 4096, "beta_fast": 20.0, "beta_slow": 2.0},
        reference.ntk_by_parts,
    ),
    (scaling.Yarn, {"factor": 16.0, "original_max_positions": 4096}, reference.yarn),
    (scaling.Yarn, {"factor": 32.0, "original_max_positions": 4096, "truncate": False}, reference.yarn),
    (scaling.Yarn, {"factor": 4.0, "original_max_positions": 8192, "ramp": "turns"}, reference.yarn),
    (
        scaling.Yarn,
        {
            "factor": 40.0,
            "original_max_positions": 4096,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
            "mscale": 0.5,
            "mscale_all_dim": 0.25,
        },
        reference.yarn,
    ),
    (
        scaling.LongRoPE,
        {"short_factor": SHORT, "long_factor": LONG, "original_max_positions": 4096, "factor": 32.0},
        reference.long_rope,
    ),
    (scaling.Llama3, {"factor": 8.0, "original_max_positions": 8192}, reference.llama3),
    (
        scaling.Llama3,
        {"factor": 32.0, "original_max_positions": 8192, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
        reference.llama3,
    ),
    (scaling.Proportional, {"fraction": 0.25, "factor": 2.0}, reference.proportional),
    (scaling.PRoPE, {"fraction": 0.75}, reference.p_rope),
    (scaling.TruncatedBasis, {"length": 2048}, reference.truncated_basis),
    (scaling.PowerBasis, {"power": 0.1}, reference.power_basis),
]

IDS = [f"{cls.__name__}-{i}" for i, (cls, _, _) in enumerate(CASES)]
