"""Checkpoints: the same scores after a round trip, and one line about whatever is wrong with a folder."""

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from lessons import triangle
from safetensors.torch import load, save

from gnnsched.collective.decode.decoder import Instance
from gnnsched.models.policy import Policy, PolicyConfig
from gnnsched.planning import checkpoints, load_policy
from gnnsched.topology import InputError
from gnnsched.topology.generators import dgx
from gnnsched.training.checkpoint import (
    DESCRIPTION,
    SCHEMA_VERSION,
    WEIGHTS,
    describe_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

ABOUT = {"training_set": {"mixture": "default"}, "seed": 3, "metrics": {"validation/ratio_mean": 1.25}}


def some_policy(config: PolicyConfig | None = None) -> Policy:
    torch.manual_seed(1)
    return Policy(config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(some_policy(), tmp_path / "run" / "checkpoint", ABOUT)
    return tmp_path / "run" / "checkpoint"


@pytest.mark.parametrize("config", [None, PolicyConfig(width=8, rounds=0, attention_width=2)])
def test_round_trip_gives_equal_scores(tmp_path: Path, config: PolicyConfig | None) -> None:
    policy = some_policy(config)
    save_checkpoint(policy, tmp_path, {})
    loaded = load_checkpoint(tmp_path)
    assert loaded.config == policy.config
    assert not loaded.training
    for network in (triangle(), dgx(2, 3)):
        instance = Instance(network, 2.0**20, 2)
        for mine, theirs in zip(policy.scores(instance), loaded.scores(instance)):
            np.testing.assert_array_equal(mine, theirs)


def test_one_from_before_the_last_features_came_takes_no_notice_of_them(folder: Path) -> None:
    """Its weights are narrower; today's policy has weight 0 where they end."""
    whole = load_checkpoint(folder)
    weights = {name: value.clone() for name, value in whole.state_dict().items()}
    description = json.loads((folder / DESCRIPTION).read_text())
    cut = {
        "node": ["encoder.node_input.0.weight"],
        "edge": ["encoder.edge_input.0.weight"],
        "path": ["path_head.0.weight", "chunk_head.0.weight"],
    }
    for sort, layers in cut.items():
        description["features"][sort].pop()
        for layer in layers:
            weights[layer] = weights[layer][:, :-1].contiguous()
    (folder / DESCRIPTION).write_text(json.dumps(description))
    (folder / WEIGHTS).write_bytes(save(weights))
    old = load_checkpoint(folder).state_dict()
    for layers in cut.values():
        for layer in layers:
            assert not old[layer][:, -1].any()
            torch.testing.assert_close(old[layer][:, :-1], whole.state_dict()[layer][:, :-1])


def test_description_says_what_it_is(folder: Path) -> None:
    description = describe_checkpoint(folder)
    assert description["schema_version"] == SCHEMA_VERSION
    assert description["architecture"] == asdict(PolicyConfig())
    assert set(description["features"]) >= {"node", "edge", "path", "chunk"}
    assert {"gnnsched", "torch"} <= set(description["versions"])
    for key, value in ABOUT.items():
        assert description[key] == value
    assert sorted(path.name for path in folder.iterdir()) == sorted([DESCRIPTION, WEIGHTS])


def test_saving_again_replaces_and_is_the_same_byte_for_byte(folder: Path) -> None:
    before = [(folder / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)]
    save_checkpoint(some_policy(), folder, ABOUT)
    assert [(folder / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)] == before


def edited(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        description = json.loads((folder / DESCRIPTION).read_text())
        change(description)
        (folder / DESCRIPTION).write_text(json.dumps(description))

    return spoil


def architecture(**sizes: object) -> Callable[[Path], None]:
    return edited(lambda d: d["architecture"].update(sizes))


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str, share: float) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return spoil


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load((folder / WEIGHTS).read_bytes())
        change(tensors)
        (folder / WEIGHTS).write_bytes(save(tensors))

    return spoil


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


# What is spoilt, the file that the message names, and a word of the message.
SPOILT = {
    "no description": (lambda folder: (folder / DESCRIPTION).unlink(), DESCRIPTION, "no such file"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS, "no such file"),
    "empty description": (written(DESCRIPTION, b""), DESCRIPTION, "empty"),
    "empty weights": (written(WEIGHTS, b""), WEIGHTS, "empty"),
    "truncated description": (cut(DESCRIPTION, 0.5), DESCRIPTION, "not JSON"),
    "truncated weights": (cut(WEIGHTS, 0.5), WEIGHTS, "truncated"),
    "weights cut in the header": (cut(WEIGHTS, 0.01), WEIGHTS, "truncated"),
    "weights short of a byte": (cut(WEIGHTS, 0.99999), WEIGHTS, "truncated"),
    "weights of another kind": (
        written(WEIGHTS, b"PK\x03\x04" + bytes(200)),
        WEIGHTS,
        "not a safetensors file",
    ),
    "description in another encoding": (written(DESCRIPTION, b"\xff\xfe{"), DESCRIPTION, "not JSON"),
    "description without end": (written(DESCRIPTION, b"[" * 200_000), DESCRIPTION, "not JSON"),
    "a list": (written(DESCRIPTION, b"[1]"), DESCRIPTION, "not a gnnsched checkpoint"),
    "somebody else's": (
        written(DESCRIPTION, b'{"model_type": "bert"}'),
        DESCRIPTION,
        "not a gnnsched checkpoint",
    ),
    "newer": (edited(lambda d: d.update(schema_version=SCHEMA_VERSION + 1)), DESCRIPTION, "newer"),
    "no version": (edited(lambda d: d.pop("schema_version")), DESCRIPTION, "schema_version"),
    "other features": (edited(lambda d: d["features"]["node"].pop(0)), DESCRIPTION, "other features"),
    "fewer of a sort that is not added to": (
        edited(lambda d: d["features"]["chunk"].pop()),
        DESCRIPTION,
        "other features",
    ),
    "fewer features than weights": (edited(lambda d: d["features"]["node"].pop()), WEIGHTS, "do not fit"),
    "features in another order": (
        edited(lambda d: d["features"]["chunk"].reverse()),
        DESCRIPTION,
        "other features",
    ),
    "no features": (edited(lambda d: d.pop("features")), DESCRIPTION, "other features"),
    "no architecture": (edited(lambda d: d.pop("architecture")), DESCRIPTION, "architecture"),
    "architecture of unknown parts": (architecture(heads=4), DESCRIPTION, "architecture"),
    "architecture in words": (architecture(width="wide"), DESCRIPTION, "architecture"),
    "negative width": (architecture(width=-1), DESCRIPTION, "architecture"),
    "architecture as a list": (edited(lambda d: d.update(architecture=[32])), DESCRIPTION, "architecture"),
    "other width": (architecture(width=16), WEIGHTS, "do not fit"),
    "more rounds": (architecture(rounds=4), WEIGHTS, "do not fit"),
    "fewer rounds": (architecture(rounds=2), WEIGHTS, "do not fit"),
    "a tensor missing": (weights(lambda t: t.pop("path_base")), WEIGHTS, "do not fit"),
    "a tensor too many": (weights(lambda t: t.update(x=torch.ones(2))), WEIGHTS, "do not fit"),
    "a diverged run": (weights(lambda t: t["chunk_base"].fill_(float("nan"))), WEIGHTS, "not finite"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_checkpoint_is_refused_in_one_line(folder: Path, name: str) -> None:
    spoil, file, word = SPOILT[name]
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / file))
    assert word in message
    assert "\n" not in message
    assert len(message) < len(str(folder)) + 160


def test_folders_that_are_none(tmp_path: Path, folder: Path) -> None:
    for path, word in (
        (tmp_path / "nowhere", "no such checkpoint folder"),
        (folder / WEIGHTS, "no such checkpoint folder"),
        (folder.parent, "no such file"),
    ):
        with pytest.raises(InputError, match=word) as caught:
            load_checkpoint(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_saving_where_a_file_is(folder: Path) -> None:
    with pytest.raises(InputError, match="cannot be made"):
        save_checkpoint(some_policy(), folder / WEIGHTS / "below", ABOUT)


def test_nothing_is_ever_unpickled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in the weights' place is refused unread, and saving and loading work without pickle."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    marker = tmp_path / "unpickled"
    trap = pickle.dumps(Trap(marker))
    pickle.loads(trap)
    assert marker.exists()
    marker.unlink()
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, forbidden)
    monkeypatch.setattr(torch, "save", forbidden)
    save_checkpoint(some_policy(), folder, ABOUT)
    load_checkpoint(folder)
    (folder / WEIGHTS).write_bytes(trap)
    with pytest.raises(InputError, match="not a safetensors file"):
        load_checkpoint(folder)
    torch_file = tmp_path / "torch"
    monkeypatch.undo()
    torch.save({"weights": Trap(marker)}, torch_file)
    (folder / WEIGHTS).write_bytes(torch_file.read_bytes())
    with pytest.raises(InputError, match="not a safetensors file"):
        load_checkpoint(folder)
    assert not marker.exists()


@pytest.mark.parametrize("device", ["gpu", "no such device"])
def test_a_device_that_is_not_there(folder: Path, device: str) -> None:
    with pytest.raises(InputError, match="not available here") as caught:
        load_checkpoint(folder, device)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
def test_no_cuda_here(folder: Path) -> None:
    with pytest.raises(InputError, match="device 'cuda': not available here"):
        load_checkpoint(folder, "cuda")


def test_load_policy_takes_a_folder_or_the_shipped_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the package, or inside it; and says so where there is none."""
    expected = load_checkpoint(folder).state_dict()

    def same(policy: Policy) -> bool:
        return all(torch.equal(value, expected[name]) for name, value in policy.state_dict().items())

    assert same(load_policy(folder))
    monkeypatch.setattr(checkpoints, "_PACKAGE", tmp_path / "clone" / "gnnsched")
    with pytest.raises(InputError, match="checkpoints/default: not found"):
        load_policy()
    for place in ("clone/checkpoints/default", "clone/gnnsched/data/checkpoints/default"):
        save_checkpoint(some_policy(), tmp_path / place, {})
        assert checkpoints.default_checkpoint() == tmp_path / place
        assert same(load_policy())
