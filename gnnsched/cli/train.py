"""``gnnsched train``: hierarchical PPO on a mixture of networks, with checkpoints and a TensorBoard log."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from gnnsched.cli.options import Folder, check_device, check_seed, make_folder
from gnnsched.cli.progress import Progress, interrupts
from gnnsched.cli.tables import counted

if TYPE_CHECKING:
    from gnnsched.training.mixture import Mixture
    from gnnsched.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a policy, on network files or on a mixture of random ones, and write it as a checkpoint.

    Ctrl-C ends the run after the iteration at hand, keeping what it has; --resume goes on from there.
    """

    topologies: Annotated[tuple[Path, ...], arg(metavar="FILE")] = ()
    """Network files to train on."""
    mixture: Literal["default", "bcube"] | None = None
    """Random networks and small BCubes, or BCube(2,1), (3,1) and (4,1) alone."""
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
    alternate: Annotated[int, arg(metavar="UPDATES")] = 0
    """Train the two levels in turns of so many updates each, the other one frozen (0: together)."""

    def run(self) -> int:
        from gnnsched.topology import InputError

        if bool(self.topologies) == (self.mixture is not None):
            raise InputError(
                "train: needs network files or a mixture; give one of --topologies and --mixture"
            )
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes: {self.minutes} is not positive; give a time such as 10")
        if self.iterations is not None and self.iterations < 1:
            raise InputError(f"--iterations: {self.iterations} is below 1; give a number such as 1000")
        if self.alternate < 0:
            raise InputError(f"--alternate: {self.alternate} is negative; give a number of updates or 0")
        check_seed(self.seed)
        check_device(self.device)
        training_set, mixture = self._mixture()
        metrics = self._resumed_metrics(training_set) if self.resume else {}
        import torch

        from gnnsched.training.trainer import TrainConfig, Trainer

        # The rollouts and a network this small gain nothing from threads that wait for each other.
        torch.set_num_threads(1)
        trainer = Trainer(
            mixture,
            TrainConfig(
                seed=self.seed,
                iterations=self.iterations,
                minutes=10.0 if self.minutes is None and self.iterations is None else self.minutes,
                alternate=self.alternate,
            ),
            device=self.device,
        )
        if self.resume:
            trainer.load(self.output)
            if trainer.done_share >= 1.0:
                print(
                    f"{self.output}: already trained for {trainer.elapsed / 60:.1f} minutes, "
                    f"{counted(trainer.iteration, 'iteration')}; give more of them"
                )
                return 0
        return self._train(trainer, training_set, metrics)

    def _mixture(self) -> "tuple[dict[str, Any], Mixture]":
        """What is trained on, for the checkpoint and for the trainer."""
        from gnnsched.topology.formats import load_topology
        from gnnsched.training.mixture import Mixture

        if self.mixture is not None:
            return {"mixture": self.mixture}, Mixture(self.mixture, self.seed)
        networks = [load_topology(path) for path in self.topologies]
        names = [{"name": network.name, "fingerprint": network.fingerprint} for network in networks]
        return {"topologies": names}, Mixture(networks, self.seed)

    def _resumed_metrics(self, training_set: dict[str, Any]) -> dict[str, float]:
        """Metrics of the run to go on with; one on other networks or with another seed is refused."""
        from gnnsched.topology import InputError
        from gnnsched.training.checkpoint import describe_checkpoint

        before = describe_checkpoint(self.output)
        if before.get("training_set") != training_set:
            raise InputError(
                f"{self.output}: trained on another training set; name the same one or drop --resume"
            )
        if before.get("seed") != self.seed:
            raise InputError(
                f"{self.output}: trained with seed {before.get('seed')}; give that or drop --resume"
            )
        return dict(before.get("metrics", {}))

    def _train(self, trainer: "Trainer", training_set: dict[str, Any], metrics: dict[str, float]) -> int:
        from gnnsched.report.training_log import TrainingLog
        from gnnsched.training.checkpoint import save_checkpoint
        from gnnsched.training.machine import machine

        best = trainer.best

        def keep() -> None:
            about = {
                "training_set": training_set,
                "seed": self.seed,
                "wall_time_s": round(trainer.elapsed, 3),
                "steps": trainer.steps,
                "iterations": trainer.iteration,
                "machine": {**machine(), "device": self.device},
                "metrics": metrics,
            }
            save_checkpoint(trainer.best_policy(), self.output, about)
            trainer.save(self.output)

        make_folder(self.output)
        log = TrainingLog(self.logdir or self.output / "tensorboard", trainer.iteration)

        def note(validated: dict[str, float]) -> None:
            # The checkpoint holds the best policy so far, and that policy's metrics.
            nonlocal best, metrics
            if trainer.best < best or not metrics:
                best, metrics = trainer.best, validated

        with interrupts() as seen, Progress("training", None) as progress:
            progress.say("loading kernels")
            for scalars in trainer.run():
                log.write(scalars, trainer.iteration)
                validated = {key: value for key, value in scalars.items() if key.startswith("validation/")}
                if validated:
                    note(validated)
                    keep()
                    log.picture(trainer.average, trainer.validation_lessons(), trainer.iteration)
                progress.step(_state(trainer, scalars, metrics))
                if seen:
                    break
            if trainer.iteration % trainer.config.validation_every or not metrics:
                validated = trainer.validate()
                log.write(validated, trainer.iteration)
                note(validated)
                log.picture(trainer.average, trainer.validation_lessons(), trainer.iteration)
            keep()
            log.embeddings(trainer.best_policy(), trainer.validation_lessons())
        log.close()
        print(
            f"{'interrupted: ' if seen else ''}trained for {trainer.elapsed / 60:.1f} minutes, "
            f"{counted(trainer.iteration, 'iteration')}, {counted(trainer.steps, 'decision')}; "
            f"ratio to the bound on validation networks {metrics['validation/ratio_mean']:.4f}; "
            f"checkpoint written to {self.output}"
        )
        return 130 if seen else 0


def _state(trainer: "Trainer", scalars: dict[str, float], metrics: dict[str, float]) -> str:
    text = f"{trainer.done_share:.0%}, ratio {scalars['rollout/ratio_mean']:.4f}"
    if metrics:
        text += f", on validation networks {metrics['validation/ratio_mean']:.4f}"
    return text
