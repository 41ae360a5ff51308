"""``gnnsched partition``: what the commands write and say, and one line about what they cannot use."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from gnnsched.cli import main
from gnnsched.partition import tuning
from gnnsched.partition.cases import load_world
from gnnsched.partition.checkpoint import PARTITION, load_partition_policy
from gnnsched.partition.evaluation import Runner, evaluate, policy_names
from gnnsched.partition.job_times import job_times
from gnnsched.partition.network import PartitionConfig, PartitionPolicy
from gnnsched.partition.profile_file import read_profile
from gnnsched.partition.profiler import profile_model
from gnnsched.partition.trainer import PartitionTrainer
from gnnsched.topology.formats import dump_topology
from gnnsched.topology.generators import bcube
from gnnsched.training.checkpoint import describe_checkpoint, save_checkpoint

Captured = pytest.CaptureFixture[str]

NODE = "node{} -- {} -- forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}\n"
# Jobs of 50 steps of 80 and 180 ms, at arrivals 1 s apart.
JOBS = {
    "short": NODE.format(1, "Linear(8, 8)", 30, 10, 1e6, 4e6)
    + NODE.format(2, "ReLU()", 20, 20, 1e6, 0)
    + "\tnode1 -- node2\n",
    "long": NODE.format(1, "Input0", 0, 0, 1e6, 0)
    + NODE.format(2, "Conv2d(3, 64)", 60, 120, 5e6, 2e6)
    + "\tnode1 -- node2\n",
}


def partition(*line: object) -> int:
    return main(["partition", *map(str, line)])


def assert_one_line(capsys: Captured, *parts: str) -> None:
    """Nothing on stdout, one line on stderr that names the parts."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gnnsched: error: ")
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder of two profiles, and a licence that is none."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name, text in JOBS.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "LICENSE-somebody.txt").write_text("Permission is granted")
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    policy = PartitionPolicy(PartitionConfig(width=8, graph_width=4, rounds=1))
    save_checkpoint(policy, tmp_path / "checkpoint", {}, PARTITION)
    return tmp_path / "checkpoint"


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few episodes and one round of tuning: what is tested is the commands around them."""
    plain = PartitionTrainer.__init__

    def small(self: PartitionTrainer, worlds: Any, rules: Any, config: Any, *rest: Any, **named: Any) -> None:
        config = replace(
            config,
            episodes=4,
            steps=8,
            epochs=1,
            validation_episodes=1,
            validation_every=3,
            expert_share=0.25,
            futures=2,
            ahead=2,
        )
        plain(self, worlds, rules, config, *rest, **named)

    monkeypatch.setattr(PartitionTrainer, "__init__", small)
    monkeypatch.setattr(tuning, "EPISODES", 1)
    monkeypatch.setattr(tuning, "PASSES", 1)


# Profiles


def test_profile_writes_a_profile_and_what_it_was_made_with(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "job.txt"
    assert partition("profile", "squeezenet", "-o", path, "--batch", 2, "--roofline", "a100") == 0
    said = capsys.readouterr().out
    profile, about = profile_model("squeezenet", "a100", 2)
    found = read_profile(path)
    assert found.op_names == profile.op_names
    np.testing.assert_array_equal(found.edges, profile.edges)
    np.testing.assert_allclose(found.forward_time, profile.forward_time, atol=1e-9)
    assert json.loads((tmp_path / "job.txt.json").read_text()) == about
    assert about["batch"] == 2
    for part in (f"{2 * found.num_ops} ops", f"{2 * len(found.edges) + 1} edges", str(path)):
        assert part in said
    assert sorted(os.listdir(tmp_path)) == ["job.txt", "job.txt.json"]


def test_profile_measures(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    assert partition("profile", "squeezenet", "-o", path, "--batch", 1, "--measure") == 0
    assert json.loads((tmp_path / "job.txt.json").read_text())["measured_on"] == "cpu"
    assert read_profile(path).forward_time.sum() > 0.0


# Times of single jobs


@pytest.mark.parametrize("holding", ["faithful", "exact"])
def test_simulate_writes_a_row_per_job_and_degree(
    jobs: Path, holding: Any, tmp_path: Path, capsys: Captured
) -> None:
    line = ("simulate", "--profiles", jobs, "--cluster", "ramp8", "--holding", holding)
    path = tmp_path / "rows.json"
    assert partition(*line, "--json", path) == 0
    said = capsys.readouterr().out
    rows = json.loads(path.read_text())
    assert rows == job_times(load_world("ramp8", jobs, holding=holding))
    assert [(row["model"], row["degree"]) for row in rows] == [
        (name, degree) for name in ("long", "short") for degree in (1, 2, 4, 8)
    ]
    assert rows[0]["jct_s"] == pytest.approx(50 * 0.18)
    assert rows[4]["speedup"] == pytest.approx(1.0)
    for row in rows:
        assert f"{row['speedup']:.2f}" in said
    assert "ramp8" in said
    assert holding in said
    assert partition(*line, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == rows


def test_simulate_in_the_units_of_the_published_program(jobs: Path, capsys: Captured) -> None:
    line = ("simulate", "--profiles", jobs, "--cluster", "ramp8", "--json", "-")
    assert partition(*line) == 0
    seconds = json.loads(capsys.readouterr().out)
    assert partition(*line, "--ddls-units") == 0
    units = json.loads(capsys.readouterr().out)
    assert units[0]["jct_s"] == pytest.approx(1000 * seconds[0]["jct_s"])
    # Next to computing a thousand times as long, communication hardly counts.
    assert units[3]["speedup"] > seconds[3]["speedup"]


def test_simulate_on_a_topology(jobs: Path, tmp_path: Path, capsys: Captured) -> None:
    network = tmp_path / "net.json"
    dump_topology(bcube(2, 1), network)
    assert partition("simulate", "--profiles", jobs, "--cluster", network, "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["degree"] for row in rows] == [1, 2, 4] * 2
    assert all(row["workers"] == row["degree"] for row in rows if row["model"] == "short")


def test_simulate_with_a_multiple_of_the_bound(jobs: Path, tmp_path: Path, capsys: Captured) -> None:
    """Communication by plans lies between once the bound and thrice; what the job does at degree 1 stays."""
    network = tmp_path / "net.json"
    dump_topology(bcube(2, 1, bandwidth=1e9), network)
    times = []
    for factor in ("1", None, "3"):
        line = ("simulate", "--profiles", jobs, "--cluster", network, "--json", "-")
        assert partition(*line, *(("--bound-factor", factor) if factor else ())) == 0
        times.append([row["jct_s"] for row in json.loads(capsys.readouterr().out)])
    least, planned, most = (np.array(own) for own in times)
    alone = [0, 3]
    np.testing.assert_allclose(least[alone], most[alone])
    others = [1, 2, 4, 5]
    assert (least[others] <= planned[others] * (1 + 1e-9)).all()
    assert (planned[others] < most[others]).all()


# Policies compared


def test_evaluate_writes_rows_and_a_plot(
    jobs: Path, checkpoint: Path, tmp_path: Path, capsys: Captured
) -> None:
    out, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    line = ["evaluate", "--profiles", jobs, "--cluster", "ramp8", "--checkpoint", checkpoint, "--seeds", 2]
    line += ["--distributions", "B", "D", "--policies", "max", "learned", "rule"]
    assert partition(*line, "--json", out, "--plot", plot) == 0
    said = capsys.readouterr().out
    rows = json.loads(out.read_text())
    runner = Runner(load_world("ramp8", jobs), load_partition_policy(checkpoint))
    wanted = evaluate(runner, ["max", "learned", "rule"], ["B", "D"], 2)
    assert rows == [row.as_dict() for row in wanted]
    assert [(row["distribution"], row["policy"], row["seed"]) for row in rows] == [
        (name, policy, seed) for name in "BD" for policy in ("max", "learned", "rule") for seed in range(2)
    ]
    for row in rows:
        assert set(row) >= {
            "policy",
            "distribution",
            "seed",
            "blocking_rate",
            "acceptance",
            "mean_jct",
            "mean_speedup",
            "throughput",
        }
        assert row["blocking_rate"] + row["acceptance"] == pytest.approx(1.0)
        assert 0.0 < row["blocking_rate"] < 1.0
    mean = np.mean(
        [row["blocking_rate"] for row in rows if (row["policy"], row["distribution"]) == ("max", "B")]
    )
    assert f"{mean:.3f}" in said
    assert "2 episodes" in said
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_evaluate_compares_all_policies_unless_told(jobs: Path, checkpoint: Path, capsys: Captured) -> None:
    line = ("evaluate", "--profiles", jobs, "--cluster", "ramp8", "--checkpoint", checkpoint)
    assert partition(*line, "--seeds", 1, "--distributions", "C", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == policy_names(load_world("ramp8", jobs))
    # "none" splits nothing, and "sip_ml" up to 8 ways, which is the whole cluster.
    rates = {row["policy"]: row["blocking_rate"] for row in rows}
    assert rates["none"] == rates["constant_1"]
    assert rates["sip_ml"] == rates["constant_8"] == rates["max"]


def test_evaluate_needs_no_checkpoint_for_other_policies(
    jobs: Path, tmp_path: Path, capsys: Captured
) -> None:
    line = ("evaluate", "--profiles", jobs, "--cluster", "ramp8", "--policies", "acceptable", "constant_4")
    assert partition(*line, "--seeds", 1, "--checkpoint", tmp_path / "nowhere") == 0
    said = capsys.readouterr().out
    assert "acceptable" in said
    assert "constant_4" in said


# Training


def train(jobs: Path, out: Path, *options: object) -> int:
    return partition("train", "--profiles", jobs, "--cluster", "ramp8", "-o", out, *options)


def test_a_run_leaves_a_checkpoint_and_goes_on(jobs: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert train(jobs, out, "--iterations", 2, "--seed", 3) == 0
    assert f"checkpoint written to {out}" in capsys.readouterr().out
    about = describe_checkpoint(out, PARTITION)
    (world,) = about["training_set"]
    assert (world["cluster"], world["models"]) == ("ramp8", ["long", "short"])
    assert (world["holding"], world["profile_time_unit_s"]) == ("faithful", 1e-3)
    assert about["settings"]["iterations"] == 2
    assert (about["seed"], about["iterations"], about["steps"]) == (3, 2, 2 * 4 * 8)
    assert 0.0 < about["metrics"]["validation/blocking_rate"] < 1.0
    assert load_partition_policy(out).config == PartitionConfig()
    assert any(name.startswith("events") for name in os.listdir(out / "tensorboard"))

    assert train(jobs, out, "--iterations", 2, "--seed", 3, "--resume") == 0
    assert "already trained" in capsys.readouterr().out
    assert train(jobs, out, "--iterations", 5, "--seed", 3, "--resume") == 0
    later = describe_checkpoint(out, PARTITION)
    # The last iteration judges decisions five arrivals on, in four episodes.
    assert (later["iterations"], later["steps"]) == (5, 4 * 4 * 8 + 4 * 5)
    capsys.readouterr()
    assert train(jobs, out, "--iterations", 9, "--seed", 4, "--resume") == 2
    assert_one_line(capsys, str(out), "trained with seed 3")
    # Nor with other jobs, another way of holding workers, or in other units.
    for options in (("--holding", "exact"), ("--ddls-units",), ("--shipped",)):
        assert train(jobs, out, "--iterations", 9, "--seed", 3, "--resume", *options) == 2
        assert_one_line(capsys, str(out), "trained on another training set")
    assert describe_checkpoint(out, PARTITION) == later
    # What was trained can be evaluated.
    line = (
        "evaluate",
        "--profiles",
        jobs,
        "--cluster",
        "ramp8",
        "--checkpoint",
        out,
        "--policies",
        "learned",
    )
    assert partition(*line, "--seeds", 1, "--distributions", "A") == 0


def test_an_interrupted_run_goes_on_exactly(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before, at and after a validation, and where expert iteration begins with the best policy so far."""
    assert train(jobs, tmp_path / "whole", "--iterations", 12) == 0
    plain = PartitionTrainer.update
    for moment in (2, 3, 8, 10):
        out = tmp_path / f"cut_{moment}"

        def interrupted(self: PartitionTrainer, at: int = moment) -> dict[str, float]:
            if self.iteration == at - 1:
                os.kill(os.getpid(), signal.SIGINT)
            return plain(self)

        with monkeypatch.context() as patch:
            patch.setattr(PartitionTrainer, "update", interrupted)
            assert train(jobs, out, "--iterations", 12) == 130
        assert describe_checkpoint(out, PARTITION)["iterations"] == moment
        assert 0.0 < describe_checkpoint(out, PARTITION)["metrics"]["validation/blocking_rate"] < 1.0
        assert train(jobs, out, "--iterations", 12, "--resume") == 0
        for name in ("policy.safetensors", "trainer.safetensors"):
            one, other = (load((tmp_path / run / name).read_bytes()) for run in ("whole", f"cut_{moment}"))
            counters = one.pop("counters", None), other.pop("counters", None)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one), (moment, name)
            if counters[0] is not None and counters[1] is not None:
                # All but the seconds that it took.
                assert [counters[0][i] for i in (0, 2, 3)] == [counters[1][i] for i in (0, 2, 3)]
        found = [describe_checkpoint(tmp_path / run, PARTITION) for run in ("whole", f"cut_{moment}")]
        assert found[0]["metrics"] == found[1]["metrics"]


