"""Masked and segmented distributions that stay finite at any logits."""

import torch
from torch import Tensor
from torch_geometric.utils import scatter


def segment_log_softmax(logits: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Log-softmax within each segment: ``logits`` (n, ...), ``segment`` (n,) in 0..segments-1.

    Works on differences to the segment's largest logit and takes the log of the sum, never of a probability, so
    that gaps of hundreds leave values and gradients finite.
    """
    largest = scatter(logits.detach(), segment, 0, segments, reduce="max")
    shifted = logits - largest[segment]
    total = scatter(shifted.exp(), segment, 0, segments, reduce="sum")
    return shifted - total.clamp_min(torch.finfo(logits.dtype).tiny).log()[segment]
