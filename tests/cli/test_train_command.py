import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gnnsched.cli import main
from gnnsched.planning import load_policy
from gnnsched.topology.formats import dump_topology, load_topology
from gnnsched.topology.generators import bcube, hub
from gnnsched.training.checkpoint import describe_checkpoint
from gnnsched.training.trainer import Trainer

Captured = pytest.CaptureFixture[str]

# The part of a minute that one iteration on the smallest network does not fill.
SHORT = "0.001"


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "bcube_2_1.json"
    dump_topology(bcube(2, 1), path)
    return path


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lessons and rollouts: what is tested is the command around the trainer."""
    plain = Trainer.__init__

    def small(self: Trainer, mixture: Any, config: Any, *rest: Any, **named: Any) -> None:
        from dataclasses import replace

        plain(
            self,
            mixture,
            replace(config, lessons=2, rollouts=2, pool=4, validation_lessons=2),
            *rest,
            **named,
        )

    monkeypatch.setattr(Trainer, "__init__", small)


def train(network: Path, *options: object) -> int:
    return main(["train", "--topologies", str(network), *map(str, options)])


def test_a_run_leaves_a_checkpoint_that_says_what_it_is(
    network: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "run"
    assert train(network, "--minutes", SHORT, "--seed", 3, "-o", out) == 0
    assert f"checkpoint written to {out}" in capsys.readouterr().out
    about = describe_checkpoint(out)
    fingerprint = load_topology(network).fingerprint
    assert about["training_set"] == {"topologies": [{"name": "bcube_2_1", "fingerprint": fingerprint}]}
    assert about["seed"] == 3
    assert about["iterations"] >= 1
    assert about["steps"] > 0
    assert about["wall_time_s"] > 0
    assert about["metrics"]["validation/ratio_best"] >= 0.99
    assert about["machine"]["cpus"] == os.cpu_count()
    assert os.uname().nodename not in json.dumps(about["machine"])
    load_policy(out)
    assert any(name.startswith("events") for name in os.listdir(out / "tensorboard"))


def test_scalars_of_both_levels_are_logged(network: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = tmp_path / "log"
    assert train(network, "--minutes", SHORT, "-o", tmp_path / "run", "--logdir", log) == 0
    events = EventAccumulator(str(log))
    events.Reload()
    names = events.Tags()["scalars"]
    for level in ("low_level", "high_level"):
        assert {f"{level}/{of}" for of in ("loss", "entropy", "approx_kl", "clipfrac")} <= set(names)
    assert {
        "rollout/explained_variance",
        "update/learning_rate",
        "time/steps_per_second",
        "validation/ratio_mean",
        "validation_family/bcube",
    } <= set(names)
    assert events.Scalars("rollout/ratio_mean")[0].step == 1


def test_a_plan_is_pictured_at_each_validation_and_the_nodes_are_embedded(
    network: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    assert train(network, "--minutes", SHORT, "-o", out) == 0
    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    pictures = events.Images("validation/schedule")
    validations = events.Scalars("validation/ratio_mean")
    assert [picture.step for picture in pictures] == [scalar.step for scalar in validations]
    assert pictures[0].encoded_image_string.startswith(b"\x89PNG")
    embedded = out / "tensorboard" / "embeddings"
    assert "tensor_path" in (embedded / "projector_config.pbtxt").read_text()
    rows = next(embedded.glob("*/server/metadata.tsv")).read_text().splitlines()
    assert [row.split("\t")[0] for row in rows[1:]] == ["bcube_2_1"] * 4


def test_resume_goes_on_and_refuses_another_run(network: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    assert train(network, "--minutes", SHORT, "-o", out) == 0
    first = describe_checkpoint(out)
    assert train(network, "--minutes", SHORT, "-o", out, "--resume") == 0
    assert "already trained" in capsys.readouterr().out
    minutes = first["wall_time_s"] / 60 + 0.002
    assert train(network, "--minutes", minutes, "-o", out, "--resume") == 0
    second = describe_checkpoint(out)
    assert second["iterations"] > first["iterations"]
    assert second["wall_time_s"] > first["wall_time_s"]
    capsys.readouterr()
    assert train(network, "--minutes", 1, "-o", out, "--resume", "--seed", 1) == 2
    assert "trained with seed 0" in capsys.readouterr().err
    assert main(["train", "--mixture", "bcube", "-o", str(out), "--resume"]) == 2
    assert "another training set" in capsys.readouterr().err
    (out / "trainer.safetensors").write_bytes(b"cut")
    assert train(network, "--minutes", 1, "-o", out, "--resume") == 2
    assert "cannot be resumed" in capsys.readouterr().err


def test_interrupted_runs_keep_what_they_have(
    network: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    plain = Trainer.update

    def interrupted(self: Trainer) -> dict[str, float]:
        if self.iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Trainer, "update", interrupted)
    assert train(network, "--minutes", 5, "-o", out) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().out.startswith("interrupted: trained")
    # the iteration in which it came was finished, so that the run can go on exactly
    assert describe_checkpoint(out)["iterations"] == 2
    load_policy(out)


def test_a_log_that_fails_does_not_stop_training(network: Path, tmp_path: Path, capsys: Captured) -> None:
    in_the_way = tmp_path / "log"
    in_the_way.write_text("not a folder")
    out = tmp_path / "run"
    assert train(network, "--minutes", SHORT, "-o", out, "--logdir", in_the_way) == 0
    assert capsys.readouterr().err.count("TensorBoard log stopped") == 1
    load_policy(out)


def test_a_log_that_breaks_later_does_not_stop_training(
    network: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", broken)
    assert train(network, "--minutes", SHORT, "-o", tmp_path / "run") == 0
    assert "OSError: disk full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "give one of --topologies and --mixture"),
        ("--topologies NET --mixture bcube", "give one of --topologies and --mixture"),
        ("--mixture bcube --minutes 0", "--minutes: 0.0"),
        ("--mixture bcube --minutes nan", "--minutes: nan"),
        ("--mixture bcube --seed -2", "--seed: -2"),
        ("--mixture bcube --device nonsense", "--device: 'nonsense'"),
        ("--topologies ONE", "one participant"),
        ("--mixture bcube --resume", "no such checkpoint folder"),
    ],
)
def test_bad_runs_end_in_one_line(
    options: str, named: str, network: Path, tmp_path: Path, capsys: Captured
) -> None:
    one = tmp_path / "one.json"
    dump_topology(hub(0), one)
    words = options.replace("NET", str(network)).replace("ONE", str(one)).split()
    assert main(["train", *words, "-o", str(tmp_path / "run")]) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_where_the_checkpoint_should_go(network: Path, capsys: Captured) -> None:
    assert train(network, "-o", network) == 2
    assert "choose another folder" in capsys.readouterr().err
    load_topology(network)


def test_a_run_of_so_many_iterations_is_the_same_each_time(network: Path, tmp_path: Path) -> None:
    """Whatever the clock says."""
    weights = []
    for name in ("one", "two"):
        assert train(network, "--iterations", 3, "--seed", 4, "-o", tmp_path / name) == 0
        assert describe_checkpoint(tmp_path / name)["iterations"] == 3
        weights.append((tmp_path / name / "policy.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert train(network, "--iterations", 3, "--seed", 5, "-o", tmp_path / "other") == 0
    assert (tmp_path / "other" / "policy.safetensors").read_bytes() != weights[0]


@pytest.mark.parametrize("number", ["0", "-3"])
def test_fewer_than_one_iteration_is_refused(
    network: Path, tmp_path: Path, capsys: Captured, number: str
) -> None:
    assert train(network, "--iterations", number, "-o", tmp_path / "run") == 2
    assert "error: --iterations: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
