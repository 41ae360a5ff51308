"""What the suite's rows must reach: ratios of the policy and of auto, and what the policies must beat."""

from evaluation_parts.results import Results
from gnnsched.collective.baselines import CLASSICAL

BCUBE_ONLY = "policy, BCube only"
# The table and most bars are at this chunk count, which every scheduler is measured at.
CHUNKS = 4
SKEWED = ("dgx", "dumbbell")
# Unequal NICs: the bound does not bind plans with unequal roots there, so that no ratio is asked for.
NO_BAR = ("star", "hub")
FAMILIES = ("bcube", "dcell", "jellyfish", "fat_tree", "torus", "leaf_spine", *SKEWED, *NO_BAR)
RIVALS = (*CLASSICAL, "greedy")

POLICY_UNIFORM = 1.007
POLICY_SKEWED = {
    ("dgx_2x8", 4): 1.012,
    ("dgx_4x8", 4): 1.05,
    ("dumbbell_8_8", 4): 1.05,
    ("dgx_2x8", 1): 1.38,
    ("dgx_4x8", 1): 1.20,
    ("dumbbell_8_8", 1): 1.19,
}
# Single samples may be that much above on the mean, and the BCube-only policy above the default one.
SINGLE_SAMPLE_SLACK, BCUBE_ONLY_SLACK = 0.03, 0.02
# auto: (largest ratio, most seconds of planning).
AUTO_SMALL, AUTO_LARGE, AUTO_SKEWED = (1.005, 2.0), (1.01, 10.0), (1.01, 30.0)
SMALL_SERVERS = 64


def family_of(name: str) -> str:
    """Family of a network of the suite, "" for none of them."""
    return next((family for family in FAMILIES if name.startswith(family)), "")


def is_uniform(name: str) -> bool:
    """Whether a network of the suite has no skew."""
    return family_of(name) not in ("", *SKEWED, *NO_BAR)


def beats(ours: float, theirs: float) -> bool:
    """Strictly below, or within 1 % where the baseline itself is within 2 % of the bound."""
    return ours < theirs or (theirs <= 1.02 and ours <= 1.01 * theirs)


def check(results: Results) -> list[str]:
    """Misses of the bars on auto, on the policy and on the BCube-only policy; means over seeds."""
    short = []
    for name in results.names():
        if family_of(name) in ("", *NO_BAR):
            continue
        short += _auto(results, name) + _policy(results, name) + _rivals(results, name)
    return short


def _auto(results: Results, name: str) -> list[str]:
    auto = results.of(name, "auto")
    if not auto:
        return [f"auto on {name}: not measured"]
    ratio = results.mean("best_ratio", name, "auto")
    seconds = max(row["plan_s"] for row in auto)
    most, limit = AUTO_SMALL
    if not is_uniform(name):
        most, limit = AUTO_SKEWED
    elif results.networks.get(name, {}).get("servers", 0) > SMALL_SERVERS:
        most, limit = AUTO_LARGE
    short = []
    if ratio is not None and ratio > most:
        short.append(f"auto on {name}: {ratio:.4f}, above {most}")
    if seconds > limit:
        short.append(f"auto on {name}: planned for {seconds:.1f} s, longer than {limit:g} s")
    return short


def _policy(results: Results, name: str) -> list[str]:
    if is_uniform(name):
        wanted = {CHUNKS: POLICY_UNIFORM}
    else:
        wanted = {chunks: most for (network, chunks), most in POLICY_SKEWED.items() if network == name}
    short = []
    for chunks, most in wanted.items():
        for column, bar, what in (
            ("best_ratio", most, "best of its samples"),
            ("sample_mean_ratio", most + SINGLE_SAMPLE_SLACK, "single samples"),
        ):
            ratio = results.mean(column, name, "policy", chunks_per_server=chunks)
            if ratio is None:
                short.append(f"policy on {name}, {chunks} chunk(s) per server: not measured")
            elif ratio > bar:
                short.append(
                    f"policy on {name}, {chunks} chunk(s) per server, {what}: {ratio:.4f}, above {bar:.3f}"
                )
    return short


def _rivals(results: Results, name: str) -> list[str]:
    """The BCube-only policy on DCell and Jellyfish, against the baselines and the default checkpoint."""
    if family_of(name) not in ("dcell", "jellyfish"):
        return []
    ours = results.mean("best_ratio", name, BCUBE_ONLY, chunks_per_server=CHUNKS)
    if ours is None:
        return [f"{BCUBE_ONLY} on {name}: not measured"]
    short = []
    for rival in RIVALS:
        theirs = results.mean("best_ratio", name, rival, chunks_per_server=CHUNKS)
        if theirs is not None and not beats(ours, theirs):
            short.append(f"{BCUBE_ONLY} does not beat {rival} on {name}: {ours:.4f} against {theirs:.4f}")
    default = results.mean("best_ratio", name, "policy", chunks_per_server=CHUNKS)
    if default is not None and ours > default + BCUBE_ONLY_SLACK:
        short.append(
            f"{BCUBE_ONLY} on {name}: {ours:.4f}, more than {BCUBE_ONLY_SLACK} above the default's {default:.4f}"
        )
    return short
