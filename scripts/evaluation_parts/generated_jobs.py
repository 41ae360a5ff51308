"""Random training jobs, to train on some and measure on others."""

import numpy as np

from gnnsched.partition.job_graph import JobGraph, JobProfile, mirrored

# Bytes/s of a channel of RAMP, by which bytes are drawn: on a much faster network they would not matter.
CHANNEL = 4e11


def generated_jobs(count: int, seed: int) -> list[JobGraph]:
    """``count`` jobs, the same ones for the same ``seed``."""
    rng = np.random.default_rng(seed)
    return [mirrored(_profile(rng, f"job_{i}")) for i in range(count)]


def _profile(rng: np.random.Generator, name: str) -> JobProfile:
    """A chain of stages, each an op, or some branches side by side that meet again.

    A step takes 0.1 to 1 s on one worker. Moving all activations over a channel takes 0.1 to 60 % of that, all
    parameters as much on average and drawn apart; either may lie near the input, near the output or anywhere.
    """
    edges: list[tuple[int, int]] = []
    last, ops = 0, 1
    for _ in range(int(rng.integers(4, 16))):
        branches = int(rng.choice((1, 2, 3, 4), p=(0.6, 0.2, 0.1, 0.1)))
        ends = []
        for _ in range(branches):
            before = last
            for _ in range(int(rng.integers(1, 4))):
                edges.append((before, ops))
                before, ops = ops, ops + 1
            ends.append(before)
        # A shortcut past the branches, as in a residual network.
        if rng.random() < 0.3:
            ends.append(last)
        edges += [(end, ops) for end in ends]
        last, ops = ops, ops + 1
    place = np.linspace(-1.0, 1.0, ops)

    def share(slope: float) -> np.ndarray:
        weight = np.exp(slope * place + rng.normal(0.0, 1.0, ops))
        return weight / weight.sum()

    step = float(np.exp(rng.uniform(np.log(0.1), np.log(1.0))))
    activation, parameter = (
        float(np.exp(rng.uniform(np.log(0.001), np.log(0.6)))) * step * CHANNEL for _ in range(2)
    )
    compute = step * share(0.0)
    backward = rng.uniform(0.5, 0.7)
    return JobProfile(
        name=name,
        op_names=tuple(f"Op{i + 1}()" for i in range(ops)),
        forward_time=compute * (1.0 - backward),
        backward_time=compute * backward,
        activation_bytes=activation * share(rng.normal(0.0, 2.0)),
        parameter_bytes=parameter * share(rng.normal(0.0, 2.0)),
        edges=np.array(sorted(edges), np.int64),
    )
