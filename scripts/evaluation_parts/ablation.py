"""What each part of the policy and of its training adds: ratios on held-out networks without it."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from evaluation_parts.cases import (
    CHUNKS,
    DRAW,
    KINDS,
    LINEAR_SCORER,
    RULES,
    Scorer,
    cases_of,
    policy_scorer,
    row_of,
)
from evaluation_parts.markdown import table
from evaluation_parts.options import Options, Part, shipped
from evaluation_parts.results import Results, Row
from evaluation_parts.statistics import geometric_mean
from gnnsched.collective.decode.decoder import Decoding
from gnnsched.models.policy import Policy
from gnnsched.planning import load_policy
from gnnsched.planning.samples import LEARNED_SAMPLES
from gnnsched.training.checkpoint import describe_checkpoint

# Another draw than the held-out part's: what is kept or dropped here is not chosen on those networks.
NETWORK_SEED = 2025
DEFAULT, GREEDY_DECODING, UNTRAINED = "default", "greedy_decoding", "untrained"
NO_WINDOW, ALIKE = "no_window", "samples_alike"
# Folders of ``--ablations``, each with a checkpoint per training seed; what they are in words, in the table's order.
TRAINED = {
    "no_message_passing": "no message passing (features only)",
    "no_flows": "no embedding of in-flight flows",
    "no_guidance": "no packed trees as features",
    "neither": "neither message passing nor packed trees",
    "one_level": "one level (flat)",
    "alternating": "levels in turns instead of jointly",
    "unfaded": "costs of the whole rest of the plan count alike",
}
WORDS = {
    DEFAULT: "**policy**",
    GREEDY_DECODING: "greedy decoding instead of sampling",
    NO_WINDOW: "no decision window",
    ALIKE: "samples all of one kind (free choice)",
    "bcube_only": "trained on BCube only",
    UNTRAINED: "untrained weights",
    **TRAINED,
    "linear": "linear scorer",
    "greedy_augmented": "augmented greedy",
    "trees_augmented": "augmented trees",
}


def settings(options: Options) -> dict[str, object]:
    return {
        "samples": options.samples,
        "network_count": options.held_out_count,
        "network_seed": NETWORK_SEED,
        "case_seed": DRAW,
    }


def _of_seed(label: str, seed: str) -> str:
    return f"{label}, training seed {seed}"


def _scorers(options: Options) -> dict[str, Callable[[], Scorer]]:
    """What makes each scorer that there is a checkpoint for, by label."""

    def untrained() -> Scorer:
        torch.manual_seed(0)
        return policy_scorer(UNTRAINED, Policy().eval())

    def changed(label: str, decoding: Decoding, kinds: bool = True) -> Callable[[], Scorer]:
        """The shipped policy, decoded in another way."""
        return lambda: policy_scorer(label, load_policy(shipped("default")), decoding, kinds)

    made: dict[str, Callable[[], Scorer]] = {
        GREEDY_DECODING: changed(GREEDY_DECODING, Decoding(sample=False)),
        NO_WINDOW: changed(NO_WINDOW, Decoding(window=0.0)),
        ALIKE: changed(ALIKE, LEARNED_SAMPLES[0].decoding(Decoding()), kinds=False),
        "bcube_only": lambda: policy_scorer("bcube_only", load_policy(shipped("bcube_only"))),
        UNTRAINED: untrained,
    }

    def of_folder(label: str, folder: Path) -> Callable[[], Scorer]:
        return lambda: policy_scorer(label, load_policy(folder))

    for seed, folder in options.training_seed_folders().items():
        made[_of_seed(DEFAULT, seed)] = of_folder(_of_seed(DEFAULT, seed), folder)
    for label in TRAINED:
        found = sorted((options.ablations / label).glob("*/checkpoint.json"))
        for checkpoint in found:
            one = _of_seed(label, checkpoint.parent.name)
            made[one] = of_folder(one, checkpoint.parent)
        if not found:
            print(
                f"ablation {label}: no checkpoint in {options.ablations / label}, left out", file=sys.stderr
            )
    for scorer in (LINEAR_SCORER, *RULES):
        made[scorer.label] = lambda scorer=scorer: scorer  # type: ignore[misc]
    return made


def measure(options: Options, results: Results) -> None:
    networks = options.held_out(NETWORK_SEED)
    makers = _scorers(options)
    made: dict[str, Scorer] = {}
    bar = tqdm(total=len(networks), desc="ablation", file=sys.stderr)
    for place, network in networks:
        missing = results.missing(network.name, makers)
        for label in missing:
            if label not in made:
                made[label] = makers[label]()
        for case in cases_of(network, place) if missing else ():
            for label in missing:
                bar.set_postfix_str(f"{network.name}, {case.kind}, {case.chunks_per_server}, {label}")
                results.add(
                    network.name, label, row_of(case, made[label], case.sample(made[label], options.samples))
                )
        if missing:
            results.save()
        bar.update()
    bar.close()


def _shipped_seed() -> str:
    return str(describe_checkpoint(shipped("default"))["seed"])


def _seeds(results: Results, label: str) -> list[str]:
    """Training seeds that ``label`` was measured with; none where it is of the shipped policy or without training."""
    before = _of_seed(label, "")
    labels = dict.fromkeys(row["label"] for row in results.rows if row["label"].startswith(before))
    return sorted(one.removeprefix(before) for one in labels)


def _rows(results: Results, label: str, seeds: Sequence[str], **wanted: Any) -> list[Row]:
    """Rows of ``label``: of its training seeds ``seeds``, of the label itself where there are none."""
    labels = [_of_seed(label, seed) for seed in seeds] or [label]
    return [row for one in labels for row in results.of(label=one, **wanted)]


def _against(results: Results, label: str) -> tuple[float, float] | None:
    """Geometric mean over all cases of a label's time over the policy's: single samples, best.

    Against the policies of the same training seeds; what changes the decoding, against the shipped one.
    """
    known = _seeds(results, DEFAULT)
    seeds = [seed for seed in _seeds(results, label) if seed in known] or [_shipped_seed()]
    own = _rows(results, label, seeds if _seeds(results, label) else ())
    policy = _rows(results, DEFAULT, seeds)
    if not own or not policy:
        return None
    single, best = (
        geometric_mean([row[column] for row in own]) / geometric_mean([row[column] for row in policy])
        for column in ("sample_mean_ratio", "best_ratio")
    )
    return single, best


def tables(results: Results) -> dict[str, str]:
    """Single samples / best of 16, geometric means over the networks."""
    rows = []
    for label, words in WORDS.items():
        seeds = _seeds(results, label)
        if not _rows(results, label, seeds):
            continue
        cells = []
        for kind in KINDS:
            for chunks in CHUNKS:
                found = _rows(results, label, seeds, kind=kind, chunks_per_server=chunks)
                both = [
                    geometric_mean([row[column] for row in found])
                    for column in ("sample_mean_ratio", "best_ratio")
                ]
                cells.append(f"{both[0]:.3f} / {both[1]:.3f}")
        against = _against(results, label)
        last = "" if against is None or label == DEFAULT else " / ".join(f"{x - 1:+.1%}" for x in against)
        rows.append([words + (f", seeds {' '.join(seeds)}" if seeds else ""), *cells, last])
    columns = [f"{kind}, {chunks}" for kind in KINDS for chunks in CHUNKS]
    count = results.settings.get("network_count")
    about = (
        f"Geometric means over {count} networks, seed {NETWORK_SEED}, and the training seeds named. Last column: time "
        f"over the policy's of the same training seeds, else over the shipped one's. {results.made_by()}"
    )
    return {"ablation": f"{table(['', *columns, 'time'], rows)}\n\n{about}"}


def check(results: Results) -> list[str]:
    """Ablations that reach the policy on the mean over all cases, in single samples and at their best."""
    short = []
    for label in (GREEDY_DECODING, NO_WINDOW, ALIKE, UNTRAINED, *TRAINED):
        against = _against(results, label)
        if against is not None and max(against) <= 1.0:
            short.append(f"ablation {label}: as good as the policy")
    return short


PART = Part(settings, measure, tables, check)
