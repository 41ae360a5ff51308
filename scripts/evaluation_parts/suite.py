"""Every scheduler on the evaluation suite at 1 GiB, at several chunk counts, beside auto and the BCube-only policy."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from evaluation_parts.markdown import number, percent, table
from evaluation_parts.options import GIBIBYTE, Options, Part, shipped
from evaluation_parts.results import Results
from evaluation_parts.statistics import mean
from evaluation_parts.suite_bars import BCUBE_ONLY, CHUNKS, SKEWED, check, family_of
from gnnsched.collective.baselines import CLASSICAL
from gnnsched.collective.bounds import bounds
from gnnsched.evaluation import Row, evaluate
from gnnsched.planning import SCHEDULERS, load_policy
from gnnsched.topology import Topology
from gnnsched.topology.files import write_atomically

# One row's samples begin within this many seconds; auto gets longer where links differ most.
ROW_SECONDS, AUTO_SECONDS, SKEWED_AUTO_SECONDS = 10.0, 10.0, 30.0
LP_SECONDS = 30.0
# More transfers in one half than this, and a network gets fewer chunk counts; one seed beyond fewer, or more servers.
MOST_TRANSFERS, MOST_SEEDED, MOST_SERVERS = 70_000, 20_000, 64
# What the published RL planner (arXiv 2503.21013) claims over BCube, DCell and Jellyfish together.
PUBLISHED_TIME, PUBLISHED_THROUGHPUT = 0.197, 0.223


def settings(options: Options) -> dict[str, object]:
    return {
        "message_bytes": GIBIBYTE,
        "samples": options.samples,
        "seeds": options.seeds,
        "chunks_per_server": list(options.chunks),
    }


def chunk_counts(topology: Topology, chunks: tuple[int, ...]) -> list[int]:
    """Those of ``chunks`` that keep one half under ``MOST_TRANSFERS``, and 4 and fewer in any case."""
    servers = len(topology.participants)
    return [count for count in chunks if count <= 4 or servers * servers * count <= MOST_TRANSFERS]


def planning_seeds(topology: Topology, count: int, seeds: int) -> int:
    """How many of ``seeds`` a network gets at ``count`` chunks per server."""
    servers = len(topology.participants)
    return seeds if servers <= MOST_SERVERS and servers * servers * count <= MOST_SEEDED else 1


def measure(options: Options, results: Results) -> None:
    networks = options.suite()
    default, bcube_only = load_policy(shipped("default")), load_policy(shipped("bcube_only"))
    labels = (*SCHEDULERS, "auto", BCUBE_ONLY)
    bar = tqdm(total=len(networks) * len(labels), desc="suite", file=sys.stderr)
    for network in networks:
        servers = len(network.participants)
        seeds = planning_seeds(network, CHUNKS, options.seeds)
        counts = chunk_counts(network, options.chunks)
        missing = results.missing(network.name, labels)
        bar.update(len(labels) - len(missing))
        if not missing:
            continue

        def rows(
            names: list[str],
            chunks: list[int | None],
            own_seeds: int = seeds,
            seconds: float = ROW_SECONDS,
            policy: Any = default,
            network: Topology = network,
        ) -> Iterator[Row]:
            return evaluate(
                [network],
                names,
                chunks,
                GIBIBYTE,
                options.samples,
                own_seeds,
                seconds,
                policy,
                bar.set_postfix_str,
            )

        limit = SKEWED_AUTO_SECONDS if family_of(network.name) in SKEWED else AUTO_SECONDS
        found: list[tuple[str, Row]] = []
        for name in missing:
            if name == "auto":
                found += [(name, row) for row in rows(["auto"], [None], seconds=limit)]
            elif name == BCUBE_ONLY:
                found += [(name, row) for row in rows(["policy"], [CHUNKS], policy=bcube_only)]
            else:
                for count in counts:
                    own = 1 if name in CLASSICAL else planning_seeds(network, count, options.seeds)
                    found += [(name, row) for row in rows([name], [count], own)]
            bar.update()
        for label, row in found:
            results.add(network.name, label, _kept(row))
        proven = bounds(network, GIBIBYTE, LP_SECONDS)
        results.about(
            network.name,
            servers=servers,
            bound_s=proven.bound_s,
            lp_bound_s=proven.lp_bound_s,
            lp_note=proven.lp_note,
        )
        results.save()
    bar.close()


def _kept(row: Row) -> dict[str, Any]:
    names = (
        "chunks_per_server",
        "seed",
        "sample_mean_ratio",
        "best_ratio",
        "makespan_s",
        "plan_s",
        "planned_by",
    )
    values = row.as_dict()
    return {name: values[name] for name in names}


def ratio(results: Results, name: str, label: str) -> float | None:
    """Mean over seeds of the best of the samples at 4 chunks per server."""
    return results.mean("best_ratio", name, label, chunks_per_server=CHUNKS)


def tables(results: Results) -> dict[str, str]:
    figure = "\n\n![Best ratio by network](scripts/results/suite.png)" if _picture(results).exists() else ""
    kept = results.settings
    about = (
        f"1 GiB; {CHUNKS} chunks per server (auto: its own choice), best of {kept['samples']} samples begun within "
        f"{ROW_SECONDS:g} s, mean over {kept['seeds']} seeds (one beyond {MOST_SERVERS} servers, and "
        f"beyond {MOST_SEEDED:,} transfers in a half), all verified."
    )
    return {
        "suite": f"{_by_scheduler(results)}\n\n{about} {results.made_by()}{figure}",
        "chunks": _by_chunks(results),
        "families": _by_family(results),
    }


def _by_scheduler(results: Results) -> str:
    columns = ("policy", BCUBE_ONLY, "linear", "greedy_augmented", "trees_augmented", "greedy", *CLASSICAL)
    rows = []
    for name in results.names():
        auto = results.of(name, "auto")
        how = ", ".join(str(count) for count in sorted({row["chunks_per_server"] for row in auto}))
        seconds = mean([row["plan_s"] for row in auto]) if auto else 0.0
        facts = results.networks.get(name, {})
        lp_bound = facts.get("lp_bound_s")
        rows.append(
            [
                name,
                number(lp_bound / facts["bound_s"] if lp_bound else None),
                f"{number(results.mean('best_ratio', name, 'auto'))} ({how}; {seconds:.1f})",
                *(number(ratio(results, name, column)) for column in columns),
            ]
        )
    return table(["topology", "LP bound", "auto (chunks; s)", *columns], rows)


def _by_chunks(results: Results) -> str:
    """Best of 16 and, in brackets, the mean of single samples."""
    counts = sorted({row["chunks_per_server"] for row in results.of(label="policy")})
    columns = [(count, label) for count in counts for label in ("policy", "linear", "rules")]
    rows = []
    for name in results.names():
        cells = []
        for count, label in columns:
            best, single = (
                _best_rule(results, name, count, column)
                if label == "rules"
                else results.mean(column, name, label, chunks_per_server=count)
                for column in ("best_ratio", "sample_mean_ratio")
            )
            cells.append("-" if best is None else f"{best:.3f} ({number(single)})")
        rows.append([name, *cells])
    return table(["topology", *(f"{label}, {count}" for count, label in columns)], rows)


def _best_rule(results: Results, name: str, chunks: int, column: str = "best_ratio") -> float | None:
    """The better of augmented greedy and augmented trees."""
    both = [
        results.mean(column, name, label, chunks_per_server=chunks)
        for label in ("greedy_augmented", "trees_augmented")
    ]
    known = [value for value in both if value is not None]
    return min(known, default=None)


def _by_family(results: Results) -> str:
    """The BCube-only policy against PS and ring, beside the published planner's claims."""
    rows = []
    for family in ("bcube", "dcell", "jellyfish"):
        cells = []
        for rival in ("parameter_server", "ring"):
            shares = []
            for name in results.names():
                ours, theirs = ratio(results, name, BCUBE_ONLY), ratio(results, name, rival)
                if name.startswith(family) and ours is not None and theirs is not None:
                    shares.append(ours / theirs)
            share = mean(shares) if shares else None
            cells += [
                percent(None if share is None else 1 - share),
                percent(None if share is None else 1 / share - 1),
            ]
        rows.append([family, *cells])
    claimed = [percent(PUBLISHED_TIME), percent(PUBLISHED_THROUGHPUT), "", ""]
    rows.append(["claimed by the published planner, all three", *claimed])
    gains = [f"{gain} than {rival}" for rival in ("PS", "ring") for gain in ("less time", "more throughput")]
    return table(["family", *gains], rows)


