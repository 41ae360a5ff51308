"""A training run for TensorBoard: scalars, a picture of a plan, embeddings. A failing log never stops the run."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy
    from gnnsched.training.mixture import Lesson

# Dots per inch of a picture: a thumbnail's worth, as there is one per validation.
DPI = 70
# Networks whose embeddings are logged.
MOST_EMBEDDED = 4


class TrainingLog:
    """Writes to ``folder`` by step; on the first failure it says so once on stderr and keeps silent.

    ``first_step``: a resumed run's; what an earlier run logged from there on is hidden.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._folder = folder
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

    def picture(self, policy: "Policy", lessons: Sequence["Lesson"], step: int) -> None:
        """Draw a plan by ``policy``, one sample, for the largest of the lessons, if possible a plain one."""
        writer = self._writer
        if writer is None:
            return

        def add() -> None:
            import numpy as np
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            from gnnsched.collective.simulator import simulate
            from gnnsched.planning import schedule_with
            from gnnsched.report.plots import schedule_figure

            plain = [lesson for lesson in lessons if lesson.case == "plain"] or lessons
            instance = max(plain, key=lambda lesson: len(lesson.instance.topology.participants)).instance
            message = instance.chunk_bytes * len(instance.roots)
            schedule = schedule_with(
                "policy", instance.topology, message, instance.chunks_per_server, 1, 0, policy
            ).schedule
            figure = schedule_figure(schedule, simulate(schedule))
            figure.set_dpi(DPI)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())[:, :, :3]
            writer.add_image("validation/schedule", pixels, step, dataformats="HWC")

        self._try(add)

    def embeddings(self, policy: "Policy", lessons: Sequence["Lesson"]) -> None:
        """Log the policy's embeddings of some of the lessons' networks, below the folder as a run of their own."""
        if self._writer is None:
            return

        def add() -> None:
            from gnnsched.report.embeddings import write_embeddings

            networks = {lesson.instance.topology.fingerprint: lesson.instance.topology for lesson in lessons}
            write_embeddings(policy, list(networks.values())[:MOST_EMBEDDED], self._folder / "embeddings")

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
