import torch
from torch import Tensor

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.base import made, made_inside
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers

_attention_logits = torch.ops.posenc._attention_logits.default
_fire_terms = torch.ops.posenc._fire_terms.default


class FIRE(AdditiveEncoding):
    """FIRE (arXiv 2310.04418): a learned function of the distance relative to the query's position.

    Adds, for query position i, distance ``n = |i - j|`` and ``psi(x) = ln(|c * x| + 1)``,
    ``mlp(psi(n) / (psi(max(|threshold|, i)) + eps))`` with an MLP of one hidden layer with ReLU.

    :meth:`attend` needs no tensor of Tq x Tk numbers, forward or backward; :meth:`logits` and :meth:`bias` return one.
    Positions are integers.

    The authors learn a multiplier of the threshold. Here the parameter is the threshold itself, so its gradient is
    smaller by that factor: an optimizer like Adam moves it by about one learning rate, in tokens, per step. Give it a
    parameter group of its own to move it faster.

    Args:
        num_heads: H, the query heads.
        hidden_dim: Width of the MLP.
        c: Initial value of the parameter ``c``.
        threshold: Initial value of the parameter ``threshold``, in tokens.
        eps: Added to the denominator.

    Attributes:
        c: A parameter (1), in 1 / tokens.
        threshold: A parameter (1), in tokens.
        mlp: ``Linear(1, hidden_dim)``, ``ReLU``, ``Linear(hidden_dim, num_heads)``.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.FIRE(8)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, is_causal=True)
    """

    c: Tensor
    threshold: Tensor

    @plain_numbers
    def __init__(
        self, num_heads: int, *, hidden_dim: int = 32, c: float = 0.1, threshold: float = 512.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        _C.nn.check_fire(num_heads, hidden_dim=hidden_dim, c=c, threshold=threshold, eps=eps)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.eps = eps
        self._initial = {"c": c, "threshold": threshold}
        self.c = torch.nn.Parameter(torch.full((1,), c))
        self.threshold = torch.nn.Parameter(torch.full((1,), threshold))
        self.mlp = torch.nn.Sequential(
            made(torch.nn.Linear(1, hidden_dim)), torch.nn.ReLU(), made(torch.nn.Linear(hidden_dim, num_heads))
        )
        self._fix("num_heads", "hidden_dim", "eps")

    def reset_parameters(self) -> None:
        """Sets ``c`` and ``threshold`` to their initial values and draws the MLP anew."""
        self._reset_own()
        for layer in made_inside(self):
            layer.reset_parameters()

    def _reset_own(self) -> None:
        torch.nn.init.constant_(self.c, self._initial["c"])
        torch.nn.init.constant_(self.threshold, self._initial["threshold"])

    def extra_repr(self) -> str:
        """The options."""
        initial = ", ".join(f"{name}={value}" for name, value in self._initial.items())
        return f"{self.num_heads}, hidden_dim={self.hidden_dim}, {initial}, eps={self.eps}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def _parameters_of_op(self) -> tuple[Tensor, ...]:
        layers = [layer for layer in self.mlp if isinstance(layer, torch.nn.Linear)]
        if len(layers) != 2 or len(self.mlp) != 3:
            raise ValueError(
                "FIRE: expected mlp to be a Linear, a ReLU and a Linear, whose weights the op reads, but got "
                f"{[type(layer).__name__ for layer in self.mlp]}: merge adapters into the weights"
            )
        first, last = layers
        return self.c, self.threshold, first.weight, first.bias, last.weight, last.bias

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        op.add(self, **self._terms_of_op(op.query, op.key, op.q_positions, op.k_positions))

    def _terms_of_op(
        self, query: Tensor, key: Tensor, q_positions: Tensor | None, k_positions: Tensor | None
    ) -> dict[str, Tensor]:
        rate, norm, knots, offset, slope = _fire_terms(
            *self._parameters_of_op(), self.eps, query, key, q_positions=q_positions, k_positions=k_positions
        )
        return {"fire_rate": rate, "fire_norm": norm, "fire_knots": knots, "fire_offset": offset, "fire_slope": slope}

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``, materialised; :meth:`attend` holds no such tensor."""
        query, key = torch.zeros_like(call.query), torch.zeros_like(call.key)
        positions = {"q_positions": call.q_positions, "k_positions": call.k_positions}
        terms = self._terms_of_op(query, key, call.q_positions, call.k_positions)
        return ScoreTerms(bias=_attention_logits(query, key, **positions, **terms))
