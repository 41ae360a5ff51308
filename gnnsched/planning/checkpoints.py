"""Where the shipped checkpoint lies, and policies loaded from it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gnnsched.topology import InputError

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_checkpoint(name: str) -> Path:
    """The folder of the shipped checkpoint ``name``: beside the package in a clone, inside it in a wheel.

    Raises InputError where it is in neither place.
    """
    for folder in (_PACKAGE / "data" / "checkpoints", _PACKAGE.parent / "checkpoints"):
        if (folder / name).is_dir():
            return folder / name
    raise InputError(f"checkpoints/{name}: not found beside the package; name one with --checkpoint")


def default_checkpoint() -> Path:
    """The folder of the shipped default checkpoint. Raises InputError as ``shipped_checkpoint`` does."""
    return shipped_checkpoint("default")


def load_policy(checkpoint: str | os.PathLike[str] | None = None, device: str = "cpu") -> "Policy":
    """The policy of ``checkpoint``, or of the shipped one. Raises InputError as ``load_checkpoint`` does."""
    from gnnsched.training.checkpoint import load_checkpoint

    return load_checkpoint(default_checkpoint() if checkpoint is None else checkpoint, device)
