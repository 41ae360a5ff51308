"""Where the shipped checkpoint lies, and policies loaded from it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gnnsched.topology import InputError

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

_PACKAGE = Path(__file__).resolve().parent.parent


def default_checkpoint() -> Path:
    """The folder of the shipped default checkpoint: beside the package in a clone, inside it in a wheel.

    Raises InputError where it is in neither place.
    """
    for folder in (_PACKAGE / "data" / "checkpoints", _PACKAGE.parent / "checkpoints"):
        if (folder / "default").is_dir():
            return folder / "default"
    raise InputError("checkpoints/default: not found beside the package; name one with --checkpoint")


def load_policy(checkpoint: str | os.PathLike[str] | None = None, device: str = "cpu") -> "Policy":
    """The policy of ``checkpoint``, or of the shipped one. Raises InputError as ``load_checkpoint`` does."""
    from gnnsched.training.checkpoint import load_checkpoint

    return load_checkpoint(default_checkpoint() if checkpoint is None else checkpoint, device)
