"""Tunes the linear scorer's weights by the policy gradient on the default mixture; rewrites linear.json.

Usage: .venv/bin/python scripts/tune_linear.py [--minutes 10] [--seed 0]

The same clipped surrogate as the policy's, but with one set of weights for every path of every network. The
weights of the best validation are kept, averaged over the steps before it.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

import gnnsched.collective.decode.linear as linear
from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding
from gnnsched.collective.decode.presets import constant_scores
from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES
from gnnsched.topology.files import write_atomically
from gnnsched.training.machine import machine
from gnnsched.training.mixture import Lesson, Mixture
from gnnsched.training.rollout import LevelWeights, collect, gradient

# Lessons a step, rollouts a lesson, different lessons, lessons to validate on.
LESSONS, ROLLOUTS, POOL, VALIDATION = 12, 8, 1024, 48
# How far an event's credit reaches, in usual makespans.
HORIZON = 0.3
# Part of the prior to start from: the policy learns more from a sharp start, the linear scorer from a softer one.
START = 0.5
# First step size of Adam, and how slowly the kept weights follow.
STEP, AVERAGING = 0.03, 0.98
# Where the concatenated weights are cut: path features, chunk features, the latter's change with progress.
SPLIT = len(PATH_FEATURES), len(PATH_FEATURES) + len(CHUNK_FEATURES)


def scores_of(lesson: Lesson, weights: NDArray[np.float64]) -> Scores:
    """Constant scores from the concatenated weights: path, chunk, chunk's change with progress."""
    path, chunk, slope = np.split(weights, SPLIT)
    return constant_scores(lesson.instance, path, chunk, slope)


def validate(lessons: list[Lesson], weights: NDArray[np.float64]) -> float:
    """Mean ratio of single samples and of the best of four."""
    rng = np.random.default_rng(11)
    ratios = [
        [
            lesson.instance.decode(scores_of(lesson, weights), Decoding(), rng).makespan / lesson.bound
            for _ in range(4)
        ]
        for lesson in lessons
    ]
    return float((np.mean(ratios) + np.mean(np.min(ratios, 1))) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    mixture = Mixture("default", args.seed)
    validation = mixture.held_out()
    held_out = [validation.lesson(i) for i in range(VALIDATION)]
    weights = START * np.array(linear.PRIOR_PATH + linear.PRIOR_CHUNK)
    parameter = torch.tensor(weights)
    optimizer = torch.optim.Adam([parameter], STEP)
    average = weights.copy()
    best, best_weights = validate(held_out, weights), weights.copy()
    print(f"validation ratio before: {best:.4f}", flush=True)
    begin, iteration = time.monotonic(), 0
    bar = tqdm(total=round(60 * args.minutes), unit="s", mininterval=10)
    while (over := (time.monotonic() - begin) / (60 * args.minutes)) < 1:
        rng = np.random.default_rng([args.seed, iteration])
        total = np.zeros_like(weights)
        for index in rng.integers(POOL, size=LESSONS):
            lesson = mixture.lesson(int(index))
            own = scores_of(lesson, weights)
            rollouts = collect(lesson, own, Decoding(), ROLLOUTS, rng, HORIZON)
            parts, _ = gradient(rollouts, own, Decoding(), True, 0.2, LevelWeights())
            total += (
                np.concatenate([parts.path.sum(0), parts.chunk.sum(0), parts.chunk_progress.sum(0)]) / LESSONS
            )
        iteration += 1
        # The optimizer descends, the surrogate is to be climbed.
        parameter.grad = -torch.tensor(total)
        optimizer.param_groups[0]["lr"] = STEP * (1 - over)
        optimizer.step()
        weights = parameter.numpy().copy()
        average = AVERAGING * average + (1 - AVERAGING) * weights
        if iteration % 50 == 0:
            score = validate(held_out, average)
            if score < best:
                best, best_weights = score, average.copy()
            bar.set_postfix(validation=f"{score:.4f}", best=f"{best:.4f}")
        bar.update(round(time.monotonic() - begin) - bar.n)
    bar.close()
    print(f"validation ratio after {iteration} steps: {best:.4f}")
    path, chunk, slope = (
        dict(zip(names, (round(float(v), 4) for v in values)))
        for names, values in zip(
            (PATH_FEATURES, CHUNK_FEATURES, CHUNK_FEATURES), np.split(best_weights, SPLIT)
        )
    )
    about = {
        "command": f"scripts/tune_linear.py --minutes {args.minutes:g} --seed {args.seed}",
        "machine": machine(),
        "steps": iteration,
        "validation_ratio": best,
    }
    content = (
        json.dumps({"path": path, "chunk": chunk, "chunk_progress": slope, "about": about}, indent=2) + "\n"
    )
    write_atomically(Path(linear.WEIGHTS_FILE), lambda stream: stream.write(content.encode()))


if __name__ == "__main__":
    main()
