"""The segment log-softmax: exact, and finite where log(softmax) is not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.models.encoder import LinkRound
from gnnsched.models.segments import segment_log_softmax, segment_max, segment_mean, segment_sum


def reference(logits: torch.Tensor, segment: torch.Tensor, segments: int) -> torch.Tensor:
    result = torch.empty_like(logits)
    for s in range(segments):
        result[segment == s] = torch.log_softmax(logits[segment == s], 0)
    return result


@given(
    st.integers(1, 6).flatmap(
        lambda segments: st.tuples(
            st.just(segments), st.lists(st.integers(0, segments - 1), max_size=30), st.integers(0, 2**32 - 1)
        )
    )
)
def test_equals_log_softmax_of_each_segment(drawn: tuple[int, list[int], int]) -> None:
    """Segments in any order, some of them empty, one or several columns."""
    segments, members, seed = drawn
    segment = torch.tensor(members, dtype=torch.int64)
    spread = np.random.default_rng(seed).normal(0.0, 30.0, (len(members), 2))
    logits = torch.from_numpy(spread)
    result = segment_log_softmax(logits, segment, segments)
    torch.testing.assert_close(result, reference(logits, segment, segments), rtol=1e-12, atol=1e-12)
    one_column = segment_log_softmax(logits[:, 0], segment, segments)
    torch.testing.assert_close(one_column, result[:, 0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "logits",
    [
        [1e4, -1e4, 0.0],
        [-1e4, -1e4, -1e4],
        [1e4, 1e4, 1e4],
        [0.0, -200.0, -201.0],
        [0.0, 250.0, -1e4],
        [88.0, 89.0, 1e4],
        [-3.0],
    ],
)
def test_values_and_gradients_are_finite_and_right_at_extreme_logits(
    logits: list[float], dtype: torch.dtype
) -> None:
    """A second, ordinary segment is neither hurt nor felt."""
    values = torch.tensor([*logits, 0.3, -0.4], dtype=dtype, requires_grad=True)
    segment = torch.tensor([1] * len(logits) + [0, 0])
    result = segment_log_softmax(values, segment, 3)
    assert torch.isfinite(result).all()
    torch.testing.assert_close(result, reference(values.detach(), segment, 2))
    # d log p_j / d logit_i = [i = j] - p_i
    for taken in range(len(logits)):
        (gradient,) = torch.autograd.grad(result[taken], values, retain_graph=True)
        probability = torch.softmax(values.detach()[: len(logits)], 0)
        expected = -probability
        expected[taken] += 1.0
        assert torch.isfinite(gradient).all()
        torch.testing.assert_close(gradient[: len(logits)], expected)
        assert not gradient[len(logits) :].any()
    # exp() of it, as the attention uses it, has finite gradients too
    (gradient,) = torch.autograd.grad(result.exp().square().sum(), values)
    assert torch.isfinite(gradient).all()


def test_gradient_is_that_of_finite_differences() -> None:
    segment = torch.tensor([3, 0, 0, 3, 1, 3, 0])
    logits = torch.from_numpy(np.random.default_rng(0).normal(0.0, 2.0, (7, 2))).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: segment_log_softmax(x, segment, 5), (logits,))
    assert torch.autograd.gradgradcheck(lambda x: segment_log_softmax(x, segment, 5), (logits,))


def test_nothing_at_all() -> None:
    logits = torch.zeros(0, 2, requires_grad=True)
    result = segment_log_softmax(logits, torch.zeros(0, dtype=torch.int64), 4)
    assert result.shape == (0, 2)
    result.sum().backward()
    assert segment_log_softmax(logits, torch.zeros(0, dtype=torch.int64), 0).shape == (0, 2)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_reductions_agree_with_torch_geometric(reduce: str) -> None:
    """Values and gradients, empty segments and ties included."""
    from torch_geometric.utils import scatter

    own = {"sum": segment_sum, "mean": segment_mean, "max": segment_max}[reduce]
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(-3, 4, (40, 5), generator=generator).double()
    segment = torch.randint(0, 8, (40,), generator=generator) + (torch.arange(40) % 3 == 0) * 2
    weight = torch.rand(12, 5, generator=generator, dtype=torch.float64)
    results = []
    for reduced in (
        lambda x: own(x, segment, 12),
        lambda x: scatter(x, segment, 0, 12, reduce=reduce),
    ):
        x = values.clone().requires_grad_()
        out = reduced(x)
        (out * weight).sum().backward()
        results.append((out.detach(), x.grad))
    for mine, theirs in zip(*results):
        torch.testing.assert_close(mine, theirs)


def test_encoder_round_agrees_with_torch_geometric() -> None:
    """The same round as a MessagePassing layer with mean and max aggregation along and against the links."""
    from torch_geometric.nn import SimpleConv

    torch.manual_seed(0)
    layer = LinkRound(6)
    nodes, edges = torch.randn(7, 6), torch.randn(9, 6)
    edge_index = torch.stack([torch.arange(9) % 6, (torch.arange(9) * 2 + 1) % 5])
    source, target = edge_index
    ends = torch.cat([nodes[source], nodes[target], edges], 1)
    gathered = [nodes]
    for messages, receiver in ((layer.forth(ends), target), (layer.back(ends), source)):
        # One sender per message: the library then aggregates what we hand it.
        senders = torch.stack([torch.arange(9), receiver])
        for aggregation in ("mean", "max"):
            conv = SimpleConv(aggr=aggregation)
            gathered.append(conv((messages, torch.zeros(7, 6)), senders, size=(9, 7)))
    expected = layer.node_norm(nodes + layer.update_node(torch.cat(gathered, 1)))
    torch.testing.assert_close(layer(nodes, edges, edge_index)[0], expected)