def _picture(results: Results) -> Path:
    return results.path.with_suffix(".png")


def draw(results: Results, path: Path) -> None:
    """Dots: the best ratio of policy, linear scorer, rules and ring on each network, at 4 chunks per server."""
    names = results.names()
    shown: dict[str, tuple[str, str, Callable[[str], float | None]]] = {
        "ring": ("#999999", "s", lambda name: ratio(results, name, "ring")),
        "better of greedy and trees, augmented": (
            "#e69f00",
            "D",
            lambda name: _best_rule(results, name, CHUNKS),
        ),
        "linear scorer": ("#009e73", "^", lambda name: ratio(results, name, "linear")),
        "policy": ("#0072b2", "o", lambda name: ratio(results, name, "policy")),
    }
    figure = Figure(figsize=(9, 0.32 * len(names) + 1.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for label, (colour, marker, value) in shown.items():
        points = [(known, place) for place, name in enumerate(names) if (known := value(name)) is not None]
        axes.scatter(
            [1e2 * (x - 1) for x, _ in points],
            [y for _, y in points],
            c=colour,
            marker=marker,
            label=label,
            s=34,
            zorder=3,
        )
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xticks([0, 1, 3, 10, 30, 100, 300], ["0", "1", "3", "10", "30", "100", "300"])
    axes.set_xlim(left=-0.1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="both", color="#e6e6e6")
    axes.set_xlabel("makespan above the bound (%), linear up to 1 %, logarithmic beyond")
    axes.set_title("AllReduce of 1 GiB at 4 chunks per server, best of 16 samples")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    write_atomically(path, lambda stream: FigureCanvasAgg(figure).print_png(stream))


PART = Part(settings, measure, tables, check, draw)
