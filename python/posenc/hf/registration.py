"""posenc's attention in the registries of transformers."""

__all__ = ["register"]


def register() -> None:
    """Makes ``attn_implementation="posenc"`` known to transformers.

    ``import posenc.hf`` does it where transformers is installed.

    Raises:
        ImportError: transformers is not installed, or has no registry of mask functions.

    Example:
        >>> posenc.hf.register()
        >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="posenc")
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface

        from posenc.hf.attention import posenc_attention
        from posenc.hf.masks import posenc_mask
    except ImportError as error:
        raise ImportError(
            'posenc.hf: attn_implementation="posenc" needs transformers 5.20 or later: '
            "pip install 'transformers>=5.20'"
        ) from error
    AttentionInterface.register("posenc", posenc_attention)
    AttentionMaskInterface.register("posenc", posenc_mask)
