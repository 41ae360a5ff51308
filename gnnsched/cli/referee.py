"""``gnnsched verify`` and ``gnnsched simulate``: the referee, whoever made the schedule."""

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnsched.cli.options import NetworkFile, ScheduleFile
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import bandwidth_text, counted, table

if TYPE_CHECKING:
    from gnnsched.collective.schedule import Schedule
    from gnnsched.collective.simulator import SimulationResult

# Links in the table for people; JSON has all.
SHOWN_LINKS = 10


@dataclass(frozen=True)
class Verify:
    """Judge a schedule: exit code 0 for a right AllReduce, 1 for a wrong one (says the first fault), 2 unreadable."""

    topology: NetworkFile
    schedule: ScheduleFile

    def run(self) -> int:
        schedule, fault = _judged(self.topology, self.schedule)
        if fault is not None:
            print(f"wrong: {fault}")
            return 1
        from gnnsched.topology.units import format_size, format_time

        print(
            f"right: AllReduce of {format_size(schedule.message_bytes)} among "
            f"{counted(len(schedule.topology.participants), 'participant')} of {schedule.topology.name}, "
            f"{counted(schedule.num_chunks, 'chunk')}, {counted(len(schedule.transfers), 'transfer')}, "
            f"{format_time(schedule.makespan)}"
        )
        return 0


@dataclass(frozen=True)
class Simulate:
    """Replay a right schedule: makespan, busy time of each link, bottleneck."""

    topology: NetworkFile
    schedule: ScheduleFile
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        from gnnsched.collective.simulator import simulate

        schedule, fault = _judged(self.topology, self.schedule)
        if fault is not None:
            print(f"gnnsched: not simulated, the schedule is wrong: {fault}", file=sys.stderr)
            return 1
        result = simulate(schedule)
        facts = simulation_facts(schedule, result)
        print(json.dumps(facts, indent=2) if self.json else _described(schedule, result, facts))
        return 0


def _judged(topology_file: NetworkFile, schedule_file: ScheduleFile) -> tuple["Schedule", str | None]:
    from gnnsched.collective.schedule_io import load_schedule
    from gnnsched.collective.verify import verify
    from gnnsched.topology.formats import load_topology

    schedule = load_schedule(schedule_file, load_topology(topology_file))
    with Progress("verifying") as progress:
        progress.say(counted(len(schedule.transfers), "transfer"))
        return schedule, verify(schedule).fault


def simulation_facts(schedule: "Schedule", result: "SimulationResult") -> dict[str, Any]:
    """What ``simulate --json`` prints; bandwidths in bytes/s, times in seconds, links in the topology's order."""
    import numpy as np

    from gnnsched.collective.bounds import algorithm_bandwidth, bounds, bus_bandwidth
    from gnnsched.topology.network import portable_id

    topology = schedule.topology
    left = topology.with_participants(np.setdiff1d(topology.participants, schedule.lost))
    bound = bounds(left, schedule.message_bytes, 0.0, schedule.flows, schedule.ready).bound_s
    ids = [portable_id(node) for node in topology.node_ids]
    links = [
        {"source": ids[s], "target": ids[d], "bandwidth_Bps": bandwidth, "busy_s": busy}
        for s, d, bandwidth, busy in zip(
            topology.link_source.tolist(),
            topology.link_target.tolist(),
            topology.bandwidth.tolist(),
            result.link_busy_s.tolist(),
        )
    ]
    return {
        "topology": topology.name,
        "message_bytes": int(schedule.message_bytes),
        "transfers": len(schedule.transfers),
        "makespan_s": result.makespan,
        "planned_makespan_s": schedule.makespan,
        "bound_s": bound,
        "ratio": result.makespan / bound if bound > 0 else None,
        "algbw_Bps": algorithm_bandwidth(schedule.message_bytes, result.makespan),
        "busbw_Bps": bus_bandwidth(schedule.message_bytes, result.makespan, len(topology.participants)),
        "bottleneck": None if result.bottleneck is None else links[result.bottleneck],
        "links": links,
        "truncated": result.truncated,
    }


def _described(schedule: "Schedule", result: "SimulationResult", facts: dict[str, Any]) -> str:
    import numpy as np

    from gnnsched.report.time_shares import time_sentence, time_shares
    from gnnsched.topology.units import format_bandwidth, format_size, format_time

    busiest = np.argsort(-result.link_busy_s, kind="stable")[:SHOWN_LINKS].tolist()
    rows = []
    for link in busiest:
        row = facts["links"][link]
        share = row["busy_s"] / result.makespan if result.makespan > 0 else 0.0
        rows.append(
            (
                f"{row['source']} -> {row['target']}",
                format_bandwidth(row["bandwidth_Bps"]),
                format_time(row["busy_s"]),
                f"{share:.1%}",
            )
        )
    lines = [
        f"{facts['topology']}: AllReduce of {format_size(schedule.message_bytes)}, "
        f"{counted(facts['transfers'], 'transfer')}, {format_time(result.makespan)}"
        + (
            ""
            if facts["ratio"] is None
            else f", {facts['ratio']:.4f} of the bound {format_time(facts['bound_s'])}"
        ),
        f"algbw {bandwidth_text(facts['algbw_Bps'])}, busbw {bandwidth_text(facts['busbw_Bps'])}",
        "",
        table((f"busiest of {counted(len(facts['links']), 'link')}", "bandwidth", "busy", "share"), rows),
        "",
        time_sentence(schedule, time_shares(schedule, result)),
    ]
    if result.truncated is not None:
        lines.append(f"The replay was cut short: {result.truncated}.")
    return "\n".join(lines)
