"""Walks transformers' mappings of models: shrunken, with random weights, posenc's attention against eager attention.

    python tools/hf_models.py [--mapping causal-lm ...] [--only PATTERN] [--write docs/models.md]

A class is `exact` (logits within 1e-5 and gradients within 1e-3 of eager's, relative), `own code` (posenc is not
called), `eager` (it fell back; the reason follows), `differs`, or `not tried`: it could not be shrunk or run here, with
eager attention either.
"""

import argparse
import contextlib
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

MAPPINGS = {
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
VOCABULARY, WIDTH, HEADS = 99, 64, 4
SMALL = {
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp"), 32),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("num_decoder_layers",), 2),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "num_heads"), HEADS),
    **dict.fromkeys(("n_head", "n_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention"), 12),
    **dict.fromkeys(("q_lora_rank",), 24),
    **dict.fromkeys(("kv_lora_rank",), 16),
    **dict.fromkeys(("qk_rope_head_dim",), 8),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group"), 1),
    **dict.fromkeys(("index_n_heads",), 4),
    **dict.fromkeys(("index_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(("index_topk",), 8),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 256),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
}


def shrink(config: Any) -> None:
    """Makes a configuration small, and its parts."""
    if getattr(config, "layer_types", None):
        kinds = list(dict.fromkeys(config.layer_types))[:2]
        with contextlib.suppress(Exception):  # a property of the class
            config.layer_types = (kinds * 2)[:2]
    latent = hasattr(config, "kv_lora_rank")
    for name, value in SMALL.items():
        with contextlib.suppress(Exception):  # a property of the class, or a value for each layer
            present = getattr(config, name)
            if name == "num_key_value_heads" and (latent or present == config.num_attention_heads):
                value = HEADS
            if name == "head_dim" and latent:
                value = SMALL["qk_rope_head_dim"]
            if type(present) is int or (present is None and name in ("head_dim", "num_key_value_heads")):
                setattr(config, name, value)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout", "layerdrop"):
        if isinstance(getattr(config, name, None), float):
            setattr(config, name, 0.0)
    for part in getattr(config, "sub_configs", {}):
        if getattr(config, part, None) is not None:
            shrink(getattr(config, part))


def inputs_of(kind: str) -> dict[str, Any]:
    """A batch of two, the second padded on the right."""
    if kind == "image":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[1, 24:] = 0
    given = {"input_ids": torch.randint(4, VOCABULARY, (2, 30)) * mask, "attention_mask": mask}
    if kind == "causal-lm":
        given["use_cache"] = False
    if kind == "seq2seq":
        given["decoder_input_ids"] = torch.randint(4, VOCABULARY, (2, 14))
    return given


def outcome(kind: str, config_class: Any, model_class: Any) -> tuple[str, str]:
    """What a class is, and the numbers or the reason."""
    import posenc.hf

    torch.manual_seed(0)
    try:
        config = config_class()
        shrink(config)
        if kind == "causal-lm" and not hasattr(config, "vocab_size"):
            config = config.get_text_config(decoder=True)
        model = model_class._from_config(config, attn_implementation="eager").float().eval()
        if sum(parameter.numel() for parameter in model.parameters()) > 3e7:
            return "not tried", "not small enough"
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
        given = inputs_of(kind)
        model(**given)
    except Exception as error:
        return "not tried", f"{type(error).__name__}: {error}"
    try:
        found = posenc.hf.check(model, given)
    except ValueError as error:
        return ("own code", "") if "does not let its attention be set" in str(error) else ("differs", str(error))
    except Exception as error:
        return "differs", f"{type(error).__name__}: {error}"
    numbers = f"{found.output:.0e}, {found.gradients:.0e}"
    layers = [layer for layer in posenc.hf.report(model) if layer.ran != "-"]
    if not (found.output < 1e-5 and found.gradients < 1e-3):
        return "differs", numbers
    if not layers:
        return "own code", numbers
    fallen = sorted({layer.how for layer in layers if layer.ran == "eager"})
    return ("eager", "; ".join(fallen)) if fallen else ("exact", numbers)


def main() -> None:
    import transformers
    from transformers.models.auto import modeling_auto

    import posenc.hf

    posenc.hf.register()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mapping", nargs="+", choices=list(MAPPINGS), default=list(MAPPINGS))
    parser.add_argument("--only", default="", help="a regular expression of class names")
    parser.add_argument("--write", type=Path, help="a Markdown file for the table")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for kind in options.mapping:
        mapping = getattr(modeling_auto, MAPPINGS[kind])
        for config_class, model_class in sorted(mapping.items(), key=lambda item: item[0].__name__):
            model_class = model_class[0] if isinstance(model_class, (list, tuple)) else model_class
            if re.search(options.only, model_class.__name__):
                what, how = outcome(kind, config_class, model_class)
                how = " ".join(how.split())[:110]
                rows.append((model_class.__name__, what, how))
                print(f"{model_class.__name__:44} {what:10} {how}", flush=True)
    counts = {what: sum(row[1] == what for row in rows) for what in dict.fromkeys(row[1] for row in rows)}
    print(counts)
    if options.write:
        options.write.write_text(table(rows, counts, transformers.__version__))
    sys.exit(1 if counts.get("differs") else 0)


def table(rows: list[tuple[str, str, str]], counts: dict[str, int], version: str) -> str:
    """The page of models."""
    said = ", ".join(f"{number} {what}" for what, number in counts.items())
    lines = [
        "# Models of transformers",
        "",
        f"Written by `python tools/hf_models.py --write docs/models.md`, with transformers {version}: {said}.",
        "",
        "Numbers are the largest relative differences of logits and of gradients from eager attention.",
        "",
        "| class | outcome | numbers, or why |",
        "|---|---|---|",
        *(f"| `{name}` | {what} | {how.replace('|', '/')} |" for name, what, how in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
