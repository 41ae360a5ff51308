"""Trains what the ablation table compares: the default recipe with one part changed or left out each.

Usage: .venv/bin/python scripts/train_ablations.py [--only NAME ...] [--iterations 1500] [--seed 0] [-o runs/ablations]

One after another on one processor; give ``--only`` in two shells to use two. ``evaluate_suite.sh`` reads the folder.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from gnnsched.models.policy import PolicyConfig
from gnnsched.training.checkpoint import save_checkpoint
from gnnsched.training.machine import machine
from gnnsched.training.mixture import Mixture
from gnnsched.training.rollout import LevelWeights
from gnnsched.training.trainer import TrainConfig, Trainer


@dataclass(frozen=True)
class Recipe:
    """What differs from the default recipe; ``one_level``: idle paths in random order, only chunks are learned."""

    train: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    one_level: bool = False


RECIPES = {
    "no_message_passing": Recipe(policy={"rounds": 0}),
    "no_flows": Recipe(policy={"flows": False}),
    "no_guidance": Recipe(policy={"guidance": False}),
    "neither": Recipe(policy={"rounds": 0, "guidance": False}),
    "one_level": Recipe(one_level=True),
    "alternating": Recipe(train={"alternate": 10}),
    "unfaded": Recipe(train={"horizon": np.inf}),
}


class OneLevelTrainer(Trainer):
    """Learns the chunk of a path alone; all idle paths are equally likely to be served next."""

    def __init__(self, mixture: Mixture, config: TrainConfig, policy_config: PolicyConfig) -> None:
        super().__init__(mixture, config, policy_config)
        for policy in (self.policy, self.average):
            last = policy.path_head[-1]
            assert isinstance(last, nn.Linear)
            for parameter in (policy.path_base, last.weight, last.bias):
                nn.init.zeros_(parameter)

    def level_weights(self) -> LevelWeights:
        return LevelWeights(0.0, 1.0, 0.0, self.config.choice_entropy)


def train(name: str, iterations: int, seed: int, folder: Path) -> None:
    """Train the recipe ``name`` and keep its best policy in ``folder``."""
    recipe = RECIPES[name]
    config = TrainConfig(seed=seed, iterations=iterations, **recipe.train)
    kind = OneLevelTrainer if recipe.one_level else Trainer
    trainer = kind(Mixture("default", seed), config, PolicyConfig(**recipe.policy))
    bar = tqdm(total=iterations, desc=name, mininterval=10)

    def keep() -> None:
        about = {
            "training_set": {"mixture": "default"},
            "ablation": name,
            "seed": seed,
            "wall_time_s": round(trainer.elapsed, 3),
            "steps": trainer.steps,
            "iterations": trainer.iteration,
            "machine": machine(),
            "metrics": {"validation/score": trainer.best},
        }
        save_checkpoint(trainer.best_policy(), folder, about)

    try:
        for _ in trainer.run():
            if trainer.iteration % config.validation_every == 0:
                keep()
                bar.set_postfix(best=f"{trainer.best:.4f}")
            bar.update()
        trainer.validate()
    finally:
        keep()
        bar.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=sorted(RECIPES), default=sorted(RECIPES))
    parser.add_argument("--iterations", type=int, default=1500, help="as many as the default had")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/ablations"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only:
        folder = args.output / name / str(args.seed)
        try:
            train(name, args.iterations, args.seed, folder)
        except KeyboardInterrupt:
            print(f"interrupted; what {name} had is kept in {folder}", file=sys.stderr)
            sys.exit(130)


if __name__ == "__main__":
    main()