def test_progress_tells_no_rate_before_one_is_known(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("gnnsched.cli.progress.Progress.step", lambda self, text: told.append(text))
    assert train(jobs, tmp_path / "run", "--iterations", 4) == 0
    # Validation comes after every third iteration.
    assert told[-4:-2] == ["25%", "50%"]
    assert told[-2].startswith("75%, blocking rate on validation arrivals 0.")


def test_what_cannot_be_trained_is_found_before_a_cluster_is_planned_for(
    jobs: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr("gnnsched.partition.world.make_world", refuse)
    network = tmp_path / "net.json"
    dump_topology(bcube(2, 1), network)
    (tmp_path / "file").write_text("in the way")
    line = ("train", "--profiles", jobs, "--iterations", 1, "--cluster", network)
    out = tmp_path / "run"
    for more, named in (
        (("nowhere.json", "-o", out), "no such file"),
        (("-o", tmp_path / "file" / "run"), "cannot be made"),
        (("-o", out, "--resume"), "no such checkpoint folder"),
    ):
        assert partition(*line, *more) == 2
        assert_one_line(capsys, named)
    assert not out.exists()


def test_every_cluster_is_combined_with_every_set_of_jobs(jobs: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    other = tmp_path / "other"
    other.mkdir()
    (other / "only.txt").write_text(JOBS["long"])
    line = ("train", "--profiles", jobs, other, "--cluster", "ramp8", "ramp16", "--holding", "both")
    assert partition(*line, "--iterations", 1, "-o", out, "--logdir", log) == 0
    about = describe_checkpoint(out, PARTITION)["training_set"]
    found = [(world["cluster"], len(world["models"]), world["holding"]) for world in about]
    assert found == [
        (cluster, models, holding)
        for cluster in ("ramp8", "ramp16")
        for models in (2, 1)
        for holding in ("faithful", "exact")
    ]
    # Jobs without side blocks are held alike in both ways.
    assert len({world["fingerprint"] for world in about}) == 4
    assert any(name.startswith("events") for name in os.listdir(log))


def test_a_topology_is_trained_on_once_however_jobs_are_held(jobs: Path, tmp_path: Path) -> None:
    """Jobs keep to one block there: both ways of holding are one."""
    pair = tmp_path / "pair.json"
    assert main(["topology", "generate", "hypercube", "--dim", "1", "-o", str(pair)]) == 0
    line = ("train", "--profiles", jobs, "--cluster", "ramp8", pair, "--holding", "both")
    assert partition(*line, "--iterations", 1, "-o", tmp_path / "run") == 0
    about = describe_checkpoint(tmp_path / "run", PARTITION)["training_set"]
    assert [world["holding"] for world in about] == ["faithful", "exact", "exact"]


def test_nothing_to_resume_is_one_line(jobs: Path, tmp_path: Path, capsys: Captured) -> None:
    assert train(jobs, tmp_path / "run", "--iterations", 2, "--resume") == 2
    assert_one_line(capsys, str(tmp_path / "run"), "no such checkpoint folder")
    assert not (tmp_path / "run").exists()


# Refusals

BAD_LINES = [
    ("evaluate --policies max maxx --json OUT.json", ("policy 'maxx'", "did you mean max")),
    ("evaluate --cluster ramp31 --json OUT.json", ("cluster 'ramp31'", "ramp32")),
    ("evaluate --cluster nowhere.json --json OUT.json", ("cluster 'nowhere.json'", "no such file")),
    ("evaluate --profiles EMPTY --json OUT.json", ("empty", "no profile (.txt) in it")),
    ("evaluate --profiles nowhere --json OUT.json", ("nowhere", "no such folder")),
    ("evaluate --profiles BAD --json OUT.json", ("bad.txt: line 2: node2: activation_size is missing",)),
    ("evaluate --seeds 0 --json OUT.json", ("--seeds: 0",)),
    ("evaluate --seeds -3 --plot OUT.png", ("--seeds: -3",)),
    ("evaluate --json OUT.txt", ("out.txt", ".json")),
    ("evaluate --plot OUT.jpg", ("out.jpg", ".png")),
    ("evaluate --plot absent/OUT.png", ("no folder",)),
    ("evaluate --policies learned --checkpoint EMPTY --json OUT.json", ("checkpoint.json", "no such file")),
    ("simulate --cluster BAD/bad.txt", ("bad.txt",)),
    ("simulate --cluster ramp0 --json OUT.json", ("cluster 'ramp0'",)),
    ("simulate --bound-factor 1.1 --json OUT.json", ("cluster ramp32", "drop the bound factor")),
    ("evaluate --cluster BAD/bad.txt --bound-factor 0.9 --json OUT.json", ("bound factor: 0.9",)),
    ("train --cluster BAD/bad.txt --bound-factor nan -o OUT", ("bound factor: nan",)),
    ("train --expert-share 1.5 -o OUT", ("--expert-share: 1.5", "0 ... 1")),
    ("simulate --profiles EMPTY --json OUT.json", ("no profile (.txt) in it",)),
    ("simulate --profiles BAD --json OUT.json", ("bad.txt: line 2",)),
    ("simulate --json OUT.csv", ("out.csv", ".json")),
    ("train --iterations 0 -o OUT", ("--iterations: 0",)),
    ("train --minutes -1 -o OUT", ("--minutes: -1",)),
    ("train --iterations 1 --seed -1 -o OUT", ("--seed: -1",)),
    ("train --iterations 1 --seed 18446744073709551616 -o OUT", ("--seed: 18446744073709551616",)),
    ("train --iterations 1 --device nothing -o OUT", ("--device: 'nothing'",)),
    ("train --iterations 1 --device meta -o OUT", ("--device: 'meta'",)),
    ("simulate --profiles " + 300 * "x", ("no such folder",)),
    ("simulate --cluster " + 300 * "x", ("no such file",)),
    ("simulate --cluster ramp" + 5000 * "1", ("no such file",)),
    ("profile alexnet --measure --batch 1000000 -o OUT.txt", ("batch 1000000", "give fewer")),
    ("train --iterations 1 -o BAD/bad.txt", ("bad.txt", "cannot be made")),
    ("profile alexnett -o OUT.txt", ("'alexnett'", "did you mean alexnet")),
    ("profile alexnet -o OUT.json", ("out.json", ".txt")),
    ("profile alexnet --roofline tpu -o OUT.txt", ("device 'tpu'",)),
    ("profile alexnet --batch 0 -o OUT.txt", ("batch 0",)),
]


@pytest.mark.parametrize(("line", "named"), BAD_LINES, ids=[line[:60] for line, _ in BAD_LINES])
def test_bad_input_ends_in_one_line_and_leaves_nothing(
    line: str, named: tuple[str, ...], tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    second = NODE.format(2, "ReLU()", 1, 1, 1, 1).replace("activation_size=1, ", "")
    (tmp_path / "bad" / "bad.txt").write_text(NODE.format(1, "Linear()", 1, 1, 1, 1) + second)
    places = {"OUT": "out", "EMPTY": "empty", "BAD": "bad"}
    for word, place in places.items():
        line = line.replace(word, str(tmp_path / place))
    line = line.replace(f"absent/{tmp_path}", f"{tmp_path}/absent")
    assert partition(*line.split()) == 2
    assert_one_line(capsys, *named)
    assert sorted(os.listdir(tmp_path)) == ["bad", "empty"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize(
    "line", [[], ["evaluat"], ["evaluate", "--distributions", "E"], ["train"], ["profile", "alexnet"]]
)
def test_usage_errors_exit_with_2(line: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        partition(*line)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""
