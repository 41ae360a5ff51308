import json
import os
from pathlib import Path

import pytest
import torch

from gnnsched.cli import main
from gnnsched.models.policy import Policy
from gnnsched.planning import SCHEDULERS
from gnnsched.topology.formats import dump_topology
from gnnsched.topology.generators import bcube, hub, star
from gnnsched.training.checkpoint import DESCRIPTION, WEIGHTS, save_checkpoint

Captured = pytest.CaptureFixture[str]

ISSUED_KEYS = {
    "topology",
    "servers",
    "switches",
    "participants",
    "message_bytes",
    "chunks",
    "transfers",
    "scheduler",
    "makespan_s",
    "bound_s",
    "lp_bound_s",
    "ratio",
    "algbw_Bps",
    "busbw_Bps",
    "plan_s",
    "samples",
    "seed",
    "verified",
    "schedulers",
}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "bcube_2_1.json"
    dump_topology(bcube(2, 1), path)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_checkpoint(Policy(), tmp_path / "checkpoint", {"seed": 0})
    return tmp_path / "checkpoint"


def one_line(captured_error: str) -> str:
    assert captured_error.startswith("gnnsched: error: ")
    assert captured_error.count("\n") == 1
    return captured_error


def test_schedule_prints_the_agreed_object(
    network: Path, checkpoint: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "plan.json"
    line = f"schedule {network} --checkpoint {checkpoint} -o {out} --message-size 1MiB --chunks-per-server 2 --json"
    assert main([*line.split(), "--samples", "3", "--seed", "4"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) >= ISSUED_KEYS
    counts = {key: facts[key] for key in ("topology", "servers", "switches", "participants", "chunks")}
    assert counts == {"topology": "bcube_2_1", "servers": 4, "switches": 4, "participants": 4, "chunks": 8}
    assert (facts["message_bytes"], facts["samples"], facts["seed"]) == (2**20, 3, 4)
    assert facts["verified"] is True
    # 2 (N-1)/N of the message over two NICs of 100 Gbit/s
    assert facts["bound_s"] == pytest.approx(1.5 * 2**20 / 25e9)
    assert facts["ratio"] == pytest.approx(facts["makespan_s"] / facts["bound_s"])
    assert facts["ratio"] >= 1.0
    assert facts["algbw_Bps"] == pytest.approx(2**20 / facts["makespan_s"])
    assert facts["busbw_Bps"] == pytest.approx(facts["algbw_Bps"] * 1.5)
    assert list(facts["schedulers"]) == list(SCHEDULERS)
    assert all(value >= facts["bound_s"] for value in facts["schedulers"].values())
    assert facts["schedulers"][facts["scheduler"]] == facts["makespan_s"]
    assert facts["scheduler"] in ("policy", "greedy_augmented", "trees_augmented")
    # what was written is the schedule that was described
    assert main(["verify", str(network), str(out)]) == 0
    assert capsys.readouterr().out.startswith("right: AllReduce of 1 MiB among 4 participants")
    assert main(["simulate", str(network), str(out), "--json"]) == 0
    replay = json.loads(capsys.readouterr().out)
    assert replay["makespan_s"] == pytest.approx(facts["makespan_s"], rel=1e-9)
    assert replay["transfers"] == facts["transfers"]


@pytest.mark.parametrize("name", ["ring", "greedy", "policy"])
def test_one_scheduler_reports_only_itself(
    name: str, network: Path, checkpoint: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "plan.npz"
    line = f"schedule {network} --checkpoint {checkpoint} --scheduler {name} -o {out} --samples 2 --json"
    assert main([*line.split(), "--chunks-per-server", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schedulers"] == {name: facts["makespan_s"]}
    assert facts["scheduler"] == name
    assert main(["verify", str(network), str(out)]) == 0


def test_one_server_needs_nothing(tmp_path: Path, capsys: Captured) -> None:
    path, out = tmp_path / "one.json", tmp_path / "plan.json"
    dump_topology(hub(0), path)
    assert main(["schedule", str(path), "--scheduler", "greedy_augmented", "-o", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["transfers"], facts["makespan_s"], facts["bound_s"]) == (0, 0.0, 0.0)
    assert facts["ratio"] is facts["busbw_Bps"] is facts["algbw_Bps"] is None
    assert main(["schedule", str(path), "--scheduler", "ring"]) == 0
    assert "nothing has to be sent" in capsys.readouterr().out
    assert main(["verify", str(path), str(out)]) == 0
    assert main(["simulate", str(path), str(out)]) == 0
    capsys.readouterr()
    assert main(["simulate", str(path), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bottleneck"] is None


def test_the_table_has_units_and_is_sorted(network: Path, checkpoint: Path, capsys: Captured) -> None:
    line = f"schedule {network} --checkpoint {checkpoint} --samples 2 --chunks-per-server 1"
    assert main(line.split()) == 0
    said = capsys.readouterr().out
    assert "AllReduce of 64 MiB in 4 chunks (1 per server)" in said
    rows = [row for row in said.splitlines() if row.split(" ")[0] in SCHEDULERS]
    assert len(rows) == len(SCHEDULERS)
    ratios = [float(row.removeprefix(row.split("  ")[0]).split()[2]) for row in rows]
    assert ratios == sorted(ratios)
    assert sum("*" in row for row in rows) == 1
    assert "(bound: reduce-scatter, all-gather)  4.027 ms          1.0000" in said
    assert "Where the time goes: mostly bandwidth. The bottleneck server-" in said


def test_auto_chunks_climb_the_ladder(network: Path, capsys: Captured) -> None:
    line = f"schedule {network} --scheduler greedy_augmented --message-size 1GiB --json"
    assert main(line.split()) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ratio"] <= 1.005
    assert facts["chunks"] == 4 * facts["chunks_per_server"]


def test_progress_stays_off_the_output(
    network: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnsched.cli.progress.QUIET_S", 0.0)
    monkeypatch.setattr("gnnsched.cli.progress.QUIET_SHARE", 0.0)
    assert main(["schedule", str(network), "--scheduler", "linear", "--samples", "2", "--json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "planning: linear, 1 chunk" in captured.err


def test_plot_is_a_picture(network: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plan.png"
    assert main(["schedule", str(network), "--scheduler", "ring", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_wrong_schedules_are_told_from_unreadable_ones(
    network: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "plan.json"
    assert main(["schedule", str(network), "--scheduler", "ring", "-o", str(out)]) == 0
    right = json.loads(out.read_bytes())
    wrong = {**right, "transfers": {key: column[:-1] for key, column in right["transfers"].items()}}
    out.write_text(json.dumps(wrong))
    capsys.readouterr()
    assert main(["verify", str(network), str(out)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("wrong: chunk ")
    assert "never reaches participant" in captured.out
    assert main(["simulate", str(network), str(out), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the schedule is wrong" in captured.err
    for content in (b"", b"{}", b"[]", out.read_bytes()[:-20], b"\xff\xfe\x00"):
        out.write_bytes(content)
        assert main(["verify", str(network), str(out)]) == 2
        assert str(out) in one_line(capsys.readouterr().err)


def test_a_schedule_of_another_network_is_refused(network: Path, tmp_path: Path, capsys: Captured) -> None:
    out, other = tmp_path / "plan.json", tmp_path / "other.json"
    dump_topology(bcube(2, 1, 5e9), other)
    assert main(["schedule", str(network), "--scheduler", "ring", "-o", str(out)]) == 0
    capsys.readouterr()
    for command in ("verify", "simulate"):
        assert main([command, str(other), str(out)]) == 2
        assert "plan again" in one_line(capsys.readouterr().err)


def test_simulate_names_the_bottleneck(tmp_path: Path, capsys: Captured) -> None:
    path, out = tmp_path / "star.json", tmp_path / "plan.json"
    dump_topology(star([10e9, 10e9, 1e9]), path)
    assert (
        main(["schedule", str(path), "--scheduler", "greedy", "--message-size", "1GB", "-o", str(out)]) == 0
    )
    capsys.readouterr()
    assert main(["simulate", str(path), str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    ends = {facts["bottleneck"]["source"], facts["bottleneck"]["target"]}
    assert ends == {"server-2", "switch-0"}
    assert facts["bottleneck"]["busy_s"] == max(link["busy_s"] for link in facts["links"])
    assert main(["simulate", str(path), str(out)]) == 0
    assert "8 Gbit/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--scheduler rings", "scheduler 'rings': unknown; choose auto or one of policy"),
        ("--scheduler linear --samples 0", "samples: 0 is below 1"),
        ("--scheduler ring --chunks-per-server 0", "chunks per server: 0 is below 1"),
        ("--scheduler ring --message-size 64Mb", "--message-size: size '64Mb' has the unknown unit"),
        ("--scheduler ring --message-size 0", "--message-size: size '0'"),
        ("--scheduler ring --time-limit 0", "time limit: 0.0 s"),
        ("--scheduler ring --time-limit nan", "time limit: nan s"),
        ("--scheduler linear --seed -1", "seed: -1 is negative"),
        ("--scheduler policy --device nonsense", "--device: 'nonsense' is not available"),
        ("--scheduler ring -o plan.xml", "plan.xml: the name must end in .json or .npz"),
        ("--scheduler ring -o absent/plan.json", "no folder absent"),
        ("--scheduler ring --plot plan.pdf", "plan.pdf: the name must end in .png"),
        ("--scheduler policy --checkpoint absent", "absent: no such checkpoint folder"),
    ],
)
def test_bad_values_end_in_one_line(
    options: str, named: str, network: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["schedule", str(network), *options.split()]) == 2
    captured = capsys.readouterr()
    assert named in one_line(captured.err)
    assert captured.out == ""
    assert os.listdir(tmp_path) == [network.name]


def damage(case: str, folder: Path) -> None:
    description = json.loads((folder / DESCRIPTION).read_bytes())
    if case == "foreign":
        (folder / DESCRIPTION).unlink()
    elif case == "other JSON":
        (folder / DESCRIPTION).write_text('{"model": "other"}')
    elif case == "empty":
        (folder / DESCRIPTION).write_bytes(b"")
    elif case == "truncated JSON":
        (folder / DESCRIPTION).write_bytes((folder / DESCRIPTION).read_bytes()[:50])
    elif case == "newer":
        (folder / DESCRIPTION).write_text(json.dumps({**description, "schema_version": 99}))
    elif case == "truncated weights":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    elif case == "no weights":
        (folder / WEIGHTS).unlink()
    elif case == "other size":
        description["architecture"]["width"] *= 2
        (folder / DESCRIPTION).write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("foreign", "no such file"),
        ("other JSON", "not a gnnsched checkpoint"),
        ("empty", "empty"),
        ("truncated JSON", "not JSON"),
        ("newer", "schema version 99 is newer"),
        ("truncated weights", "not a safetensors file"),
        ("no weights", "no such file"),
        ("other size", "do not fit"),
    ],
)
@pytest.mark.parametrize(
    "line", ["schedule NET", "evaluate NET --scheduler policy", "embed NET --logdir LOG"]
)
def test_damaged_checkpoints_end_in_one_line(
    line: str, case: str, named: str, network: Path, checkpoint: Path, tmp_path: Path, capsys: Captured
) -> None:
    damage(case, checkpoint)
    line = line.replace("NET", str(network)).replace("LOG", str(tmp_path / "log"))
    assert main([*line.split(), "--checkpoint", str(checkpoint)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in one_line(captured.err)
    assert str(checkpoint) in captured.err
    assert not (tmp_path / "log").exists()
