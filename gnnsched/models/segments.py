"""Reductions and softmax over segments: messages by node, hops by path, sources by target.

Plain torch; the tests hold them against torch-geometric, whose import alone (it loads torch._dynamo) takes longer
than planning a network of forty servers.
"""

import torch
from torch import Tensor


def segment_sum(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Sum of the rows of ``values`` (n, ...) in each segment (n,); (segments, ...), 0 where there is none."""
    return values.new_zeros((segments, *values.shape[1:])).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Mean of the rows in each segment; 0 where there is none."""
    count = torch.bincount(segment, minlength=segments).clamp_min(1).to(values.dtype)
    return segment_sum(values, segment, segments) / count.view(-1, *[1] * (values.dim() - 1))


def segment_max(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Largest row entry in each segment; 0 where there is none."""
    index = segment.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    start = values.new_zeros((segments, *values.shape[1:]))
    return start.scatter_reduce(0, index, values, "amax", include_self=False)


def segment_log_softmax(logits: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Log-softmax within each segment: ``logits`` (n, ...), ``segment`` (n,) in 0..segments-1.

    Works on differences to the segment's largest logit and takes the log of the sum, never of a probability, so
    that gaps of hundreds leave values and gradients finite.
    """
    largest = segment_max(logits.detach(), segment, segments)
    shifted = logits - largest[segment]
    total = segment_sum(shifted.exp(), segment, segments)
    return shifted - total.clamp_min(torch.finfo(logits.dtype).tiny).log()[segment]
