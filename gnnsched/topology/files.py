"""Reading and writing files: one-line errors on the way in, no half-written output on the way out."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gnnsched.topology.errors import InputError


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Content of ``path``. Raises InputError when it is missing, a folder, unreadable or empty."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: is a folder; name a file in it")
    try:
        content = target.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{target}: no such file; check the path") from None
    except OSError as error:
        raise InputError(f"{target}: cannot be read ({error.strerror}); check its permissions") from None
    if not content.strip():
        raise InputError(f"{target}: the file is empty; write it again")
    return content


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it: no reader sees a part of it.

    Raises InputError when the folder is missing or cannot be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: is a folder; name a file in it")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); choose another place") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise InputError(
            f"{target}: cannot be written ({error.strerror or error}); make room there"
        ) from None
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
