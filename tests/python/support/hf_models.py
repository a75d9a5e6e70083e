"""Shrunken models of transformers with random weights, a family each, and inputs for them."""

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY, TOKENS = 97, 40


def cache_keyword() -> str:
    """What transformers' functions call a cache: `past_key_values` up to 5.20."""
    from transformers import masking_utils

    parameters = inspect.signature(masking_utils.create_causal_mask).parameters
    return "cache" if "cache" in parameters else "past_key_values"


@dataclass(frozen=True)
class Family:
    """A model: its class, its configuration, what its inputs are, and what the report must say of its layers."""

    model: str
    config: str
    options: dict[str, Any]
    kind: str = "decoder"
    says: tuple[str, ...] = ()
    packs: bool = True
    static: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


DECODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
ENCODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    pad_token_id=0,
)
T5 = dict(
    vocab_size=VOCABULARY,
    d_model=64,
    d_kv=16,
    d_ff=96,
    num_layers=2,
    num_heads=4,
    dropout_rate=0,
    pad_token_id=0,
    eos_token_id=None,
    decoder_start_token_id=1,
)
PICTURE = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
)
SLIDING = dict(head_dim=16, sliding_window=12, layer_types=["sliding_attention", "full_attention"])
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
BART = dict(
    vocab_size=VOCABULARY,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=96,
    decoder_ffn_dim=96,
    dropout=0,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    decoder_start_token_id=1,
    forced_eos_token_id=None,
)


def _text(name: str, config: str, **options: Any) -> Family:
    says = options.pop("says", ("is_causal",))
    marks = {key: options.pop(key) for key in ("packs", "static") if key in options}
    return Family(f"{name}ForCausalLM", config, DECODER | options, says=says, **marks)


FAMILIES = {
    "llama": _text("Llama", "LlamaConfig"),
    "qwen2": _text("Qwen2", "Qwen2Config"),
    "qwen3": _text("Qwen3", "Qwen3Config", head_dim=16),
    "mistral-window": _text("Mistral", "MistralConfig", sliding_window=12, says=("window",)),
    "gemma2-softcap": _text("Gemma2", "Gemma2Config", head_dim=16, sliding_window=12, says=("softcap", "window")),
    "gemma3": _text("Gemma3", "Gemma3TextConfig", **SLIDING, says=("window", "is_causal")),
    "gpt_oss-sinks": _text(
        "GptOss", "GptOssConfig", **SLIDING, num_local_experts=4, num_experts_per_tok=2, says=("sinks", "window")
    ),
    "granitemoe_swa-sinks": _text("GraniteMoeSWA", "GraniteMoeSWAConfig", says=("sinks",)),
    "llama4-chunks": _text(
        "Llama4",
        "Llama4TextConfig",
        head_dim=16,
        attention_chunk_size=12,
        num_local_experts=2,
        num_experts_per_tok=1,
        intermediate_size_mlp=96,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
        says=("segment_ids",),
    ),
    "deepseek_v3-latent": _text(
        "DeepseekV3",
        "DeepseekV3Config",
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        dict(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=256,
            attn_pdrop=0,
            embd_pdrop=0,
            resid_pdrop=0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=None,
        ),
        says=("is_causal",),
    ),
    "gpt_neox": _text("GPTNeoX", "GPTNeoXConfig", rotary_pct=0.25),
    "phi3": _text("Phi3", "Phi3Config"),
    "cohere2-window": _text("Cohere2", "Cohere2Config", **{k: SLIDING[k] for k in ("sliding_window", "layer_types")}),
    "bert": Family(
        "BertForMaskedLM",
        "BertConfig",
        ENCODER | dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0),
        "encoder",
        says=("key_mask",),
    ),
    "modernbert-window": Family(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        ENCODER
        | dict(local_attention=16, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2, bos_token_id=1)
        | dict(eos_token_id=2),
        "encoder",
        says=("window",),
    ),
    "eurobert": Family(
        "EuroBertForMaskedLM",
        "EuroBertConfig",
        ENCODER | dict(num_key_value_heads=2, bos_token_id=1, eos_token_id=2, mask_token_id=3),
        "encoder",
        says=("key_mask",),
    ),
    "t5": Family("T5ForConditionalGeneration", "T5Config", T5, "pair", says=("bias",)),
    "umt5": Family("UMT5ForConditionalGeneration", "UMT5Config", T5, "pair", says=("bias",)),
    "t5gemma-softcap": Family(
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        dict(
            encoder=DECODER | dict(head_dim=16, sliding_window=12),
            decoder=DECODER | dict(head_dim=16, sliding_window=12),
            vocab_size=VOCABULARY,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=None,
            decoder_start_token_id=1,
        ),
        "pair",
        says=("softcap", "window"),
    ),
    "bart": Family("BartForConditionalGeneration", "BartConfig", BART, "pair", says=("key_mask", "is_causal")),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        BART
        | dict(num_mel_bins=8, max_source_positions=20, max_target_positions=64, begin_suppress_tokens=None)
        | dict(suppress_tokens=None),
        "speech",
        says=("is_causal",),
    ),
    "vit": Family(
        "ViTModel", "ViTConfig", PICTURE | dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0), "picture"
    ),
    "siglip": Family("SiglipVisionModel", "SiglipVisionConfig", PICTURE, "picture"),
    "dinov3": Family("DINOv3ViTModel", "DINOv3ViTConfig", PICTURE | dict(drop_path_rate=0), "picture"),
}


