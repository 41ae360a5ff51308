import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from gnnsched.cli import main
from gnnsched.models.policy import Policy
from gnnsched.planning import schedule_with
from gnnsched.report.embeddings import HEADER, MOMENTS, embeddings_at, in_flight, write_embeddings
from gnnsched.topology import InputError, Topology
from gnnsched.topology.formats import dump_topology
from gnnsched.topology.generators import bcube, hub, star
from gnnsched.training.checkpoint import save_checkpoint


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(0)
    return Policy().eval()


def test_what_is_in_flight_in_closed_form() -> None:
    """Two servers, a chunk each: one transfer per direction at any time, half of it left after a quarter."""
    schedule = schedule_with("ring", hub(1, 1e9, latency=0.0), 1e8, 1).schedule
    for percent, phase in ((25, 0), (75, 1)):
        now, flows = in_flight(schedule, schedule.makespan * percent / 100)
        assert schedule.transfers.phase[now].tolist() == [phase, phase]
        assert sorted(flows.links.tolist()) == [0, 1]
        assert flows.start.tolist() == [0, 1, 2]
        np.testing.assert_allclose(flows.rate, 1e9)
        np.testing.assert_allclose(flows.until, 0.025)


@pytest.mark.parametrize("percent", MOMENTS)
def test_flows_never_exceed_the_links(percent: int) -> None:
    schedule = schedule_with("greedy_augmented", star([4e9, 2e9, 1e9, 1e9], latency=0.0), 1e8, 2).schedule
    _, flows = in_flight(schedule, schedule.makespan * percent / 100)
    assert len(flows.rate) > 0
    owner = np.repeat(np.arange(len(flows.rate)), np.diff(flows.start))
    taken = np.bincount(flows.links, flows.rate[owner], schedule.topology.num_links)
    assert (taken <= schedule.topology.bandwidth * (1 + 1e-9)).all()


def test_every_node_and_flow_has_a_row(policy: Policy) -> None:
    schedule = schedule_with("policy", bcube(3, 1), 1e8, 2, 1, 0, policy).schedule
    rows = list(embeddings_at(policy, schedule, 2, 60))
    kinds = [kind for kind, _, _ in rows]
    flows = len(in_flight(schedule, 0.6 * schedule.makespan)[0])
    assert flows > 0
    assert kinds == ["server"] * 9 + ["switch"] * 6 + ["flow"] * flows
    assert all(vector.shape == (policy.config.width,) for _, vector, _ in rows)
    cells = {column: [row[i] for _, _, row in rows] for i, column in enumerate(HEADER)}
    assert set(cells["topology"]) == {"bcube_3_1"}
    assert cells["kind"] == kinds
    assert cells["id"][:9] == [f"server-{i}" for i in range(9)]
    assert cells["degree"][:9] == ["2"] * 9
    assert cells["degree"][9:15] == ["3"] * 6
    assert cells["bandwidth"][0] == "200 Gbit/s"
    assert set(cells["phase"]) == {"broadcast"}


def test_flows_move_the_embeddings(policy: Policy) -> None:
    """The same server at two moments differs, because other traffic is in flight."""
    schedule = schedule_with("policy", bcube(2, 1), 1e8, 2, 1, 0, policy).schedule
    early, late = (next(iter(embeddings_at(policy, schedule, 2, percent)))[1] for percent in (10, 85))
    assert np.abs(early - late).max() > 1e-6


def test_ids_with_tabs_and_line_ends_stay_one_cell(policy: Policy) -> None:
    network = Topology.from_arrays(
        "odd\tname", ["a\tb", "c\nd"], [False, False], [0, 1], [1, 0], [1e9] * 2, [0.0] * 2
    )
    schedule = schedule_with("ring", network, 1e6, 1).schedule
    for _, _, row in embeddings_at(policy, schedule, 1, 10):
        assert len(row) == len(HEADER)
        assert not any("\t" in cell or "\n" in cell for cell in row)


def test_kinds_that_do_not_occur_have_no_entry(policy: Policy, tmp_path: Path) -> None:
    points = write_embeddings(policy, [hub(2)], tmp_path, 1e8, 1)
    assert {kind for kind, _ in points} == {"server", "flow"}
    assert {step for _, step in points} == set(MOMENTS)


def test_a_place_that_cannot_be_written_to(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    with pytest.raises(InputError, match="choose another folder"):
        write_embeddings(policy, [hub(1)], tmp_path / "log", 1e8, 1)


@contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """A TensorBoard of its own on a free port of this machine; its address."""
    beside = Path(sys.executable).with_name("tensorboard")
    executable = str(beside) if beside.exists() else shutil.which("tensorboard")
    if executable is None:
        pytest.skip("no tensorboard executable is installed")
    said = logdir.parent / "tensorboard.log"
    with said.open("wb") as stream:
        server = subprocess.Popen(
            [executable, "--logdir", logdir, "--host", "127.0.0.1", "--port", "0", "--load_fast=false"],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        while not (found := re.search(r"http://\S+?:\d+/", said.read_text(errors="replace"))):
            assert server.poll() is None, said.read_text(errors="replace")
            time.sleep(0.1)
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def fetched(address: str, route: str, **query: str) -> bytes:
    words = "&".join(f"{key}={quote(value)}" for key, value in query.items())
    with urlopen(f"{address}data/plugin/projector/{route}?{words}", timeout=60) as answer:
        content: bytes = answer.read()
    return content


def test_the_projector_serves_what_was_written(
    policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two networks, three tags at four steps: twelve entries, each with as many points as were counted."""
    networks = [bcube(2, 1), star([1e9, 2e9, 4e9])]
    files = [tmp_path / f"{network.name}.json" for network in networks]
    for network, file in zip(networks, files):
        dump_topology(network, file)
    save_checkpoint(policy, tmp_path / "checkpoint", {})
    log = tmp_path / "log"
    line = ["embed", *map(str, files), "--checkpoint", str(tmp_path / "checkpoint"), "--logdir", str(log)]
    assert main([*line, "--chunks-per-server", "2"]) == 0
    told = re.findall(r"^(\w+) at (\d+) % of the schedule: (\d+) points?$", capsys.readouterr().out, re.M)
    counts = {f"{kind}:{int(step):05d}": int(points) for kind, step, points in told}
    assert len(counts) == 3 * len(MOMENTS)
    assert all(counts[f"server:{step:05d}"] == 7 for step in MOMENTS)
    assert all(counts[f"switch:{step:05d}"] == 5 for step in MOMENTS)
    assert (log / "projector_config.pbtxt").read_text().count("embeddings {") == len(counts)
    with tensorboard(log) as address:
        assert json.loads(fetched(address, "runs")) == ["."]
        shapes = {
            entry["tensorName"]: entry["tensorShape"]
            for entry in json.loads(fetched(address, "info", run="."))["embeddings"]
        }
        assert shapes == {name: [points, policy.config.width] for name, points in counts.items()}
        for name, points in counts.items():
            tensor = np.frombuffer(fetched(address, "tensor", run=".", name=name), np.float32)
            assert tensor.size == points * policy.config.width
            assert np.isfinite(tensor).all()
            header, *rows = fetched(address, "metadata", run=".", name=name).decode().splitlines()
            assert header.split("\t") == list(HEADER)
            assert len(rows) == points
            assert {row.split("\t")[1] for row in rows} == {name.partition(":")[0]}
            assert {row.split("\t")[0] for row in rows} <= {network.name for network in networks}
