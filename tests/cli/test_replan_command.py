"""``gnnsched replan``: a new file that verifies, and one line for what cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest

from gnnsched.cli import main
from gnnsched.collective.schedule_io import dump_schedule, load_schedule
from gnnsched.collective.verify import verify
from gnnsched.planning import schedule_with
from gnnsched.topology.formats import dump_topology, load_topology
from gnnsched.topology.generators import bcube


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    network = bcube(3, 1)
    dump_topology(network, tmp_path / "network.json")
    loaded = load_topology(tmp_path / "network.json")
    schedule = schedule_with("greedy_augmented", loaded, 2.0**26, 2, 1).schedule
    dump_schedule(schedule, tmp_path / "plan.json")
    return str(tmp_path / "network.json"), str(tmp_path / "plan.json")


def replan(files: tuple[str, str], *options: str) -> int:
    return main(["replan", *files, "--scheduler", "greedy_augmented", *options])


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_cable_fails_and_then_a_server(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    first, second = str(tmp_path / f"one{suffix}"), str(tmp_path / f"two{suffix}")
    cable = ["--without-link", "server-0", "switch-0-0"]
    assert replan(files, "--at", "1ms", *cable, "-o", first, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["aborted"] > 0
    assert facts["lost"] == []
    assert facts["ratio"] <= 1.15
    network = load_topology(files[0])
    made = load_schedule(first, network)
    assert verify(made).ok
    assert int(made.transfers.lost.sum()) == facts["aborted"]
    again = (files[0], first)
    assert replan(again, "--at", "2ms", "--without-server", "server-4", "--exclude-lost", "-o", second) == 0
    capsys.readouterr()
    assert main(["verify", files[0], second]) == 0
    assert main(["simulate", files[0], second, "--json"]) == 0
    out = capsys.readouterr().out
    facts = json.loads(out[out.index("{") :])
    assert 0.0 < facts["bound_s"] < np.inf
    made = load_schedule(second, network)
    assert [network.node_ids[node] for node in made.lost] == ["server-4"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--at", "1ms"], "nothing fails"),
        (["--at", "soon", "--without-server", "server-0"], "--at"),
        (["--at", "1ms", "--without-server", "server-99"], "--without-server"),
        (["--at", "1ms", "--without-server", "switch-0-0"], "is a switch"),
        (["--at", "1ms", "--without-link", "server-0", "server-1"], "no link"),
        (["--at", "1ms", "--without-server", "server-0"], "--exclude-lost"),
        (
            [
                "--at",
                "1ms",
                "--without-link",
                "server-0",
                "switch-0-0",
                "--without-link",
                "server-0",
                "switch-1-0",
            ],
            "cuts 'server-0' off",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    files: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    word: str,
) -> None:
    output = tmp_path / "new.json"
    assert replan(files, *options, "-o", str(output)) == 2
    said = capsys.readouterr().err
    assert word in said
    assert said.strip().splitlines()[-1].startswith("gnnsched: error:")
    assert not output.exists()


def test_what_is_wrong_before_is_not_replanned(files: tuple[str, str], tmp_path: Path) -> None:
    document = json.loads(Path(files[1]).read_text())
    for column in document["transfers"].values():
        column.pop()
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    options = ["--at", "1ms", "--without-server", "server-0", "-o", str(tmp_path / "new.json")]
    assert replan((files[0], str(broken)), *options) == 2
