"""What a long command is doing, on stderr: a bar on a terminal, a line now and then elsewhere; and its clean end."""

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

# Nothing is said about what takes less (s); after that a log gets a line when this part of the time is new.
QUIET_S = 2.0
QUIET_SHARE = 0.1


class Progress:
    """A context that shows how far a command is. ``total``: number of steps, None where it is not known."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._bar = None
        self._begin = self._said = time.monotonic()
        if sys.stderr.isatty():
            from tqdm import tqdm

            # A terminal that does not know its size would get nothing by tqdm's own choice.
            size = shutil.get_terminal_size()
            self._bar = tqdm(
                total=total, desc=what, file=sys.stderr, leave=False, ncols=size.columns, nrows=size.lines
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, text: str) -> None:
        """What is going on now."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)
            return
        now = time.monotonic()
        if now - self._said >= max(QUIET_S, QUIET_SHARE * (now - self._begin)):
            self._said = now
            of = "" if self._total is None else f" {self._done}/{self._total}"
            print(f"{self._what}{of}: {text}", file=sys.stderr, flush=True)

    def step(self, text: str) -> None:
        """One step is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
        self.say(text)


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that Ctrl-C adds to, so that an iteration ends whole; the second Ctrl-C is an ordinary one."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
