"""``gnnsched partition train``: imitation, then masked PPO, on one or several clusters."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from gnnsched.cli.options import Folder, at_least_one, check_device, check_seed, make_folder
from gnnsched.cli.partition_options import load
from gnnsched.cli.progress import Progress, interrupts
from gnnsched.cli.tables import counted

if TYPE_CHECKING:
    from gnnsched.partition.trainer import PartitionTrainer
    from gnnsched.partition.world import World


@dataclass(frozen=True, kw_only=True)
class TrainPartition:
    """Train one partitioning policy for all four distributions of limits, and write it as a checkpoint.

    Every cluster is combined with every set of profiles. Ctrl-C ends the run after the iteration at hand, keeping what
    it has; --resume goes on from there.
    """

    cluster: Annotated[tuple[str, ...], arg(metavar="ramp32|TOPOLOGY")] = ("ramp32",)
    """RAMP clusters (ramp8 ... ramp512) and topology files to train on."""
    profiles: Annotated[tuple[Path, ...], arg(metavar="DIR")] = ()
    """Folders of jobs' profiles (default: the five shipped models)."""
    shipped: bool = False
    """The five shipped models as well as --profiles."""
    ddls_units: bool = False
    """A profile's milliseconds are taken for seconds, as in the published program."""
    holding: Literal["faithful", "exact", "both"] = "faithful"
    """A job holds the blocks of all its ops, or just as many workers as its degree; or train on both."""
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

    def run(self) -> int:
        from gnnsched.topology import InputError

        at_least_one("--cluster", self.cluster)
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"--minutes: {self.minutes} is not positive; give a time such as 10")
        if self.iterations is not None and self.iterations < 1:
            raise InputError(f"--iterations: {self.iterations} is below 1; give a number such as 1000")
        check_seed(self.seed)
        check_device(self.device)
        worlds = self._worlds()
        make_folder(self.output)
        import torch

        from gnnsched.partition.trainer import PartitionTrainer, PartitionTraining

        # A network this small gains nothing from threads that wait for each other.
        torch.set_num_threads(1)
        config = PartitionTraining(
            seed=self.seed,
            iterations=self.iterations,
            minutes=10.0 if self.minutes is None and self.iterations is None else self.minutes,
        )
        trainer = PartitionTrainer(worlds, self._rules(worlds), config, device=self.device)
        metrics: dict[str, float] = {}
        if self.resume:
            metrics = self._resumed_metrics(worlds)
            trainer.load(self.output)
            if trainer.done_share >= 1.0:
                print(
                    f"{self.output}: already trained for {trainer.elapsed / 60:.1f} minutes, "
                    f"{counted(trainer.iteration, 'iteration')}; give more of them"
                )
                return 0
        return self._train(trainer, metrics)

    def _resumed_metrics(self, worlds: "list[World]") -> dict[str, float]:
        """Metrics of the run to go on with; one on other worlds or with another seed is refused."""
        from gnnsched.partition.checkpoint import PARTITION
        from gnnsched.topology import InputError
        from gnnsched.training.checkpoint import describe_checkpoint

        before = describe_checkpoint(self.output, PARTITION)
        if before.get("training_set") != _training_set(worlds):
            raise InputError(
                f"{self.output}: trained on other clusters or jobs; give the same ones or drop --resume"
            )
        if before.get("seed") != self.seed:
            raise InputError(
                f"{self.output}: trained with seed {before.get('seed')}; give that or drop --resume"
            )
        return dict(before.get("metrics", {}))

    def _worlds(self) -> "list[World]":
        folders: tuple[Path | None, ...] = self.profiles or (None,)
        if self.shipped and self.profiles:
            folders = (*folders, None)
        holdings: tuple[Literal["faithful", "exact"], ...] = (
            ("faithful", "exact") if self.holding == "both" else (self.holding,)
        )
        return [
            world for cluster in self.cluster for world in load(cluster, folders, self.ddls_units, holdings)
        ]

    def _rules(self, worlds: "list[World]") -> list[Any]:
        import numpy as np

        from gnnsched.partition.tuning import tune_rule
        from gnnsched.partition.workload import DISTRIBUTIONS, beta_distribution

        rules = []
        with Progress("tuning the rules to imitate", len(worlds) * len(DISTRIBUTIONS)) as progress:
            for world in worlds:
                own = []
                for name in DISTRIBUTIONS:
                    own.append(tune_rule(world, beta_distribution(name), name))
                    progress.step(f"{world.cluster.name}, distribution {name}")
                rules.append(np.stack(own))
        return rules

    def _train(self, trainer: "PartitionTrainer", metrics: dict[str, float]) -> int:
        from gnnsched.partition.checkpoint import PARTITION
        from gnnsched.report.training_log import TrainingLog
        from gnnsched.training.checkpoint import save_checkpoint
        from gnnsched.training.machine import machine

        def keep() -> None:
            about = {
                "training_set": _training_set(trainer.worlds),
                "settings": asdict(trainer.config),
                "seed": self.seed,
                "wall_time_s": round(trainer.elapsed, 3),
                "steps": trainer.steps,
                "iterations": trainer.iteration,
                "machine": {**machine(), "device": self.device},
                "metrics": metrics,
            }
            save_checkpoint(trainer.best_policy(), self.output, about, PARTITION)
            trainer.save(self.output)

        log = TrainingLog(self.logdir or self.output / "tensorboard", trainer.iteration)
        best = trainer.best
        with interrupts() as seen, Progress("training", None) as progress:
            progress.say("loading kernels")
            for scalars in trainer.run():
                log.write(scalars, trainer.iteration)
                if "validation/blocking_rate" in scalars:
                    if trainer.best < best or not metrics:
                        best = trainer.best
                        metrics = {k: v for k, v in scalars.items() if k.startswith("validation/")}
                    keep()
                progress.step(
                    f"{trainer.done_share:.0%}, blocking rate on validation arrivals {trainer.best:.4f}"
                )
                if seen:
                    break
            if not metrics or trainer.iteration % trainer.config.validation_every:
                scalars = trainer.validate()
                log.write(scalars, trainer.iteration)
                if trainer.best < best or not metrics:
                    metrics = {k: v for k, v in scalars.items() if k.startswith("validation/")}
            keep()
        log.close()
        print(
            f"{'interrupted: ' if seen else ''}trained for {trainer.elapsed / 60:.1f} minutes, "
            f"{counted(trainer.iteration, 'iteration')}, {counted(trainer.steps, 'decision')}; "
            f"blocking rate on validation arrivals {trainer.best:.4f}; checkpoint written to {self.output}"
        )
        return 130 if seen else 0


def _training_set(worlds: "Sequence[World]") -> list[dict[str, Any]]:
    """What a run is trained on, for the checkpoint and for resuming."""
    return [
        {
            "cluster": world.cluster.name,
            "models": list(world.model_names),
            "holding": world.holding,
            "profile_time_unit_s": world.time_unit,
            "fingerprint": world.fingerprint,
        }
        for world in worlds
    ]
