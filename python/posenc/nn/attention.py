from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import dropout

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.attention_checks import check_encodings, check_norms, check_positions, misplaced
from posenc.nn.base import Encoding, check_dense, made, made_inside
from posenc.nn.kv_cache import KVCache
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.rotary import RotaryEncoding
from posenc.nn.score import ScoreEncoding
from posenc.ops.keywords import AttentionOptions, Window, given, keyword, keywords_of

_OPTIONS = {"window": keyword("window", None, Window)}
_attention = torch.ops.posenc.attention.default
_OP_OPTIONS = keywords_of(_attention, AttentionOptions)


class Attention(Encoding):
    """Multi-head attention (arXiv 1706.03762) with grouped heads (arXiv 2305.13245) and any positional encodings.

    Absolute encodings are added to ``x``. Queries, keys and values are projections of ``x``. Rotary encodings rotate
    queries and keys. The score encoding attends, or plain ``scale * q @ k`` where there is none. ``o_proj`` maps the
    result back. Without any encoding (NoPE) only the causal mask tells the order of tokens.

    Positions say where tokens are. Absolute and rotary encodings use them, so do distances in scores, and so does the
    causal mask: query i sees key j where ``positions[j] <= positions[i]``. Encodings that count for themselves (CoPE,
    ForgettingBias) are causal by index instead. So is a layer whose positions have several axes: those go to rotary and
    absolute encodings over several axes alone, and other absolute ones count by index. Positions that restart within a
    row need ``segment_ids``.

    What a score encoding makes of each token of ``x``, :meth:`ScoreEncoding.token_state`, comes after the absolute
    encodings; a cache stores it.

    Args:
        embed_dim: Width of ``x``.
        num_heads: H, heads of queries.
        num_kv_heads: G, heads of keys and values, a divisor of ``num_heads``; None: ``num_heads``.
        head_dim: D; None: ``embed_dim / num_heads``.
        encodings: Modules of posenc.nn of any family. Absolute and rotary ones act in their order here; the terms of
            several score encodings add up, before the softmax. One that rotates queries and keys itself (ReRoPE,
            SelfExtend) excludes rotary ones.
        dropout: Probability with which an attention weight is zeroed in training.
        output_dropout: Probability with which an element of the output is zeroed in training.
        bias: Whether the projections to queries, keys, values and gate keys have one.
        output_bias: Whether the output projection has one; None: as ``bias``.
        is_causal: Queries see no later keys; None: True, but for ``cross``.
        window: Positions that a query sees, its own included; or (left, right), how far it sees to both sides, None in
            a place for any distance. None: all.
        q_norm, k_norm: Modules that norm queries and keys before rotary encodings: (B, heads, T, D) -> the same, for
            each head (Qwen3, Gemma 3); or (B, T, heads * D), where ``weight`` has heads * D elements (OLMo 2).
        scale: Multiplies q . k; None: that of the score encoding, else ``1 / sqrt(D)``.
        sinks: Whether a parameter (H) of logits without a value joins the softmax (gpt-oss), initially 0.
        softcap, softcap_on: Scores become ``softcap * tanh(score / softcap)``; see :mod:`posenc.ops`.
        value_dim: Dv, the width of a head's values; None: D.
        cross: Keys and values come from ``context``, another sequence (Whisper, T5): not causal, without a window,
            positions and encodings.

    Attributes:
        q_proj, k_proj, v_proj, o_proj: The projections, each a ``torch.nn.Linear``.
        gate_proj: Projection to the gate keys, where the score encoding needs them (CoPE with ``gate="key"``), else
            None. Rotary encodings rotate gate keys as they do keys.
        encodings: The encodings, a ``torch.nn.ModuleList``.
        q_norm, k_norm: The norms, or None.
        sinks: The parameter (H), or None.

    Shape:
        x (B, T, embed_dim) -> the same

    Raises:
        ValueError: Options or encodings do not fit together, or an encoding was made for another width or number of
            heads.
        TypeError: ``encodings`` is no list of modules, or one of them is neither absolute, rotary nor a score encoding;
            ``q_norm`` or ``k_norm`` is no module.

    Example:
        >>> attention = posenc.nn.Attention(
        ...     512, 8, num_kv_heads=2, encodings=[posenc.nn.Rotary(64), posenc.nn.CoPE(64, 129)]
        ... )
        >>> y = attention(torch.randn(2, 16, 512))
    """

    q_proj: torch.nn.Linear
    k_proj: torch.nn.Linear
    v_proj: torch.nn.Linear
    o_proj: torch.nn.Linear
    gate_proj: torch.nn.Linear | None

    @plain_numbers
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        encodings: Iterable[Encoding] = (),
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        bias: bool = False,
        output_bias: bool | None = None,
        is_causal: bool | None = None,
        window: Window = None,
        q_norm: torch.nn.Module | None = None,
        k_norm: torch.nn.Module | None = None,
        scale: float | None = None,
        sinks: bool = False,
        softcap: float | None = None,
        softcap_on: Literal["content", "sum"] = "content",
        value_dim: int | None = None,
        cross: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(encodings, Iterable):
            raise TypeError(
                f"Attention: expected encodings to be a list of modules, but got {type(encodings).__name__}: pass one "
                "module as encodings=[module]"
            )
        encodings = list(encodings)
        _C.nn.check_attention(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dropout=dropout,
            output_dropout=output_dropout,
            is_causal=is_causal,
            **given("Attention", _OPTIONS, {"window": window}),
            scale=scale,
            softcap=softcap,
            softcap_on=softcap_on,
            value_dim=value_dim,
            cross=cross,
        )
        is_causal = not cross if is_causal is None else is_causal
        scores = check_encodings(encodings, is_causal, cross, scale)
        check_norms(q_norm=q_norm, k_norm=k_norm)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout = dropout
        self.output_dropout = output_dropout
        self.bias = bias
        self.output_bias = bias if output_bias is None else output_bias
        self.is_causal = is_causal
        self.window = window
        self.scale = scale
        self.softcap = softcap
        self.softcap_on = softcap_on
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.cross = cross
        for encoding in encodings:
            self._check_sizes(encoding)
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = made(torch.nn.Linear(embed_dim, width, bias=bias))
        self.k_proj = made(torch.nn.Linear(embed_dim, kv_width, bias=bias))
        self.v_proj = made(torch.nn.Linear(embed_dim, self.num_kv_heads * self.value_dim, bias=bias))
        self.o_proj = made(torch.nn.Linear(self.num_heads * self.value_dim, embed_dim, bias=self.output_bias))
        self.q_norm, self.k_norm = q_norm, k_norm
        self.sinks = torch.nn.Parameter(torch.zeros(num_heads)) if sinks else None
        needs_gate_key = any(score.needs_gate_key for score in scores)
        self.gate_proj = made(torch.nn.Linear(embed_dim, kv_width, bias=bias)) if needs_gate_key else None
        self.encodings = torch.nn.ModuleList(encodings)
        self._fix(
            *("embed_dim", "num_heads", "num_kv_heads", "head_dim", "value_dim"),
            *("bias", "output_bias", "is_causal", "cross"),
        )

    def reset_parameters(self) -> None:
        """Draws the projections anew and zeroes the sinks; encodings, norms, and what has replaced a projection, are
        left as they are."""
        for linear in made_inside(self):
            linear.reset_parameters()
        self._reset_own()

    def _reset_own(self) -> None:
        """The sinks alone: other parameters are those of submodules."""
        if self.sinks is not None:
            torch.nn.init.zeros_(self.sinks)

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"dropout={self.dropout}, output_dropout={self.output_dropout}, bias={self.bias}, "
            f"output_bias={self.output_bias}, is_causal={self.is_causal}, window={self.window}, scale={self.scale}, "
            f"sinks={self.sinks is not None}, softcap={self.softcap}, softcap_on={self.softcap_on!r}, "
            f"value_dim={self.value_dim}, cross={self.cross}"
        )

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        attn_mask: Tensor | None = None,
        block_ids: Tensor | None = None,
        bias: Tensor | None = None,
        context: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attention of the tokens of ``x`` to each other, and to those in ``cache``.

        Args:
            x: (B, T, embed_dim); with a cache, the new tokens.
            positions: (T) or (B, T), or for encodings over several axes (A, B, T). None: ``arange(T)``; after
                cached tokens ``cache.length`` and on, or where those came with positions, what follows the largest
                of each row.
            key_mask: (B, Tk) bool, True where a key may be attended; with a cache Tk counts cached and new keys, those
                that have left its window too.
            segment_ids: (B, Tk) integer: packed sequences, each of which sees itself alone.
            attn_mask: Bool, broadcastable to (B, H, T, Tk), True where a query may attend to a key.
            block_ids: (B, Tk) integer: tokens of one block see each other, also later ones; below 0: no block. With a
                cache, those of a block come in one call.
            bias: Broadcastable to (B, H, T, Tk), added to the scores.
            context: (B, Tk, embed_dim), in a layer with ``cross`` alone: keys and values are made of it. With a cache
                the first call gives it, and later ones find its keys and values there.
            cache: Where keys and values of earlier tokens are, and those of ``x`` go. One with a window drops what no
                query of this layer's window sees, where positions rise from token to token.

        Raises:
            ValueError: A shape does not fit; positions over several axes meet a score encoding; positions are left out
                after cached ones that are floating or have several axes; the layer's window is wider than that of the
                cache; or a rotary scaling that depends on the
                length of each call (DynamicNTK, LongRoPE without ``seq_len``) meets a cache. The cache is left as it
                was.
            TypeError: A dtype does not fit.
        """
        self._check_call(x, positions, cache)
        masks = {"key_mask": key_mask, "segment_ids": segment_ids, "attn_mask": attn_mask, "block_ids": block_ids}
        masks["bias"] = bias
        if self.cross:
            if positions is not None or block_ids is not None:
                raise ValueError("Attention: expected neither positions nor block_ids in a layer with cross=True")
            return self._attend_to_context(x, context, cache, masks)
        if context is not None:
            raise ValueError("Attention: expected no context in a layer that was made without cross=True")
        start = 0 if cache is None else cache.length
        if cache is not None and positions is None:
            positions = cache.next_positions(x.shape[1])
        # Where tokens are on the one axis of distances and causality.
        places = None if positions is not None and positions.dim() == 3 else positions
        for encoding in self._members(AbsoluteEncoding):
            own = places if encoding.position_axes is None else positions
            x = encoding(x, own, offset=start if own is None else 0)

        q = self._normed(self.q_norm, self.q_proj(x))
        k = self._normed(self.k_norm, self.k_proj(x))
        v = self._heads(self.v_proj(x), self.value_dim)
        scores = self._scores()
        state: dict[str, Tensor] = {name: made for score in scores for name, made in score.token_state(x).items()}
        gate_key = None if self.gate_proj is None else self._heads(self.gate_proj(x), self.head_dim)
        offset = start if positions is None else 0
        for encoding in self._members(RotaryEncoding):
            if gate_key is not None:
                _, gate_key = encoding(gate_key, gate_key, positions, offset=offset)
            q, k = encoding(q, k, positions, offset=offset)
        if gate_key is not None:
            state = {**state, "gate_key": gate_key}

        if cache is None:
            return self._output(self._attend(q, k, v, state, places, places, masks))
        before = cache._snapshot()
        k, v = cache.append(k, v, positions=positions, **state)
        try:
            known = cache.positions
            if cache.window is not None:  # also while nothing is dropped, so that compiled graphs serve both
                masks = {name: _without_first(mask, cache.dropped) for name, mask in masks.items()}
                if known is None and scores:  # some of which ask where tokens are, not just how far apart
                    known = torch.arange(cache.dropped, cache.length, device=k.device)
            new = None if known is None else known[..., known.shape[-1] - q.shape[2] :]
            return self._output(self._attend(q, k, v, cache.token_state, new, known, masks))
        except Exception:
            cache._restore(before)
            raise

    def _attend_to_context(
        self, x: Tensor, context: Tensor | None, cache: KVCache | None, masks: dict[str, Tensor | None]
    ) -> Tensor:
        """Attention of ``x`` to the tokens of another sequence, which ``cache`` may hold already."""
        q = self._normed(self.q_norm, self.q_proj(x))
        if cache is not None and cache.length > 0:
            if context is not None:
                raise ValueError(
                    "Attention: expected no context, whose keys and values the cache holds: reset() forgets them"
                )
            return self._output(self._attend(q, cache.keys, cache.values, {}, None, None, masks))
        if context is None:
            raise ValueError("Attention: expected context (batch, length, embed_dim) with cross=True, but got None")
        check_dense("Attention", "context", context)
        if context.dim() != 3 or context.shape[0] != x.shape[0] or context.shape[2] != self.embed_dim:
            raise ValueError(
                f"Attention: expected context of shape ({x.shape[0]}, length, {self.embed_dim}), but got "
                f"{list(context.shape)}"
            )
        k = self._normed(self.k_norm, self.k_proj(context))
        v = self._heads(self.v_proj(context), self.value_dim)
        if cache is None:
            return self._output(self._attend(q, k, v, {}, None, None, masks))
        before = cache._snapshot()
        k, v = cache.append(k, v)
        try:
            return self._output(self._attend(q, k, v, {}, None, None, masks))
        except Exception:
            cache._restore(before)
            raise

    def _output(self, attended: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, embed_dim)."""
        return dropout(self.o_proj(attended.transpose(1, 2).flatten(2)), self.output_dropout, self.training)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: dict[str, Tensor],
        q_positions: Tensor | None,
        k_positions: Tensor | None,
        masks: dict[str, Tensor | None],
    ) -> Tensor:
        call: dict[str, Any] = {"window": self.window, "dropout_p": self.dropout if self.training else 0.0, **masks}
        call |= {"scale": self.scale, "sinks": self.sinks, "softcap": self.softcap}
        if self.softcap is not None:
            call["softcap_on"] = self.softcap_on
        call = {name: value for name, value in call.items() if value is not None}
        scores = self._scores()
        if all(score.takes_positions for score in scores):
            call |= {"q_positions": q_positions, "k_positions": k_positions}
        if not any(score.always_causal for score in scores):
            call["is_causal"] = self.is_causal
        if len(scores) == 1:
            return scores[0].attend(q, k, v, **state, **call)
        scale = next((score.scale for score in scores if score.scale is not None), None)
        op = OpCall(q, k, v, {"scale": scale, **given("Attention", _OP_OPTIONS, call), **state})
        for score in scores:
            score.add_terms(op)
        return _attention(op.query, op.key, v, **op.keywords)[0]

    def _scores(self) -> list[Any]:
        """The score encodings."""
        return self._members(ScoreEncoding)

    def _members(self, family: type) -> list[Any]:
        return [encoding for encoding in self.encodings if isinstance(encoding, family)]

    def _heads(self, x: Tensor, width: int) -> Tensor:
        """(B, T, heads * width) -> (B, heads, T, width), with as many heads as there are: a shard has fewer."""
        return x.unflatten(-1, (-1, width)).transpose(1, 2)

    def _normed(self, norm: torch.nn.Module | None, x: Tensor) -> Tensor:
        """(B, T, heads * D) -> (B, heads, T, D), normed over all heads where the norm is as wide as they are."""
        if norm is None:
            return self._heads(x, self.head_dim)
        weight = getattr(norm, "weight", None)
        if isinstance(weight, Tensor) and weight.shape != (self.head_dim,) and weight.shape == x.shape[-1:]:
            return self._heads(norm(x), self.head_dim)
        return norm(self._heads(x, self.head_dim))

    def _check_sizes(self, encoding: Encoding) -> None:
        """Raises where an encoding was made for embeddings or heads of another size."""
        sizes = {"embed_dim": self.embed_dim, "head_dim": self.head_dim, "num_heads": self.num_heads}
        for name, expected in ({"dim": self.embed_dim} if isinstance(encoding, AbsoluteEncoding) else sizes).items():
            actual = getattr(encoding, name, None)
            if actual not in (None, expected):
                raise ValueError(
                    f"Attention: expected {type(encoding).__name__} to have {name} {expected}, as the block's "
                    f"{'embed_dim' if name == 'dim' else name} is {expected}, but got {actual}"
                )

    # Checks that the C++ layer has too. Compiled graphs need them in Python: a pybind call would break the graph.

    def _check_call(self, x: Tensor, positions: Tensor | None, cache: KVCache | None) -> None:
        check_dense("Attention", "x", x)
        if x.dim() != 3 or x.shape[2] != self.embed_dim:
            raise ValueError(
                f"Attention: expected x of shape (batch, length, embed_dim) with embed_dim {self.embed_dim}, but got "
                f"{list(x.shape)}"
            )
        rotary = self._members(RotaryEncoding)
        axial = [own.position_axes for own in self._members(AbsoluteEncoding) if own.position_axes is not None]
        if positions is not None:
            check_positions(positions, x, rotary, self._scores(), axial)
        elif axial:
            raise misplaced(axial[0], None)
        reach = self.window
        if isinstance(reach, tuple):
            reach = None if reach[0] is None else reach[0] + 1
        if cache is not None and cache.window is not None and (reach is None or reach > cache.window):
            raise ValueError(
                f"Attention: expected a window of at most {cache.window}, that of the cache, which drops what is "
                f"further back, but got {self.window}"
            )
        if cache is not None and any(encoding.depends_on_call_length for encoding in rotary):
            raise ValueError(
                "Attention: a rotary scaling that depends on the length of each call turns cached keys and later "
                "queries differently: give the rotary encoding seq_len, one length for all calls"
            )


def _without_first(mask: Tensor | None, keys: int) -> Tensor | None:
    """A mask of the keys that follow the first ones; its last axis counts keys, or is broadcast."""
    return mask if mask is None or mask.shape[-1] == 1 else mask[..., keys:]
