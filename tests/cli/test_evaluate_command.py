import json
from pathlib import Path
from typing import Any

import pytest

import gnnsched.evaluation
from gnnsched.cli import main
from gnnsched.planning import schedule_with
from gnnsched.topology.formats import dump_topology
from gnnsched.topology.generators import star

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "star_3.json"
    dump_topology(star([1e9] * 3), path)
    return path


def test_rows_go_to_the_file_and_a_table_to_people(network: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "rows.json"
    line = f"evaluate {network} --scheduler greedy ring --chunks-per-server 1 2 --seeds 2 --samples 2 --json {out}"
    assert main(line.split()) == 0
    rows = json.loads(out.read_bytes())
    assert len(rows) == 8
    keys = {
        "topology",
        "scheduler",
        "chunks_per_server",
        "sample_mean_ratio",
        "best_ratio",
        "makespan_s",
        "bound_s",
        "plan_s",
    }
    assert set(rows[0]) >= keys
    assert {(row["scheduler"], row["chunks_per_server"], row["seed"]) for row in rows} == {
        (name, count, seed) for name in ("greedy", "ring") for count in (1, 2) for seed in (0, 1)
    }
    said = capsys.readouterr().out
    assert "star_3, 1 GiB, 1 chunk per server; bound 1.432 s" in said
    assert "mean over 2 seeds" in said
    first = [line.split()[0] for line in said.splitlines() if line.startswith(("greedy", "ring"))]
    assert len(first) == 4


def test_rows_alone_go_to_a_pipe(network: Path, capsys: Captured) -> None:
    line = f"evaluate {network} --scheduler ring --chunks-per-server 1 --seeds 1 --json -"
    assert main(line.split()) == 0
    assert [row["scheduler"] for row in json.loads(capsys.readouterr().out)] == ["ring"]


def test_an_interrupted_evaluation_keeps_its_rows(
    network: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return schedule_with(*arguments)

    monkeypatch.setattr(gnnsched.evaluation, "schedule_with", interrupted)
    out = tmp_path / "rows.json"
    line = f"evaluate {network} --scheduler greedy --chunks-per-server 1 2 4 --seeds 1 --json {out}"
    assert main(line.split()) == 130
    assert len(json.loads(out.read_bytes())) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("gnnsched: interrupted\n")
    assert "greedy" in captured.out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--scheduler rings", "scheduler 'rings': unknown"),
        ("--scheduler ring --seeds 0", "seeds: 0 is below 1"),
        ("--scheduler ring --samples 0", "samples: 0 is below 1"),
        ("--scheduler ring --chunks-per-server 0", "chunks per server: 0 is below 1"),
        ("--scheduler ring --chunks-per-server", "--chunks-per-server: none given"),
        ("--scheduler ring --time-limit -1", "time limit: -1.0 s"),
        ("--scheduler ring --message-size 1Gb", "--message-size: size '1Gb'"),
        ("--scheduler ring --json absent/rows.json", "no folder absent"),
        ("--checkpoint absent", "absent: no such checkpoint folder"),
    ],
)
def test_bad_values_end_in_one_line(
    options: str, named: str, network: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(network), *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert captured.err.count("\n") == 1


def test_no_network_at_all(capsys: Captured) -> None:
    assert main(["evaluate"]) == 2
    assert "name at least one" in capsys.readouterr().err
