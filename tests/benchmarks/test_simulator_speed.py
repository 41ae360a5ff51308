"""Speed of the referee, off by default: ``pytest -o addopts= tests/benchmarks``."""

import numpy as np
import pytest

from gnnsched.collective.schedule import BROADCAST, REDUCE, Schedule, Transfers
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.topology.generators import torus


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """A million transfers: on a ring of 64 servers each chunk goes round to be reduced and to be sent."""
    n, per_server = 64, 124
    topology = torus(n, latency=0.0)
    position = {
        (int(s), int(d)): e for e, (s, d) in enumerate(zip(topology.link_source, topology.link_target))
    }
    link = np.array([position[s, (s + 1) % n] for s in range(n)], np.int32)
    message = float(2**30)
    roots = np.repeat(np.arange(n, dtype=np.int32), per_server)
    slot = message / len(roots) / topology.bandwidth[0]
    chunk = np.repeat(np.arange(len(roots), dtype=np.int32), 2 * n - 2)
    step = np.tile(np.arange(2 * n - 2), len(roots))
    source = (roots[chunk] + 1 + step) % n
    start = (step * per_server + chunk % per_server) * slot
    transfers = Transfers(
        np.where(step < n - 1, REDUCE, BROADCAST).astype(np.uint8),
        chunk,
        source.astype(np.int32),
        ((source + 1) % n).astype(np.int32),
        np.arange(len(chunk) + 1, dtype=np.int64),
        link[source],
        np.full(len(chunk), topology.bandwidth[0]),
        start,
        start + slot,
    )
    return Schedule(topology, message, roots, transfers, {"name": "ring"})


def test_simulator_speed(benchmark, schedule: Schedule) -> None:
    simulate(schedule)
    result = benchmark(simulate, schedule)
    assert result.makespan == pytest.approx(schedule.makespan, rel=1e-9)
    benchmark.extra_info["transfers_per_s"] = len(schedule.transfers) / benchmark.stats["mean"]


def test_verifier_speed(benchmark, schedule: Schedule) -> None:
    verify(schedule)
    assert benchmark(verify, schedule).fault is None
    benchmark.extra_info["transfers_per_s"] = len(schedule.transfers) / benchmark.stats["mean"]
