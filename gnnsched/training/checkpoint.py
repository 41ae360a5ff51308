"""Checkpoints: a directory with safetensors (weights) and JSON (what they are); nothing needs pickle."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from gnnsched import __version__
from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES
from gnnsched.models.features import EDGE_FEATURES, NODE_FEATURES, PAIR_FEATURES
from gnnsched.models.features import PATH_FEATURES as STATIC_PATH_FEATURES
from gnnsched.models.policy import Module, Policy, PolicyConfig, on_device
from gnnsched.topology.errors import InputError
from gnnsched.topology.files import read_bytes, write_atomically

SCHEMA_VERSION = 1
WEIGHTS = "policy.safetensors"
DESCRIPTION = "checkpoint.json"


@dataclass(frozen=True)
class Kind(Generic[Module]):
    """A sort of checkpoint: its ``format``, the ``features`` that its network reads, by name, and how the network is
    made from its ``architecture``; ``command``: what writes such checkpoints. ``last``: by sort of features, the
    weights whose last columns they are: a checkpoint that knows only the first of today's gets weight 0 for the others.
    """

    format: str
    command: str
    features: Mapping[str, Sequence[str]]
    make: Callable[[dict[str, Any]], Module]
    last: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def unknown_to(self, saved: object) -> dict[str, int] | None:
        """How many of each sort of features a checkpoint with ``saved`` names did not know; None: it is of no use."""
        today = self.feature_names()
        if not isinstance(saved, dict) or saved.keys() != today.keys():
            return None
        for name, features in today.items():
            known = saved[name]
            if known != features and (name not in self.last or known != features[: len(known)]):
                return None
        return {name: len(features) - len(saved[name]) for name, features in today.items()}

    def feature_names(self) -> dict[str, list[str]]:
        return {name: list(features) for name, features in self.features.items()}


class Configured(Protocol):
    """A network with its sizes in ``config``."""

    @property
    def config(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...


ALL_REDUCE: Kind[Policy] = Kind(
    "gnnsched-checkpoint",
    "gnnsched train",
    {
        "node": NODE_FEATURES,
        "edge": EDGE_FEATURES,
        "path": STATIC_PATH_FEATURES,
        "pair": PAIR_FEATURES,
        "event_path": PATH_FEATURES,
        "chunk": CHUNK_FEATURES,
    },
    lambda architecture: Policy(PolicyConfig(**architecture)),
    {
        "node": ("encoder.node_input.0.weight",),
        "edge": ("encoder.edge_input.0.weight",),
        "path": ("path_head.0.weight", "chunk_head.0.weight"),
    },
)


def save_checkpoint(
    policy: Configured,
    folder: str | os.PathLike[str],
    about: Mapping[str, Any],
    kind: Kind[Any] = ALL_REDUCE,
) -> None:
    """Write the policy to ``folder`` (made if missing). ``about``: training set, seed, metrics and the like."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: cannot be made ({error.strerror}); choose another folder") from None
    weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
    description = {
        "format": kind.format,
        "schema_version": SCHEMA_VERSION,
        "architecture": asdict(policy.config),
        "features": kind.feature_names(),
        "versions": {"gnnsched": __version__, "torch": torch.__version__},
        **about,
    }
    write_atomically(target / WEIGHTS, lambda stream: stream.write(save(weights)))
    text = json.dumps(description, indent=2, sort_keys=True) + "\n"
    write_atomically(target / DESCRIPTION, lambda stream: stream.write(text.encode()))


def describe_checkpoint(folder: str | os.PathLike[str], kind: Kind[Any] = ALL_REDUCE) -> dict[str, Any]:
    """The checkpoint's JSON, checked for format and schema version.

    Raises InputError where the folder is none of ours, of a newer schema, or damaged.
    """
    source = Path(folder)
    if not source.is_dir():
        raise InputError(f"{source}: no such checkpoint folder; name a directory that holds {DESCRIPTION}")
    path = source / DESCRIPTION
    content = read_bytes(path)
    try:
        description = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON, truncated perhaps; save the checkpoint again") from None
    if not isinstance(description, dict) or description.get("format") != kind.format:
        raise InputError(
            f"{path}: not a gnnsched checkpoint of this kind; name a folder written by {kind.command}"
        )
    version = description.get("schema_version")
    if not isinstance(version, int):
        raise InputError(f"{path}: schema_version is missing or no number; save the checkpoint again")
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema version {version!r} is newer than {SCHEMA_VERSION}; upgrade gnnsched to read it"
        )
    if kind.unknown_to(description.get("features")) is None:
        raise InputError(f"{path}: made for other features than this gnnsched computes; train it again")
    return description


def load_checkpoint(folder: str | os.PathLike[str], device: str = "cpu") -> Policy:
    """The AllReduce policy in ``folder``, ready to act on ``device``; see ``load_network``."""
    return load_network(folder, ALL_REDUCE, device)


def load_network(folder: str | os.PathLike[str], kind: Kind[Module], device: str = "cpu") -> Module:
    """The network in ``folder``, ready to act on ``device``. Raises InputError as ``describe_checkpoint`` does."""
    description = describe_checkpoint(folder, kind)
    path = Path(folder) / WEIGHTS
    try:
        policy = kind.make(description["architecture"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{Path(folder) / DESCRIPTION}: architecture is missing or unknown; save the checkpoint again"
        ) from None
    try:
        weights = load(read_bytes(path))
        for name, count in (kind.unknown_to(description["features"]) or {}).items():
            for layer in kind.last.get(name, ()):
                if count and layer in weights:
                    weights[layer] = torch.nn.functional.pad(weights[layer], (0, count))
        policy.load_state_dict(weights)
    except SafetensorError:
        raise InputError(
            f"{path}: not a safetensors file, truncated perhaps; save the checkpoint again"
        ) from None
    except RuntimeError:
        raise InputError(
            f"{path}: weights do not fit the architecture in {DESCRIPTION}; save it again"
        ) from None
    if not all(torch.isfinite(value).all() for value in weights.values()):
        raise InputError(f"{path}: some weights are not finite; train it again")
    return on_device(policy, device).eval()
