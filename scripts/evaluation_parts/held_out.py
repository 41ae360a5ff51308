"""What learning earns on networks of families never trained on: the policy of each training seed, the rules, auto."""

import math
import sys
from collections.abc import Callable, Sequence

from tqdm import tqdm

from evaluation_parts.cases import CHUNKS, DRAW, KINDS, LINEAR_SCORER, RULES, cases_of, policy_scorer, row_of
from evaluation_parts.markdown import number, percent, table
from evaluation_parts.options import GIBIBYTE, Options, Part, shipped
from evaluation_parts.results import Results
from evaluation_parts.statistics import geometric_mean, mean, t_interval
from evaluation_parts.suite_bars import beats
from gnnsched.collective.baselines import CLASSICAL
from gnnsched.evaluation import evaluate
from gnnsched.planning import load_policy
from gnnsched.topology import Topology

POLICY_CHUNKS = 4
AUTO_SECONDS = 10.0
RIVALS = (*CLASSICAL, "greedy")
ALLREDUCE = "allreduce"
SEED = "policy, training seed "
RULE_LABELS = tuple(rule.label for rule in RULES)
STATISTICS = {"sample_mean_ratio": "single samples", "best_ratio": "best of 16"}
# Least saving against the better rule and against the linear scorer; training seeds that this takes.
LEAST_AGAINST_RULES, LEAST_AGAINST_LINEAR, LEAST_SEEDS = 0.03, 0.01, 5
# Largest mean ratio of the policy at 4 chunks and of auto.
MOST_POLICY, MOST_AUTO = 1.06, 1.01


def settings(options: Options) -> dict[str, object]:
    return {
        "samples": options.samples,
        "network_count": options.held_out_count,
        "network_seed": options.held_out_seed,
        "case_seed": DRAW,
    }


def measure(options: Options, results: Results) -> None:
    networks = options.held_out(options.held_out_seed)
    scorers = {scorer.label: scorer for scorer in (*RULES, LINEAR_SCORER)}
    for name, folder in options.training_seed_folders().items():
        scorers[SEED + name] = policy_scorer(SEED + name, load_policy(folder))
    allreduce = ("policy", "auto", *RIVALS)
    bar = tqdm(total=len(networks), desc="held out", file=sys.stderr)
    for place, network in networks:
        missing = results.missing(network.name, scorers)
        for case in cases_of(network, place) if missing else ():
            for label in missing:
                bar.set_postfix_str(f"{network.name}, {case.kind}, {case.chunks_per_server}, {label}")
                results.add(
                    network.name,
                    label,
                    row_of(case, scorers[label], case.sample(scorers[label], options.samples)),
                )
        whole = results.missing(network.name, allreduce)
        _allreduce(options, results, network, whole, bar.set_postfix_str)
        if missing or whole:
            results.about(network.name, servers=len(network.participants))
            results.save()
        bar.update()
    bar.close()


def _allreduce(
    options: Options,
    results: Results,
    network: Topology,
    labels: Sequence[str],
    progress: Callable[[str], None],
) -> None:
    """Whole AllReduces of 1 GiB with the shipped policy."""
    policy = load_policy(shipped("default"))
    for label in labels:
        chunks = None if label == "auto" else POLICY_CHUNKS
        for row in evaluate(
            [network], [label], [chunks], GIBIBYTE, options.samples, 1, AUTO_SECONDS, policy, progress
        ):
            kept = {
                "kind": ALLREDUCE,
                "chunks_per_server": row.chunks_per_server,
                "message_bytes": GIBIBYTE,
                "sample_mean_ratio": row.sample_mean_ratio,
                "best_ratio": row.best_ratio,
                "plan_s": row.plan_s,
                "planned_by": row.planned_by,
            }
            results.add(network.name, label, kept)


def _ratios(results: Results, label: str, column: str, kind: str, chunks: int) -> dict[str, float]:
    """By network."""
    return {
        row["topology"]: row[column] for row in results.of(label=label, kind=kind, chunks_per_server=chunks)
    }


def seed_labels(results: Results) -> list[str]:
    """Labels of the training seeds' policies, in order."""
    return list(dict.fromkeys(row["label"] for row in results.rows if row["label"].startswith(SEED)))


def better_rule(results: Results, column: str, kind: str, chunks: int) -> dict[str, float]:
    """The better of the two rules on each network."""
    both = [_ratios(results, label, column, kind, chunks) for label in RULE_LABELS]
    return {name: min(ratios[name] for ratios in both) for name in both[0]}


