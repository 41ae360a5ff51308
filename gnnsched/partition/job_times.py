"""Completion times of single jobs by degree: simulated, and by the surrogate that needs no simulation."""

from typing import Any

import numpy as np

from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.placement import QUANTUM, degrees_of_ops, place, place_exactly
from gnnsched.partition.step_simulation import simulate_job
from gnnsched.partition.world import World

# Mean time of communication of the five published jobs, by degree, in units of the profiles' time.
_SURROGATE_COMMUNICATION = {1: 0.0, 2: 2.8, 4: 3.4, 8: 3.8, 16: 4.5}


def surrogate_jct(graph: JobGraph, degree: int, time_unit: float, available: list[int]) -> float:
    """Seconds of a job by its ops' run times alone, plus the published mean time of communication at the degree.

    Holds in the published program's units, where communication hardly counts; never in consistent ones.
    """
    split = degrees_of_ops(graph, degree, QUANTUM * time_unit, available)
    known = np.array(list(_SURROGATE_COMMUNICATION), float)
    communication = np.interp(degree, known, list(_SURROGATE_COMMUNICATION.values()))
    return graph.steps * float((graph.compute / split).sum()) + float(communication) * time_unit


def job_times(world: World) -> list[dict[str, Any]]:
    """A row per job and degree, each alone on an empty cluster; degrees that have no room are left out."""
    available = world.tables.degree.tolist()
    free = np.ones(world.cluster.num_workers, bool)
    rows = []
    for m, graph in enumerate(world.models):
        for j, degree in enumerate(available):
            split = degrees_of_ops(graph, degree, QUANTUM * world.time_unit, available)
            if world.holding == "exact":
                block = world.cluster.blocks(available[world.tables.largest[m, j]])
                if not np.isfinite(world.tables.jct[m, j, block.kind[0]]):
                    continue
                placement = place_exactly(graph, split, block.workers[0])
            else:
                found = place(graph, split, world.cluster, free)
                if found is None:
                    continue
                placement = found
            time = simulate_job(graph, placement, world.cluster)
            rows.append(
                {
                    "model": graph.name,
                    "degree": degree,
                    "workers": len(placement.held),
                    "jct_s": time.jct,
                    "surrogate_jct_s": surrogate_jct(graph, degree, world.time_unit, available),
                    "speedup": graph.sequential_time / time.jct,
                    "computing_s": time.computing,
                    "communicating_s": time.communicating,
                }
            )
    return rows
