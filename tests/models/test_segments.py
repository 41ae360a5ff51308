"""The segment log-softmax: exact, and finite where log(softmax) is not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.models.segments import segment_log_softmax


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