def build(name: str, implementation: str = "posenc") -> torch.nn.Module:
    """A model of a family, in evaluation mode; weights are large enough for attention to matter."""
    import transformers

    family = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, family.config)(**copy.deepcopy(family.options))
    model = getattr(transformers, family.model)._from_config(config, attn_implementation=implementation).float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
            elif "sink" in parameter_name:
                parameter.copy_(torch.randn_like(parameter))
    return model.eval()


def tokens(batch: int = 2, length: int = TOKENS, *, left: int = 0, right: int = 0) -> dict[str, torch.Tensor]:
    """Random tokens; the last sequence is padded at its start or end."""
    ids = torch.randint(4, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, :left] = 0
    mask[-1, length - right :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def packed(*lengths: int) -> dict[str, torch.Tensor]:
    """Sequences packed into one, as positions say."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": tokens(1, sum(lengths))["input_ids"], "position_ids": positions}


def inputs(name: str) -> dict[str, dict[str, Any]]:
    """The calls of a family's forward that are compared."""
    family = FAMILIES[name]
    generator = torch.Generator().manual_seed(2)
    if family.kind == "decoder":
        calls = {"plain": tokens(), "left padding": tokens(left=7), "right padding": tokens(right=9)}
        if family.packs:
            calls["packed"] = packed(23, 17)
        return {call: given | {"use_cache": False} for call, given in calls.items()}
    if family.kind == "encoder":
        return {"plain": tokens(), "padded": tokens(right=11)}
    if family.kind == "pair":
        targets = tokens(2, 25)["input_ids"]
        return {"padded": tokens(right=11) | {"decoder_input_ids": targets, "use_cache": False}}
    if family.kind == "speech":
        sound = torch.randn(2, 8, 40, generator=generator)
        return {"plain": {"input_features": sound, "decoder_input_ids": tokens(2, 25)["input_ids"], "use_cache": False}}
    return {"plain": {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}}


def prompt(name: str) -> dict[str, torch.Tensor]:
    """What a family continues: two prompts, one of them padded."""
    if FAMILIES[name].kind == "decoder":
        return tokens(2, 20, left=5)
    if FAMILIES[name].kind == "pair":
        return tokens(right=11)
    return {"input_features": inputs(name)["plain"]["input_features"]}
