"""``gnnsched schedule``: plan, verify, compare, write."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from gnnsched.cli.options import (
    Checkpoint,
    NetworkFile,
    check_device,
    check_output,
    message_bytes,
    taking_part,
)
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import bandwidth_text, counted, ratio_text, table

if TYPE_CHECKING:
    from gnnsched.collective.flows import Flows
    from gnnsched.models.policy import Policy
    from gnnsched.planning import Plan
    from gnnsched.topology import Topology

# Chunks per server of each of several jobs, where none are asked for.
JOBS_CHUNKS = 4


@dataclass(frozen=True)
class Schedule:
    """Plan an AllReduce on a network and verify the plan.

    With --scheduler auto the best of policy, greedy_augmented and trees_augmented is returned; the other algorithms are
    computed for comparison at the same chunks per server.
    """

    topology: NetworkFile
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="SCHEDULE")] = None
    """Where to write the schedule (.json or .npz)."""
    checkpoint: Checkpoint = None
    """Of the policy (default: the shipped one)."""
    message_size: Annotated[str, arg(metavar="SIZE")] = "64MiB"
    """Bytes that every participant holds."""
    chunks_per_server: Literal["auto"] | int = "auto"
    """Chunks rooted at each participant; auto tries 1, 2, 4, ..."""
    time_limit: Annotated[float, arg(metavar="SECONDS")] = 10.0
    """For planning, not for the comparison."""
    scheduler: Annotated[str, arg(metavar="NAME")] = "auto"
    """auto, policy, ring, parameter_server, sharded_parameter_server, double_tree, halving_doubling, greedy,
    greedy_augmented, trees_augmented, linear or random."""
    samples: int = 16
    """Plans that the policy draws, the best of which counts."""
    seed: int = 0
    """Of all random choices."""
    device: str = "cpu"
    """Where the policy's network runs: cpu or cuda."""
    participants: Annotated[str | None, arg(metavar="ID,ID,...")] = None
    """Servers that take part, the others relay (default: those of the topology)."""
    in_flight: Annotated[Path | None, arg(metavar="FLOWS.json")] = None
    """Traffic that is under way: {"flows": [{"path": [id, ...], "rate": "50Gbps", "bytes_left": "10GiB", "start":
    "1ms"}, ...]}, or source and target instead of a path."""
    ready: Annotated[Path | None, arg(metavar="READY.json")] = None
    """Servers that are late: {"ready": [{"server": id, "at": "2ms"}, ...]}."""
    jobs: Annotated[Path | None, arg(metavar="JOBS.json")] = None
    """Several AllReduces at once: {"jobs": [{"name": "a", "participants": [id, ...], "message_size": "1GiB", "ready":
    "3ms"}, ...]}; -o plan.json writes plan-NAME.json for each."""
    json: bool = False
    """Print one JSON object."""
    plot: Annotated[Path | None, arg(metavar="FILE.png")] = None
    """Draw link occupancy over time and the network with its bottleneck."""

    def run(self) -> int:
        for path, suffixes in ((self.output, (".json", ".npz")), (self.plot, (".png",))):
            if path is not None:
                check_output(path, suffixes)
        from gnnsched.topology.formats import load_topology

        size = message_bytes(self.message_size)
        topology = taking_part(load_topology(self.topology), self.participants)
        from gnnsched.collective.flows import NO_FLOWS
        from gnnsched.collective.schedule_io import dump_schedule
        from gnnsched.collective.traffic_file import load_flows, load_ready
        from gnnsched.planning import plan

        flows = NO_FLOWS if self.in_flight is None else load_flows(self.in_flight, topology)
        ready = None if self.ready is None else load_ready(self.ready, topology)
        policy = self._policy()
        if self.jobs is not None:
            return self._jobs(topology, flows, policy)
        with Progress("planning") as progress:
            progress.say("loading kernels")
            found = plan(
                topology,
                size,
                None if self.chunks_per_server == "auto" else self.chunks_per_server,
                self.scheduler,
                policy,
                samples=self.samples,
                seed=self.seed,
                time_limit=self.time_limit,
                device=self.device,
                progress=progress.say,
                flows=flows,
                ready=ready,
            )
        if self.output is not None:
            dump_schedule(found.schedule, self.output)
        makespans = self._compared(topology, size, found, policy)
        facts = schedule_facts(found, makespans)
        if self.plot is not None:
            from gnnsched.report.plots import plot_schedule

            plot_schedule(found.schedule, self.plot)
        if self.json:
            print(json.dumps(facts, indent=2))
        else:
            for warning in topology.warnings:
                print(f"note: {warning}")
            print(_described(found, facts))
            for written in (self.output, self.plot):
                if written is not None:
                    print(f"written to {written}")
        return 0

    def _jobs(self, topology: "Topology", flows: "Flows", policy: "Policy | None") -> int:
        from gnnsched.cli.schedule_jobs import schedule_jobs
        from gnnsched.topology import InputError

        for name in ("participants", "ready", "plot"):
            if getattr(self, name) is not None:
                raise InputError(f"--{name}: not with --jobs, whose file says that of each job; leave it out")
        assert self.jobs is not None
        return schedule_jobs(
            topology,
            self.jobs,
            flows,
            JOBS_CHUNKS if self.chunks_per_server == "auto" else self.chunks_per_server,
            "policy" if self.scheduler == "auto" else self.scheduler,
            policy,
            self.samples,
            self.seed,
            self.output,
            self.json,
        )

    def _policy(self) -> "Policy | None":
        """The policy where it is needed, so that torch is not loaded for a ring."""
        if self.scheduler not in ("auto", "policy"):
            return None
        from gnnsched.planning import load_policy

        check_device(self.device)
        return load_policy(self.checkpoint, self.device)

    def _compared(
        self, topology: "Topology", size: int, found: "Plan", policy: "Policy | None"
    ) -> dict[str, float | None]:
        """Makespan in seconds per scheduler at the plan's chunks per server."""
        if self.scheduler != "auto":
            return {found.scheduler: found.makespan_s}
        from gnnsched.planning import SCHEDULERS, compare

        with Progress("comparing", len(SCHEDULERS) - 1) as progress:
            makespans = compare(
                topology,
                size,
                found.chunks_per_server,
                self.samples,
                self.seed,
                policy,
                [name for name in SCHEDULERS if name != found.scheduler],
                progress.step,
                found.schedule.flows,
                found.schedule.ready,
            )
        makespans[found.scheduler] = found.makespan_s
        # What a planner reached on the ladder counts, should the comparison's samples have ended sooner.
        for rung in found.rungs:
            known = makespans[rung.scheduler]
            alike = (rung.chunks_per_server, rung.root) == (found.chunks_per_server, found.root)
            if alike and known is not None:
                makespans[rung.scheduler] = min(known, rung.makespan_s)
        return {name: makespans[name] for name in SCHEDULERS}


