"""``gnnsched partition train``: imitation, masked PPO and expert iteration, on one or several clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from gnnsched.cli.options import at_least_one
from gnnsched.cli.partition_options import BoundFactor, load
from gnnsched.cli.progress import Progress
from gnnsched.cli.training_run import RunOptions, Words, train

if TYPE_CHECKING:
    from gnnsched.partition.world import World


@dataclass(frozen=True, kw_only=True)
class TrainPartition(RunOptions):
    """Train one partitioning policy for all four distributions of limits, and write it as a checkpoint.

    It imitates tuned rules first, goes on by trial (masked PPO), and spends most of the run on learning what lookahead
    finds that tries each choice out and has the policy go on from it (expert iteration). Every cluster is combined with
    every set of profiles. Ctrl-C ends the run after the iteration at hand, keeping what it has; --resume goes on from
    there.
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
    bound_factor: BoundFactor = None
    """Take an AllReduce on a topology to last this many times its bound, such as 1.1, instead of planning it."""
    expert_share: float = 0.8
    """Part of the run, 0 to 1, that is expert iteration: its last one."""

    def run(self) -> int:
        from gnnsched.topology import InputError

        at_least_one("--cluster", self.cluster)
        self.check()
        if not 0 <= self.expert_share <= 1:
            raise InputError(
                f"--expert-share: {self.expert_share} is not in 0 ... 1; give a part such as 0.8"
            )
        import torch

        from gnnsched.partition.checkpoint import PARTITION
        from gnnsched.partition.trainer import PartitionTrainer, PartitionTraining

        before = self.resumed(PARTITION)
        worlds = self._worlds()
        training_set = _training_set(worlds)
        metrics = self.metrics(before, training_set)
        # A network this small gains nothing from threads that wait for each other.
        torch.set_num_threads(1)
        settings = PartitionTraining(**self.end(), expert_share=self.expert_share)
        trainer = PartitionTrainer(worlds, self._rules(worlds), settings, device=self.device)
        words = "blocking rate on validation arrivals"
        return train(
            self,
            trainer,
            training_set,
            metrics,
            PARTITION,
            Words(
                lambda scalars, known: (
                    f"{trainer.done_share:.0%}" + (f", {words} {trainer.best:.4f}" if known else "")
                ),
                lambda known: f"{words} {trainer.best:.4f}",
            ),
        )

    def _worlds(self) -> "list[World]":
        folders: tuple[Path | None, ...] = self.profiles or (None,)
        if self.shipped and self.profiles:
            folders = (*folders, None)
        holdings: tuple[Literal["faithful", "exact"], ...] = (
            ("faithful", "exact") if self.holding == "both" else (self.holding,)
        )
        return load(self.cluster, folders, self.ddls_units, holdings, self.bound_factor)

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
