from torch import Tensor

from posenc.nn.base import check_dense

# Checks in Python, as a pybind call would break compiled graphs.


def check_width(module: str, name: str, x: Tensor, head_dim: int) -> None:
    """Raises unless ``x``, the argument ``name``, is (B, heads, length, D) with the module's width D."""
    check_dense(module, name, x)
    if x.dim() != 4 or x.shape[3] != head_dim:
        raise ValueError(
            f"{module}: expected {name} of shape (batch, heads, length, head_dim) with head_dim {head_dim}, but got "
            f"{list(x.shape)}"
        )


def check_query(module: str, query: Tensor, head_dim: int, num_heads: int | None) -> None:
    """Raises unless ``query`` is (B, H, Tq, D) with the module's width and, where it tells heads apart, its heads."""
    check_width(module, "query", query, head_dim)
    if num_heads is not None and query.shape[1] != num_heads:
        raise ValueError(
            f"{module}: expected query of shape (batch, heads, length, head_dim) with num_heads {num_heads}, but got "
            f"{list(query.shape)}"
        )
