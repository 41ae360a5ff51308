"""Where the time of a schedule goes: sending over the bottleneck, propagation, or waiting."""

from dataclasses import dataclass, replace

import numpy as np

from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import SimulationResult, simulate
from gnnsched.topology.units import format_bandwidth, format_size, format_time

# Planned starts are lower bounds of a replay; shrunk by this they only give the order.
_SHRUNK = 1e-6


@dataclass(frozen=True)
class TimeShares:
    """Seconds of ``makespan_s``: the bottleneck link sends for ``busy_s``; the same order of transfers would end
    ``latency_s`` earlier on links without latency; ``waiting_s`` is the rest, in which the bottleneck has to wait.

    ``link`` is the bottleneck's index, None without transfers; ``links`` links, this one included, are as busy.
    """

    makespan_s: float
    link: int | None
    links: int
    busy_s: float
    latency_s: float

    @property
    def waiting_s(self) -> float:
        rest = self.makespan_s - self.busy_s - self.latency_s
        return rest if rest > 1e-9 * self.makespan_s else 0.0


def time_shares(schedule: Schedule, result: SimulationResult | None = None) -> TimeShares:
    """Split the simulated time of a right ``schedule``; ``result`` is its simulation where it is at hand."""
    result = simulate(schedule) if result is None else result
    if result.bottleneck is None:
        return TimeShares(result.makespan, None, 0, 0.0, 0.0)
    busy = float(result.link_busy_s[result.bottleneck])
    topology, t = schedule.topology, schedule.transfers
    latency = 0.0
    if topology.latency.any():
        shrunk = replace(
            schedule,
            topology=replace(topology, latency=topology.latency * _SHRUNK),
            transfers=replace(t, start=t.start * _SHRUNK, end=t.end * _SHRUNK),
        )
        without = replace(topology, latency=np.zeros_like(topology.latency))
        quick, slow = simulate(shrunk, without), simulate(shrunk, topology)
        if quick.truncated is None and slow.truncated is None:
            latency = min(max(0.0, slow.makespan - quick.makespan), max(0.0, result.makespan - busy))
    return TimeShares(result.makespan, result.bottleneck, equally_busy(result), busy, latency)


def equally_busy(result: SimulationResult) -> int:
    """Number of links that are as busy as the busiest one, to a thousandth."""
    return (
        int((result.link_busy_s >= 0.999 * result.link_busy_s.max()).sum()) if len(result.link_busy_s) else 0
    )


def link_name(schedule: Schedule, link: int) -> str:
    """ "server-0 -> switch-1"."""
    topology = schedule.topology
    return (
        f"{topology.node_ids[topology.link_source[link]]} -> {topology.node_ids[topology.link_target[link]]}"
    )


def time_sentence(schedule: Schedule, shares: TimeShares) -> str:
    """The shares for a person, in one or two sentences."""
    if shares.link is None:
        return "Where the time goes: nowhere, nothing has to be sent."
    topology = schedule.topology
    bandwidth = float(topology.bandwidth[shares.link])

    def share(seconds: float) -> str:
        return f"{format_time(seconds)} ({seconds / shares.makespan_s:.1%})"

    parts = {
        "bandwidth": shares.busy_s,
        "latency": shares.latency_s,
        "waiting": shares.waiting_s,
    }
    most = max(parts, key=lambda name: parts[name])
    which = "" if shares.links == 1 else f", one of {shares.links} equally busy links,"
    without = f"{share(shares.latency_s)} earlier" if shares.latency_s > 0 else "no earlier"
    return (
        f"Where the time goes: mostly {most}. The bottleneck {link_name(schedule, shares.link)} "
        f"({format_bandwidth(bandwidth)}){which} sends {format_size(shares.busy_s * bandwidth)} in "
        f"{share(shares.busy_s)} of {format_time(shares.makespan_s)}. Without latency the same order of transfers "
        f"would end {without}. For the other {share(shares.waiting_s)} the bottleneck waits for data or for its turn."
    )
