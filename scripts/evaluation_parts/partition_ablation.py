"""What the embedding of a job's graph adds: policies with it, with summary numbers, with neither."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from evaluation_parts.generated_jobs import generated_jobs
from evaluation_parts.markdown import table
from evaluation_parts.options import Options, Part
from evaluation_parts.results import Results
from gnnsched.partition import kernel
from gnnsched.partition.cases import load_models, time_unit
from gnnsched.partition.episode import metrics
from gnnsched.partition.evaluation import LEARNED, Runner
from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.network import Embedding, PartitionConfig, PartitionPolicy
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.trainer import PartitionTrainer, PartitionTraining
from gnnsched.partition.workload import DISTRIBUTIONS
from gnnsched.partition.world import World, make_world

ITERATIONS = 150
TRAINING_SEEDS = (0, 1)
EPISODES = 5
JOBS = 40
# Enough of them that a graph's embedding is learned and not the jobs by heart, and how they are trained on then.
MANY_JOBS, MANY_UNSEEN = 400, 200
MANY = {"iterations": 120, "minibatch": 4096, "averaging": 0.99}
# Of the generated jobs that are trained on, and of those that are measured on.
SEEN, UNSEEN = 1, 2
WORDS: dict[Embedding, str] = {
    "graph": "embedding of the job's graph",
    "summary": "its summary numbers instead",
    "none": "neither",
}
# Knows how long each job will take, and looks at nothing else.
REFERENCE = "smallest_fit"


@dataclass(frozen=True)
class Case:
    """Jobs to train on and to measure on; ``told``: whether the policy is told how long they take at each degree;
    ``training``: settings other than the others'.
    """

    name: str
    train: Callable[[], Sequence[JobGraph]]
    measure: Callable[[], Sequence[JobGraph]]
    told: bool
    training: Mapping[str, Any] = field(default_factory=dict)

    def world(self, jobs: Sequence[JobGraph]) -> World:
        world = make_world(Ramp(), jobs, time_unit(False))
        return world if self.told else world.without_times()


def _generated(seed: int, jobs: int = JOBS) -> Callable[[], Sequence[JobGraph]]:
    return lambda: generated_jobs(jobs, seed)


def _shipped() -> Sequence[JobGraph]:
    return load_models(None)


CASES = (
    Case("the five models, times told", _shipped, _shipped, True),
    Case("unseen generated jobs, times told", _generated(SEEN), _generated(UNSEEN), True),
    Case("unseen generated jobs, times not told", _generated(SEEN), _generated(UNSEEN), False),
    Case(
        f"the same, {MANY_UNSEEN} after training on {MANY_JOBS}",
        _generated(SEEN, MANY_JOBS),
        _generated(UNSEEN, MANY_UNSEEN),
        False,
        MANY,
    ),
)


def settings(options: Options) -> dict[str, object]:
    return {
        "iterations": ITERATIONS,
        "training_seeds": list(TRAINING_SEEDS),
        "episodes": EPISODES,
        "generated_jobs": JOBS,
    }


def _label(embedding: Embedding, seed: int) -> str:
    return f"{embedding}, training seed {seed}"


def _trained(world: World, embedding: Embedding, seed: int, training: Mapping[str, Any]) -> PartitionPolicy:
    """By imitation of the smallest degree that meets the limit, then PPO."""
    models = len(world.models)
    smallest = np.concatenate((np.zeros(models), np.full(models, kernel.UPWARDS), np.zeros(models)))
    rules = np.tile(smallest.astype(np.int64), (len(DISTRIBUTIONS), 1))
    settings: dict[str, Any] = {"iterations": ITERATIONS, **training}
    config = PartitionTraining(
        seed=seed, expert_share=0.0, validation_every=settings["iterations"] // 3, **settings
    )
    trainer = PartitionTrainer([world], [rules], config, PartitionConfig(embedding=embedding))
    for _ in trainer.run():
        pass
    return trainer.best_policy()


def measure(options: Options, results: Results) -> None:
    for case in CASES:
        wanted = [
            (_label(embedding, seed), embedding, seed) for embedding in WORDS for seed in TRAINING_SEEDS
        ]
        missing = results.missing(case.name, [label for label, _, _ in wanted] + [REFERENCE])
        if not missing:
            continue
        if case.training:
            results.about(case.name, jobs=MANY_JOBS, unseen_jobs=MANY_UNSEEN, **case.training)
        world, unseen = case.world(case.train()), case.world(case.measure())
        for label, embedding, seed in tqdm(wanted, desc=case.name, file=sys.stderr):
            if label in missing:
                policy = _trained(world, embedding, seed, case.training)
                _add(results, case, label, Runner(unseen, policy), LEARNED)
        if REFERENCE in missing:
            _add(results, case, REFERENCE, Runner(unseen, None), REFERENCE)


def _add(results: Results, case: Case, label: str, runner: Runner, policy: str) -> None:
    for distribution in DISTRIBUTIONS:
        for seed in range(EPISODES):
            rate = metrics(runner.world, *runner.run(policy, distribution, seed)).blocking_rate
            results.add(case.name, label, {"distribution": distribution, "seed": seed, "blocking_rate": rate})
    results.save()


def _rates(results: Results, case: Case, label: str) -> np.ndarray:
    """Blocking rates of all episodes, in the same order for every label."""
    rows = sorted(results.of(case.name, label), key=lambda row: (row["distribution"], row["seed"]))
    return np.array([row["blocking_rate"] for row in rows])


def _adds(results: Results, case: Case, embedding: Embedding) -> tuple[float, float]:
    """Mean of what ``embedding`` blocks more than the graph's, paired by episode and training seed, and its error."""
    more = np.mean(
        [
            _rates(results, case, _label(embedding, seed)) - _rates(results, case, _label("graph", seed))
            for seed in TRAINING_SEEDS
        ],
        0,
    )
    return float(more.mean()), float(more.std(ddof=1) / len(more) ** 0.5)


