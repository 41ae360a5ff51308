"""What each part of the policy and of its training adds: ratios on held-out networks without it."""

import sys
from collections.abc import Callable

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
from evaluation_parts.results import Results
from evaluation_parts.statistics import geometric_mean
from gnnsched.collective.decode.decoder import Decoding
from gnnsched.models.policy import Policy
from gnnsched.planning import load_policy

# Another draw than the held-out part's: what is kept or dropped here is not chosen on those networks.
NETWORK_SEED = 2025
DEFAULT, GREEDY_DECODING, UNTRAINED = "default", "greedy_decoding", "untrained"
# Checkpoints of ``--ablations``, what they are in words, in the order of the table.
TRAINED = {
    "no_message_passing": "no message passing (features only)",
    "no_flows": "no embedding of in-flight flows",
    "one_level": "one level (flat)",
    "alternating": "levels in turns instead of jointly",
    "unfaded": "costs of the whole rest of the plan count alike",
}
WORDS = {
    DEFAULT: "**policy**",
    GREEDY_DECODING: "greedy decoding instead of sampling",
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


def _scorers(options: Options) -> dict[str, Callable[[], Scorer]]:
    """What makes each scorer that there is a checkpoint for, by label."""

    def untrained() -> Scorer:
        torch.manual_seed(0)
        return policy_scorer(UNTRAINED, Policy().eval())

    def default() -> Policy:
        return load_policy(shipped("default"))

    made: dict[str, Callable[[], Scorer]] = {
        DEFAULT: lambda: policy_scorer(DEFAULT, default()),
        GREEDY_DECODING: lambda: policy_scorer(GREEDY_DECODING, default(), Decoding(sample=False)),
        "bcube_only": lambda: policy_scorer("bcube_only", load_policy(shipped("bcube_only"))),
        UNTRAINED: untrained,
    }
    for label in TRAINED:
        folder = options.ablations / label
        if (folder / "checkpoint.json").is_file():
            made[label] = lambda label=label, folder=folder: policy_scorer(label, load_policy(folder))  # type: ignore[misc]
        else:
            print(f"ablation {label}: no checkpoint in {folder}, left out", file=sys.stderr)
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


def tables(results: Results) -> dict[str, str]:
    """Single samples / best of 16, geometric means over the networks."""
    rows = []
    for label, words in WORDS.items():
        if not results.of(label=label):
            continue
        cells = []
        for kind in KINDS:
            for chunks in CHUNKS:
                found = results.of(label=label, kind=kind, chunks_per_server=chunks)
                both = [
                    geometric_mean([row[column] for row in found])
                    for column in ("sample_mean_ratio", "best_ratio")
                ]
                cells.append(f"{both[0]:.3f} / {both[1]:.3f}")
        rows.append([words, *cells])
    columns = [f"{kind}, {chunks}" for kind in KINDS for chunks in CHUNKS]
    count = results.settings.get("network_count")
    about = f"Geometric means over {count} networks, seed {NETWORK_SEED}. {results.made_by()}"
    return {"ablation": f"{table(['', *columns], rows)}\n\n{about}"}


def check(results: Results) -> list[str]:
    """Ablations that reach the policy on the mean over all cases, in single samples and at their best."""

    def overall(label: str, column: str) -> float:
        return geometric_mean([row[column] for row in results.of(label=label)])

    short = []
    for label in (GREEDY_DECODING, UNTRAINED, *TRAINED):
        if not results.of(label=label) or not results.of(label=DEFAULT):
            continue
        if all(
            overall(label, column) <= overall(DEFAULT, column)
            for column in ("sample_mean_ratio", "best_ratio")
        ):
            short.append(f"ablation {label}: as good as the policy")
    return short


PART = Part(settings, measure, tables, check)
