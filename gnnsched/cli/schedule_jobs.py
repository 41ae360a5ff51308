"""``gnnsched schedule --jobs``: several AllReduces on one network."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnsched.cli.options import check_output
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import counted, table

if TYPE_CHECKING:
    from gnnsched.collective.flows import Flows
    from gnnsched.models.policy import Policy
    from gnnsched.planning.jobs import JobsPlan
    from gnnsched.topology import Topology


def output_of(output: Path, name: str) -> Path:
    """The file of the job ``name``: "plan.json" becomes "plan-vision.json"."""
    return output.with_name(f"{output.stem}-{name}{output.suffix}")


def schedule_jobs(
    topology: "Topology",
    jobs_file: Path,
    flows: "Flows",
    chunks_per_server: int,
    scheduler: str,
    policy: "Policy | None",
    samples: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Plan the jobs, write a schedule for each and say how they fare; the command's exit code."""
    from gnnsched.collective.schedule_io import dump_schedule
    from gnnsched.planning.jobs import plan_jobs
    from gnnsched.planning.jobs_file import load_jobs

    jobs = load_jobs(jobs_file, topology)
    files = [None if output is None else output_of(output, job.name) for job in jobs]
    for file in files:
        if file is not None:
            check_output(file, (".json", ".npz"))
    with Progress("planning") as progress:
        progress.say("loading kernels")
        plan = plan_jobs(
            topology, jobs, chunks_per_server, scheduler, policy, samples, seed, flows, progress.say
        )
    for schedule, file in zip(plan.schedules, files):
        if file is not None:
            dump_schedule(schedule, file)
    facts = jobs_facts(plan, scheduler, chunks_per_server)
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    print(_described(plan, facts))
    for file in files:
        if file is not None:
            print(f"written to {file}")
    return 0


def jobs_facts(plan: "JobsPlan", scheduler: str, chunks_per_server: int) -> dict[str, Any]:
    """What ``schedule --jobs --json`` prints; times in seconds, each job's from its ready time on."""
    topology = plan.schedules[0].topology
    return {
        "topology": topology.name,
        "scheduler": scheduler,
        "chunks_per_server": chunks_per_server,
        "jobs": [
            {
                "name": job.name,
                "participants": len(job.participants),
                "message_bytes": int(job.message_bytes),
                "ready_s": job.ready_s,
                "done_s": float(done),
                "alone_s": float(alone),
                "sequential_s": float(sequential),
                "blind_s": float(blind),
                "transfers": len(schedule.transfers),
            }
            for job, schedule, done, alone, sequential, blind in zip(
                plan.jobs, plan.schedules, plan.done_s, plan.alone_s, plan.sequential_s, plan.blind_s
            )
        ],
        "makespan_s": plan.makespan_s,
        "mean_done_s": float(plan.done_s.mean()),
        "mean_sequential_s": float(plan.sequential_s.mean()),
        "mean_blind_s": float(plan.blind_s.mean()),
        "fairness": plan.fairness,
        "joint": plan.joint,
        "verified": True,
    }


def _described(plan: "JobsPlan", facts: dict[str, Any]) -> str:
    from gnnsched.topology.units import format_size, format_time

    rows = [
        (
            job["name"],
            str(job["participants"]),
            format_size(job["message_bytes"]),
            format_time(job["ready_s"]),
            *(format_time(job[name]) for name in ("done_s", "alone_s", "sequential_s", "blind_s")),
        )
        for job in facts["jobs"]
    ]
    means = (
        facts["mean_done_s"],
        float(plan.alone_s.mean()),
        facts["mean_sequential_s"],
        facts["mean_blind_s"],
    )
    rows.append(("mean", "", "", "", *map(format_time, means)))
    header = ("job", "servers", "message", "ready", "done in", "alone", "in sequence", "blindly")
    way = "side by side" if facts["joint"] else "one after the other"
    return "\n".join(
        [
            f"{facts['topology']}: {counted(len(rows) - 1, 'AllReduce')} {way}, each verified beside the others",
            "",
            table(header, rows),
            "",
            f"All are done after {format_time(facts['makespan_s'])}; fairness (Jain's index of the slowdowns) "
            f"{facts['fairness']:.3f}.",
        ]
    )
