"""The formulas that the benchmarks compare with are those of the papers."""

import pytest

from processes import ROOT


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "python"))


@pytest.mark.parametrize("scores_of_a_block", [1, 1 << 20])
def test_attention_reference_is_the_formula(modules, monkeypatch, scores_of_a_block):
    """Of heads that share keys, by loops over queries and keys: outputs, and a gradient by finite differences."""
    import math

    import torch

    import attention_reference
    from attention_reference import Reference, biased
    from case import Data

    monkeypatch.setattr(attention_reference, "BLOCK", scores_of_a_block)

    heads, key_heads, queries, keys, width = 6, 3, 2, 4, 3
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, h, t, width).double() for h, t in ((heads, queries), (key_heads, keys), (key_heads, keys))
    )
    table = torch.randn(heads, keys).double()
    reference = Reference(
        heads, key_heads, keys, {"distance": biased(lambda block, table: table[:, -block.distances().clamp(max=0)])}
    )

    def out(h, i, v=v):
        g, position = h // 2, keys - queries + i
        weights = [
            math.exp(q[0, h, i] @ k[0, g, j] / math.sqrt(width) + table[h, position - j]) for j in range(position + 1)
        ]
        return sum(w * v[0, g, j] for j, w in enumerate(weights)) / sum(weights)

    gradient = torch.randn(1, heads, queries, width).double()
    results = reference(Data((q, k, v, table), (gradient,)), "distance")
    assert [tuple(x.shape) for x in results] == [
        (1, 4, queries, width),
        (1, 4, queries, width),
        (1, 2, keys, width),
        (1, 2, keys, width),
        (4, keys),
    ]
    expected = torch.stack([torch.stack([out(h, i) for i in range(queries)]) for h in (0, 1, 4, 5)])
    torch.testing.assert_close(results[0][0], expected)

    moved = v.clone()
    moved[0, 2, 1, 0] += 1.0  # outputs are linear in values
    change = sum(gradient[0, h, i] @ (out(h, i, moved) - out(h, i)) for h in (4, 5) for i in range(queries))
    torch.testing.assert_close(results[3][0, 1, 1, 0], change)


@pytest.fixture
def compare_with_loops(modules):
    """Compares a formula for one head with loops: score of (i, j, q, k), what is added to value j, further inputs."""
    import torch

    from attention_reference import Block

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 5, 3).double() for _ in range(3))

    def compare(formula, score, added, *more):
        block = Block(torch.tensor([0]), slice(0, 5), 5)
        expected = []
        for i in range(5):
            weights = torch.tensor([score(i, j, q[0, 0], k[0, 0]) for j in range(i + 1)]).double().softmax(0)
            expected.append(sum(w * (v[0, 0, j] + added(i, j)) for j, w in enumerate(weights)))
        torch.testing.assert_close(formula(block, q, k, v, *more)[0, 0], torch.stack(expected))

    return compare


def test_contextual_formulas_are_those_of_the_papers(compare_with_loops):
    """Pair by pair, on one head."""
    import math

    import torch

    import contextual_formulas as formulas

    def content(i, j, q, k):
        return (q[i] @ k[j] / math.sqrt(3)).item()

    entries, bias = 3, 0.5
    pos_emb = torch.randn(1, 3, entries).double()

    def cope(i, j, q, k):
        position = sum(1 / (1 + math.exp(-content(i, key, q, k) - bias)) for key in range(j, i + 1))
        position = min(position, entries - 1)
        below = min(math.floor(position), entries - 2)
        share = position - below
        entry = (1 - share) * pos_emb[0, :, below] + share * pos_emb[0, :, below + 1]
        return content(i, j, q, k) + (q[i] @ entry).item()

    compare_with_loops(formulas.cope(bias), cope, lambda i, j: 0, pos_emb)

    q_far, k_far = torch.randn(2, 1, 1, 5, 3).double()
    compare_with_loops(
        formulas.piecewise(2),
        lambda i, j, q, k: content(i, j, q, k) if i - j < 2 else content(i, j, q_far[0, 0], k_far[0, 0]),
        lambda i, j: 0,
        q_far,
        k_far,
    )

    rel_k, rel_v = torch.randn(2, 5, 3).double()
    compare_with_loops(
        formulas.shaw,
        lambda i, j, q, k: content(i, j, q, k + rel_k[max(j - i, -2) + 2]),
        lambda i, j: rel_v[max(j - i, -2) + 2],
        rel_k,
        rel_v,
    )


def test_queries_at_a_kink_are_not_compared(modules):
    import torch

    from attention_reference import Reference
    from case import Data
    from contextual_formulas import cope, cope_kinks

    # Gates of 1/2 count 1 at every second key; in the last row of the second head they are larger.
    q, k = torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 4)
    q[0, 1, 2] = 0.1
    data = Data((q, k, k, torch.zeros(1, 4, 8)), (torch.ones(1, 2, 3, 4),))
    reference = Reference(2, 2, 3, {"CoPE": cope(0.0)}, cope_kinks(0.0))
    (gradient,) = reference.focused(data).gradients
    assert gradient[..., 0].tolist() == [[[1, 0, 0], [1, 0, 1]]]
    # With many keys one head is compared, so that what the heads share has its gradients alone.
    (gradient,) = Reference(2, 2, 4096, {}).focused(data).gradients
    assert gradient[..., 0].tolist() == [[[0, 0, 0], [1, 1, 1]]]