def savings(results: Results, column: str, kind: str, chunks: int, rival: dict[str, float]) -> list[float]:
    """1 - geometric mean of the policy's makespan over the rival's, for each training seed."""
    found = []
    for label in seed_labels(results):
        ours = _ratios(results, label, column, kind, chunks)
        found.append(1 - geometric_mean([ours[name] / rival[name] for name in ours]))
    return found


def _cell(values: Sequence[float]) -> str:
    interval = t_interval(values)
    around = "" if interval is None else f" ({percent(interval[0])} … {percent(interval[1])})"
    return percent(mean(values)) + around


def tables(results: Results) -> dict[str, str]:
    about = (
        f"Savings: mean over {len(seed_labels(results))} training seed(s), with its 95 % t-interval. "
        f"Spread: largest less smallest geometric mean of the training seeds. {results.made_by()}"
    )
    return {"held_out": f"{_learning(results)}\n\n{about}", "held_out_allreduce": _whole(results)}


def _learning(results: Results) -> str:
    rows = []
    for kind in KINDS:
        for chunks in CHUNKS:
            for column, words in STATISTICS.items():
                linear = _ratios(results, "linear", column, kind, chunks)
                own = [
                    geometric_mean([*_ratios(results, label, column, kind, chunks).values()])
                    for label in seed_labels(results)
                ]
                others = [
                    number(geometric_mean([*_ratios(results, label, column, kind, chunks).values()]))
                    for label in (*RULE_LABELS, "linear")
                ]
                against_rules = savings(
                    results, column, kind, chunks, better_rule(results, column, kind, chunks)
                )
                against_linear = savings(results, column, kind, chunks, linear)
                rows.append(
                    [
                        f"{kind}, {chunks}, {words}",
                        number(mean(own)),
                        number(max(own) - min(own)),
                        *others,
                        _cell(against_rules),
                        _cell(against_linear),
                    ]
                )
    columns = ["case", "policy", "spread", *RULE_LABELS, "linear", "saving on the better rule", "on linear"]
    return table(columns, rows)


def losses(results: Results, label: str) -> list[str]:
    """Where ``label`` fails to beat a classical baseline or plain greedy."""
    lost = []
    for row in results.of(label=label, kind=ALLREDUCE):
        for rival in RIVALS:
            for other in results.of(row["topology"], rival, kind=ALLREDUCE):
                if not beats(row["best_ratio"], other["best_ratio"]):
                    lost.append(
                        f"{label} does not beat {rival} on held-out {row['topology']}: "
                        f"{row['best_ratio']:.4f} against {other['best_ratio']:.4f}"
                    )
    return lost


def _whole(results: Results) -> str:
    rows = []
    for label in ("auto", "policy", *RIVALS):
        ratios = [row["best_ratio"] for row in results.of(label=label, kind=ALLREDUCE)]
        if ratios:
            lost = str(len(losses(results, label))) if label in ("auto", "policy") else ""
            rows.append([label, number(mean(ratios)), number(max(ratios)), lost])
    return table(["scheduler", "mean ratio", "largest ratio", "baselines not beaten"], rows)


def check(results: Results) -> list[str]:
    """Misses of the bars on what learning earns, and on whole AllReduces of unseen networks."""
    short = []
    seeds = len(seed_labels(results))
    if seeds < LEAST_SEEDS:
        short.append(f"held out: {seeds} training seed(s) measured, fewer than {LEAST_SEEDS}")
    for kind in KINDS:
        for chunks in CHUNKS:
            for column, words in STATISTICS.items():
                rivals = (
                    ("the better rule", LEAST_AGAINST_RULES, better_rule(results, column, kind, chunks)),
                    ("linear", LEAST_AGAINST_LINEAR, _ratios(results, "linear", column, kind, chunks)),
                )
                for rival, least, ratios in rivals:
                    values = savings(results, column, kind, chunks, ratios)
                    low = (t_interval(values) or (-math.inf, math.inf))[0]
                    if mean(values) < least or not low > 0:
                        short.append(
                            f"held out, {kind}, {chunks} chunk(s), {words}: the policy saves {_cell(values)} on "
                            f"{rival}, not {least:.0%} beyond doubt"
                        )
    for label, most in (("policy", MOST_POLICY), ("auto", MOST_AUTO)):
        ratio = results.mean("best_ratio", label=label, kind=ALLREDUCE)
        if ratio is not None and ratio > most:
            short.append(f"{label} on the held-out networks: {ratio:.4f} on the mean, above {most}")
        short += losses(results, label)
    return short


PART = Part(settings, measure, tables, check)
