"""``gnnsched train``: hierarchical PPO on a mixture of networks, with checkpoints and a TensorBoard log."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from gnnsched.cli.training_run import RunOptions, Words, train

if TYPE_CHECKING:
    from gnnsched.training.mixture import Mixture
    from gnnsched.training.trainer import Trainer

RATIO = "validation/ratio_mean"


@dataclass(frozen=True, kw_only=True)
class Train(RunOptions):
    """Train a policy, on network files or on a mixture of random ones, and write it as a checkpoint.

    Ctrl-C ends the run after the iteration at hand, keeping what it has; --resume goes on from there.
    """

    topologies: Annotated[tuple[Path, ...], arg(metavar="FILE")] = ()
    """Network files to train on."""
    mixture: Literal["default", "bcube", "traffic"] | None = None
    """Random networks and small BCubes; BCube(2,1), (3,1) and (4,1) alone; or the former beside background traffic."""
    alternate: Annotated[int, arg(metavar="UPDATES")] = 0
    """Train the two levels in turns of so many updates each, the other one frozen (0: together)."""

    def run(self) -> int:
        from gnnsched.topology import InputError

        if bool(self.topologies) == (self.mixture is not None):
            raise InputError(
                "train: needs network files or a mixture; give one of --topologies and --mixture"
            )
        self.check()
        if self.alternate < 0:
            raise InputError(f"--alternate: {self.alternate} is negative; give a number of updates or 0")
        import torch

        from gnnsched.training.checkpoint import ALL_REDUCE
        from gnnsched.training.trainer import TrainConfig, Trainer

        before = self.resumed(ALL_REDUCE)
        training_set, mixture = self._mixture()
        metrics = self.metrics(before, training_set)
        # The rollouts and a network this small gain nothing from threads that wait for each other.
        torch.set_num_threads(1)
        config = TrainConfig(**self.end(), alternate=self.alternate)
        trainer = Trainer(mixture, config, device=self.device)
        return train(
            self,
            trainer,
            training_set,
            metrics,
            ALL_REDUCE,
            Words(
                lambda scalars, known: _state(trainer, scalars, known),
                lambda known: f"ratio to the bound on validation networks {known[RATIO]:.4f}",
            ),
            lambda log: log.picture(trainer.average, trainer.validation_lessons(), trainer.iteration),
            lambda log: log.embeddings(trainer.best_policy(), trainer.validation_lessons()),
        )

    def _mixture(self) -> "tuple[dict[str, Any], Mixture]":
        """What is trained on, for the checkpoint and for the trainer."""
        from gnnsched.topology.formats import load_topology
        from gnnsched.training.mixture import Mixture

        if self.mixture is not None:
            return {"mixture": self.mixture}, Mixture(self.mixture, self.seed)
        networks = [load_topology(path) for path in self.topologies]
        names = [{"name": network.name, "fingerprint": network.fingerprint} for network in networks]
        return {"topologies": names}, Mixture(networks, self.seed)


def _state(trainer: "Trainer", scalars: Mapping[str, float], metrics: Mapping[str, float]) -> str:
    text = f"{trainer.done_share:.0%}, ratio {scalars['rollout/ratio_mean']:.4f}"
    if metrics:
        text += f", on validation networks {metrics[RATIO]:.4f}"
    return text
