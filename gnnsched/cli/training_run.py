"""What the training commands share: options of a run, going on with one, and the loop around it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from gnnsched.cli.options import Folder, check_device, check_folder, check_seed, make_folder
from gnnsched.cli.progress import Progress, interrupts
from gnnsched.cli.tables import counted

if TYPE_CHECKING:
    from gnnsched.report.training_log import TrainingLog
    from gnnsched.training.checkpoint import Kind
    from gnnsched.training.run import TrainingRun

# Of a run that is told neither minutes nor iterations.
DEFAULT_MINUTES = 10.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every training run."""

    minutes: float | None = None
    """Length of the whole run (10 where --iterations is not given either); with --resume, what was trained before
    counts."""
    iterations: int | None = None
    """Length in updates: the same seed gives the same policy then."""
    seed: int = 0
    """Of all random choices."""
    output: Annotated[Folder, arg(aliases=["-o"])]
    """The checkpoint's folder."""
    resume: bool = False
    """Go on with the run in the output folder."""
    logdir: Annotated[Path | None, arg(metavar="DIR")] = None
    """For TensorBoard (default: tensorboard in the output folder)."""
    device: str = "cpu"
    """Where the network is trained: cpu or cuda."""

    def check(self) -> None:
        """Refuse, before any work, what makes no run."""
        from gnnsched.topology import InputError

        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes: {self.minutes} is not positive; give a time such as 10")
        if self.iterations is not None and self.iterations < 1:
            raise InputError(f"--iterations: {self.iterations} is below 1; give a number such as 1000")
        check_seed(self.seed)
        check_device(self.device)
        check_folder(self.output)

    def end(self) -> dict[str, Any]:
        """Settings that every trainer has: seed and end of the run."""
        unlimited = self.minutes is None and self.iterations is None
        return {
            "seed": self.seed,
            "iterations": self.iterations,
            "minutes": DEFAULT_MINUTES if unlimited else self.minutes,
        }

    def resumed(self, kind: "Kind[Any]") -> dict[str, Any]:
        """What is known of the run to go on with, nothing of a new one; another seed is refused."""
        from gnnsched.topology import InputError
        from gnnsched.training.checkpoint import describe_checkpoint

        if not self.resume:
            return {}
        before = describe_checkpoint(self.output, kind)
        if before.get("seed") != self.seed:
            raise InputError(
                f"{self.output}: trained with seed {before.get('seed')}; give that or drop --resume"
            )
        return before

    def metrics(self, before: Mapping[str, Any], training_set: object) -> dict[str, float]:
        """Of the run ``before`` (see ``resumed``), none of a new one; another training set is refused."""
        from gnnsched.topology import InputError

        if before and before.get("training_set") != training_set:
            raise InputError(
                f"{self.output}: trained on another training set; name the same one or drop --resume"
            )
        return dict(before.get("metrics", {}))


@dataclass(frozen=True)
class Words:
    """What a run says: ``state`` of each iteration, from its scalars and the best policy's metrics; ``result`` of
    the whole run, from those metrics.
    """

    state: Callable[[Mapping[str, float], Mapping[str, float]], str]
    result: Callable[[Mapping[str, float]], str]


def train(
    options: RunOptions,
    trainer: "TrainingRun[Any]",
    training_set: object,
    metrics: dict[str, float],
    kind: "Kind[Any]",
    words: Words,
    validated: "Callable[[TrainingLog], None] | None" = None,
    done: "Callable[[TrainingLog], None] | None" = None,
) -> int:
    """Run ``trainer`` to its end, keeping checkpoint and log; returns the command's exit code.

    ``metrics``: of the best policy before, none of a new run. ``validated`` and ``done`` add to the log.
    """
    from gnnsched.report.training_log import TrainingLog
    from gnnsched.training.checkpoint import save_checkpoint
    from gnnsched.training.machine import machine

    if options.resume:
        trainer.load(options.output)
        if trainer.done_share >= 1.0:
            print(
                f"{options.output}: already trained for {trainer.elapsed / 60:.1f} minutes, "
                f"{counted(trainer.iteration, 'iteration')}; give more of them"
            )
            return 0
    make_folder(options.output)
    log = TrainingLog(options.logdir or options.output / "tensorboard", trainer.iteration)
    best = trainer.best

    def keep() -> None:
        about = {
            "training_set": training_set,
            "settings": asdict(trainer.settings),
            "seed": options.seed,
            "wall_time_s": round(trainer.elapsed, 3),
            "steps": trainer.steps,
            "iterations": trainer.iteration,
            "machine": {**machine(), "device": options.device},
            "metrics": metrics,
        }
        save_checkpoint(trainer.best_policy(), options.output, about, kind)

    def note(scalars: Mapping[str, float]) -> None:
        # The checkpoint holds the best policy so far, and that policy's metrics.
        nonlocal best, metrics
        if trainer.best < best or not metrics:
            best = trainer.best
            metrics = {key: value for key, value in scalars.items() if key.startswith("validation/")}
        keep()
        if validated is not None:
            validated(log)

    with interrupts() as seen, Progress("training", None) as progress:
        progress.say("loading kernels")
        fresh = False
        for scalars in trainer.run():
            log.write(scalars, trainer.iteration)
            fresh = trainer.iteration % trainer.settings.validation_every == 0
            if fresh:
                note(scalars)
                trainer.save(options.output)
            progress.step(words.state(scalars, metrics))
            if seen:
                break
        if not fresh:
            if seen:
                # Before a validation that would not have been without the interrupt: a resumed run may go on elsewhere.
                trainer.save(options.output)
            if seen and math.isfinite(trainer.best):
                keep()
            else:
                last = trainer.validate()
                log.write(last, trainer.iteration)
                note(last)
            if not seen:
                trainer.save(options.output)
        if done is not None:
            done(log)
    log.close()
    print(
        f"{'interrupted: ' if seen else ''}trained for {trainer.elapsed / 60:.1f} minutes, "
        f"{counted(trainer.iteration, 'iteration')}, {counted(trainer.steps, 'decision')}; "
        f"{words.result(metrics)}; checkpoint written to {options.output}"
    )
    return 130 if seen else 0
