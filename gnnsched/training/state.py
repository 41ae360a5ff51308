"""Everything that going on with a training run needs, as tensors and JSON; nothing needs pickle."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from gnnsched.topology.errors import InputError
from gnnsched.topology.files import read_bytes, write_atomically

STATE = "trainer.safetensors"
PROGRESS = "trainer.json"
# Settings that a resumed run may change: when it ends.
ENDS = ("iterations", "minutes")


@dataclass(frozen=True)
class TrainingState:
    """``parts``: named groups of tensors, weights and others; ``counters``: numbers in the trainer's own order."""

    parts: Mapping[str, Mapping[str, torch.Tensor]]
    optimizer: Mapping[int, Mapping[str, torch.Tensor]]
    counters: list[float]


def save_state(folder: str | os.PathLike[str], state: TrainingState, config: Mapping[str, Any]) -> None:
    """Write ``state`` and the settings ``config`` to ``folder`` (made if missing)."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, group in state.parts.items():
        tensors |= {f"{name}/{key}": value.detach().cpu().clone() for key, value in group.items()}
    for i, moments in state.optimizer.items():
        tensors |= {f"adam/{i}/{key}": torch.as_tensor(value).cpu() for key, value in moments.items()}
    # In one file with the weights, so that a run cut off between two writes is still whole.
    tensors["counters"] = torch.tensor(state.counters, dtype=torch.float64)
    write_atomically(target / STATE, lambda stream: stream.write(save(tensors)))
    text = json.dumps({"config": config}, indent=2) + "\n"
    write_atomically(target / PROGRESS, lambda stream: stream.write(text.encode()))


def load_state(
    folder: str | os.PathLike[str], config: Mapping[str, Any], may_change: Collection[str] = ENDS
) -> TrainingState:
    """What ``save_state`` wrote. Raises InputError where there is nothing, or with other settings than ``config``."""
    source = Path(folder)
    try:
        saved: dict[str, Any] = json.loads(read_bytes(source / PROGRESS))["config"]
        changed = [key for key in config if key not in may_change and saved.get(key) != config[key]]
        if changed:
            raise InputError(
                f"{source}: trained with another {changed[0]} ({saved.get(changed[0])!r}); give the same settings"
            )
        tensors = load(read_bytes(source / STATE))
        counters = tensors.pop("counters").tolist()
        parts: dict[str, dict[str, torch.Tensor]] = {}
        adam: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            kind, key = name.split("/", 1)
            if kind == "adam":
                i, moment = key.split("/")
                adam.setdefault(int(i), {})[moment] = value
            else:
                parts.setdefault(kind, {})[key] = value
        return TrainingState(parts, adam, counters)
    except InputError:
        raise
    except Exception as error:
        raise not_resumable(source, error) from None


def not_resumable(folder: str | os.PathLike[str], error: Exception) -> InputError:
    """What refuses a folder whose content does not fit."""
    return InputError(f"{folder}: cannot be resumed ({type(error).__name__}); start anew without --resume")