def tables(results: Results) -> dict[str, str]:
    lines = []
    for case in CASES:
        if not results.of(case.name):
            continue
        for embedding, words in WORDS.items():
            cells = [case.name, words]
            for distribution in DISTRIBUTIONS:
                labels = [_label(embedding, seed) for seed in TRAINING_SEEDS]
                rates = [
                    row["blocking_rate"]
                    for label in labels
                    for row in results.of(case.name, label, distribution=distribution)
                ]
                cells.append(f"{np.mean(rates):.3f}")
            if embedding != "graph":
                mean, error = _adds(results, case, embedding)
                cells.append(f"{mean:+.4f} ± {error:.4f}")
            else:
                cells.append("")
            lines.append(cells)
        own = [
            f"{np.mean([row['blocking_rate'] for row in results.of(case.name, REFERENCE, distribution=d)]):.3f}"
            for d in DISTRIBUTIONS
        ]
        lines.append([case.name, f"`{REFERENCE}`, which is told", *own, ""])
    about = (
        f"Blocking rates on RAMP with 32 workers, {EPISODES} held-out episodes per distribution, {len(TRAINING_SEEDS)} "
        f"training seeds of {ITERATIONS} iterations each ({MANY['iterations']} in the last case); last column: what is "
        "blocked more than with the embedding. "
        f"{results.made_by()}"
    )
    header = ["jobs", "the policy knows", *DISTRIBUTIONS, "more blocked"]
    return {"partition_ablation": f"{table(header, lines)}\n\n{about}"}


def check(results: Results) -> list[str]:
    """Where the policy must read times off the job itself, its graph has to add something beyond doubt."""
    case = CASES[-1]
    if not results.of(case.name):
        return [f"partition_ablation, {case.name}: not measured"]
    short = []
    for embedding in WORDS:
        if embedding == "graph":
            continue
        mean, error = _adds(results, case, embedding)
        if not mean >= 2.0 * error:
            short.append(
                f"partition_ablation, {case.name}: {embedding} blocks {mean:+.4f} ± {error:.4f} more"
            )
    return short


PART = Part(settings, measure, tables, check)
