"""Scalars of a training run for TensorBoard; a log that cannot be written never stops the run."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


class ScalarLog:
    """Writes scalars by step to ``folder``; on the first failure it says so once on stderr and keeps silent.

    ``first_step``: a resumed run's; what an earlier run logged from there on is hidden.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._writer = None

        def start() -> None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=first_step)

        self._try(start)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Log every scalar under its name."""
        writer = self._writer
        if writer is None:
            return

        def add() -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)

        self._try(add)

    def close(self) -> None:
        """Write out what is waiting."""
        if self._writer is not None:
            self._try(self._writer.close)
            self._writer = None

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        # A full disk, a missing library, a writer thread that died: whatever it is, training matters more.
        except Exception as error:
            self._writer = None
            reason = " ".join(str(error).split())
            print(
                f"TensorBoard log stopped ({type(error).__name__}: {reason}); training goes on",
                file=sys.stderr,
            )
