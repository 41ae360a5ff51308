"""Several jobs on one network: hand-made cases, right beside each other, never worse than one after the other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.cli import main
from gnnsched.collective.flows import NO_FLOWS, join_flows, on_links
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.schedule_io import load_schedule
from gnnsched.collective.verify import verify
from gnnsched.planning.jobs import Job, plan_jobs
from gnnsched.planning.jobs_file import load_jobs
from gnnsched.topology import InputError, Topology
from gnnsched.topology.formats import dump_topology, load_topology
from gnnsched.topology.generators import bcube, random_heterogeneous, star

MESSAGE = 2.0**26
NETWORK = star([1e9] * 4, latency=0.0)


def job(name: str, members: list[int], size: float = MESSAGE, ready: float = 0.0) -> Job:
    return Job(name, tuple(int(NETWORK.servers[i]) for i in members), size, ready)


def together(schedules: tuple[Schedule, ...]) -> None:
    """No link is above its bandwidth at any moment at which something begins, by plain counting."""
    flows = join_flows(*(schedule.occupancies() for schedule in schedules))
    topology = schedules[0].topology
    for moment in np.unique(flows.since) + 1e-9 * flows.until.max():
        on = (flows.since <= moment) & (moment < flows.until)
        taken = np.bincount(flows.links[on], flows.rate[on], topology.num_links)
        assert (taken <= topology.bandwidth * (1 + 1e-6)).all()


def test_jobs_that_share_nothing_do_not_hinder_each_other() -> None:
    plan = plan_jobs(NETWORK, [job("a", [0, 1]), job("b", [2, 3])], 2, "greedy_augmented", samples=2)
    np.testing.assert_allclose(plan.done_s, plan.alone_s, rtol=1e-6)
    np.testing.assert_allclose(plan.blind_s, plan.alone_s, rtol=1e-6)
    assert plan.joint
    assert plan.fairness == pytest.approx(1.0)


def test_two_equal_jobs_on_the_same_servers() -> None:
    """One goes first: T and 2 T at best, in whatever order; sharing fairly both would take 2 T."""
    plan = plan_jobs(NETWORK, [job("a", [0, 1]), job("b", [0, 1])], 8, "greedy_augmented", samples=2)
    alone = plan.alone_s[0]
    assert alone == pytest.approx(MESSAGE / 1e9, rel=0.01)
    assert sorted(plan.done_s)[0] == pytest.approx(alone, rel=0.01)
    assert sorted(plan.done_s)[1] == pytest.approx(2 * alone, rel=0.05)


def test_a_job_waits_until_it_is_ready() -> None:
    late = 0.5
    plan = plan_jobs(NETWORK, [job("a", [0, 1]), job("b", [0, 1], ready=late)], 2, "greedy", samples=1)
    assert plan.schedules[1].transfers.start.min() >= late
    assert plan.done_s[1] == pytest.approx(plan.alone_s[1])
    early = replace(plan.schedules[1], ready=plan.schedules[1].ready * 2)  # type: ignore[operator]
    assert not verify(early).ok


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["greedy_augmented", "trees_augmented"]))
def test_right_beside_each_other_and_no_worse_than_in_sequence(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=8)
    jobs = []
    for i in range(int(rng.integers(1, 5))):
        members = rng.permutation(network.participants)[: int(rng.integers(2, 6))]
        ready = float(rng.choice([0.0, rng.uniform(0.0, 0.1)]))
        jobs.append(Job(f"job{i}", tuple(members.tolist()), MESSAGE * 2.0 ** rng.uniform(-3, 2), ready))
    plan = plan_jobs(network, jobs, 2, name, samples=1, seed=seed % 5)
    together(plan.schedules)
    for schedule in plan.schedules:
        assert verify(schedule).ok
        if len(jobs) > 1:
            assert schedule.flows.num_flows > 0
    assert plan.done_s.mean() <= plan.sequential_s.mean() * (1 + 1e-9)
    assert 0.0 < plan.fairness <= 1.0 + 1e-9


def test_a_transfer_moved_into_another_jobs_way_is_found() -> None:
    plan = plan_jobs(NETWORK, [job("a", [0, 1]), job("b", [0, 1])], 1, "greedy", samples=1)
    second = max(plan.schedules, key=lambda schedule: schedule.makespan)
    assert verify(second).ok
    fault = verify(second.delayed(-float(second.transfers.start.min()))).fault
    assert fault is not None
    assert "in-flight flow" in fault


def test_beside_other_traffic() -> None:
    link = np.flatnonzero(NETWORK.link_source == NETWORK.servers[0])
    flows = on_links(link, NETWORK.bandwidth[link] / 2, np.zeros(1), np.array([np.inf]))
    jobs = [job("a", [0, 1]), job("b", [0, 2])]
    beside, alone = (
        plan_jobs(NETWORK, jobs, 2, "greedy_augmented", samples=1, flows=own) for own in (flows, NO_FLOWS)
    )
    together(beside.schedules)
    assert beside.done_s.mean() > 1.2 * alone.done_s.mean()


# Files and the command


def written(folder: Path, content: Any) -> Path:
    file = folder / "jobs.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


GOOD = {"name": "a", "participants": ["server-0", "server-1"], "message_size": "64MiB"}


def test_jobs_of_a_file(tmp_path: Path) -> None:
    jobs = load_jobs(written(tmp_path, {"jobs": [GOOD, {**GOOD, "name": "b", "ready": "3ms"}]}), NETWORK)
    assert [(own.name, own.message_bytes, own.ready_s) for own in jobs] == [
        ("a", 2.0**26, 0.0),
        ("b", 2.0**26, 3e-3),
    ]
    assert jobs[0].participants == tuple(NETWORK.servers[:2])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("[", "jobs.json"),
        ({"jobs": []}, "none given"),
        ({"jobs": [{**GOOD, "size": 1}]}, "size"),
        ({"jobs": [GOOD, GOOD]}, "jobs[1].name"),
        ({"jobs": [{**GOOD, "name": "../x"}]}, "jobs[0].name"),
        ({"jobs": [{**GOOD, "participants": ["server-0"]}]}, "at least two"),
        ({"jobs": [{**GOOD, "participants": ["server-0", "server-0"]}]}, "each once"),
        ({"jobs": [{**GOOD, "participants": ["server-0", "x"]}]}, "participants[1]"),
        ({"jobs": [{**GOOD, "participants": ["server-0", "switch-0"]}]}, "is a switch"),
        ({"jobs": [{**GOOD, "message_size": "much"}]}, "size"),
        ({"jobs": [{**GOOD, "ready": "soon"}]}, "latency"),
    ],
)
def test_bad_jobs_are_refused_in_one_line(tmp_path: Path, content: Any, word: str) -> None:
    with pytest.raises(InputError) as caught:
        load_jobs(written(tmp_path, content), NETWORK)
    assert word in str(caught.value)
    assert "jobs.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def saved(network: Topology, folder: Path) -> Path:
    file = folder / "network.json"
    dump_topology(network, file)
    return file


def test_the_command_writes_a_schedule_for_each_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = bcube(2, 1)
    place = saved(network, tmp_path)
    jobs = written(
        tmp_path, {"jobs": [GOOD, {**GOOD, "name": "b", "participants": ["server-1", "server-3"]}]}
    )
    arguments = ["schedule", str(place), "--jobs", str(jobs), "--scheduler", "greedy_augmented", "--json"]
    assert main([*arguments, "-o", str(tmp_path / "plan.json")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [own["name"] for own in facts["jobs"]] == ["a", "b"]
    assert facts["mean_done_s"] <= facts["mean_sequential_s"] * (1 + 1e-9)
    for name in ("a", "b"):
        schedule = load_schedule(tmp_path / f"plan-{name}.json", load_topology(place))
        assert verify(schedule).ok
    assert main([*arguments, "--participants", "server-0"]) == 2
    assert "--participants" in capsys.readouterr().err