def schedule_facts(found: "Plan", makespans: dict[str, float | None]) -> dict[str, Any]:
    """What ``schedule --json`` prints; ``makespans``: seconds per scheduler."""
    from gnnsched.collective.bounds import algorithm_bandwidth, bus_bandwidth

    schedule, topology = found.schedule, found.schedule.topology
    participants = len(topology.participants)
    return {
        "topology": topology.name,
        "fingerprint": topology.fingerprint,
        "servers": len(topology.servers),
        "switches": int(topology.is_switch.sum()),
        "participants": participants,
        "message_bytes": int(schedule.message_bytes),
        "chunks": schedule.num_chunks,
        "chunks_per_server": found.chunks_per_server if found.root is None else None,
        "root": None if found.root is None else topology.node_ids[found.root],
        "shape": found.shape,
        "transfers": len(schedule.transfers),
        "scheduler": found.scheduler,
        "makespan_s": found.makespan_s,
        "bound_s": found.bounds.bound_s,
        "lp_bound_s": found.bounds.lp_bound_s,
        "lp_note": found.bounds.lp_note,
        "latency_bound_s": found.bounds.latency_s,
        "ratio": found.ratio,
        "algbw_Bps": algorithm_bandwidth(schedule.message_bytes, found.makespan_s),
        "busbw_Bps": bus_bandwidth(schedule.message_bytes, found.makespan_s, participants),
        "plan_s": found.plan_s,
        "samples": found.samples,
        "seed": found.seed,
        "verified": found.verified,
        "finished": found.finished,
        "in_flight": schedule.flows.num_flows,
        "late_servers": 0 if schedule.ready is None else int((schedule.ready > 0).sum()),
        "warnings": list(topology.warnings),
        "schedulers": makespans,
    }


def _described(found: "Plan", facts: dict[str, Any]) -> str:
    from gnnsched.collective.bounds import algorithm_bandwidth, bus_bandwidth
    from gnnsched.report.time_shares import time_sentence, time_shares
    from gnnsched.topology.units import format_size, format_time

    size, bound, participants = facts["message_bytes"], facts["bound_s"], facts["participants"]

    def row(name: str, seconds: float | None) -> tuple[str, ...]:
        if seconds is None:
            return (name, "not defined", "-", "-", "-")
        return (
            name,
            format_time(seconds),
            ratio_text(seconds / bound if bound > 0 else None),
            bandwidth_text(algorithm_bandwidth(size, seconds)),
            bandwidth_text(bus_bandwidth(size, seconds, participants)),
        )

    limits = [("(bound: reduce-scatter, all-gather)", bound), ("(bound: LP, any plan)", facts["lp_bound_s"])]
    planned = sorted(facts["schedulers"].items(), key=lambda item: (item[1] is None, item[1] or 0.0))
    rows = [row(name, seconds) for name, seconds in limits if seconds is not None]
    rows += [row(f"{name} *" if name == facts["scheduler"] else name, seconds) for name, seconds in planned]
    cut = "" if found.finished else ", cut short by the time limit"
    where = f"{facts['chunks_per_server']} per server"
    if facts["root"] is not None:
        where = f"all rooted at {facts['root']}"
    lines = [
        f"{facts['topology']}: {counted(facts['servers'], 'server')}, "
        f"{counted(facts['switches'], 'switch', 'switches')}, {counted(participants, 'participant')}",
        f"AllReduce of {format_size(size)} in {counted(facts['chunks'], 'chunk')} "
        f"({where}), {counted(facts['transfers'], 'transfer')}, verified",
        *([f"beside {counted(facts['in_flight'], 'flow')} in flight"] if facts["in_flight"] else []),
        *([f"{counted(facts['late_servers'], 'server')} ready late"] if facts["late_servers"] else []),
        f"planned by {facts['scheduler']} in {format_time(facts['plan_s'])}{cut}",
        "",
        table(("scheduler", "time", "ratio to bound", "algbw", "busbw"), rows),
        "",
        time_sentence(found.schedule, time_shares(found.schedule)),
    ]
    if facts["lp_bound_s"] is None:
        lines.append(f"The LP bound is not known: {facts['lp_note']}.")
    return "\n".join(lines)
