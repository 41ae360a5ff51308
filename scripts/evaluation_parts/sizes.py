"""auto against the classical algorithms for messages of 1 KiB to 4 GiB on the suite."""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from evaluation_parts.markdown import number, table
from evaluation_parts.options import Options, Part, shipped
from evaluation_parts.results import Results, Row
from evaluation_parts.statistics import geometric_mean
from evaluation_parts.suite_bars import is_uniform
from gnnsched.collective.baselines import CLASSICAL
from gnnsched.collective.bounds import algorithm_bandwidth, bounds, bus_bandwidth
from gnnsched.evaluation import evaluate
from gnnsched.planning import load_policy
from gnnsched.topology import Topology
from gnnsched.topology.files import write_atomically
from gnnsched.topology.units import format_size

SIZES = tuple(2**exponent for exponent in range(10, 33, 2))
AUTO_SECONDS = 10.0
CLASSICAL_CHUNKS = (1, 4)
MEBIBYTE = 2**20
# Largest ratio on uniform networks at 1 MiB, and from 16 MiB on; least geometric mean speed-up.
MOST_AT_1_MIB, MOST_FROM_16_MIB, LEAST_SPEED_UP = 1.25, 1.02, 1.3
# auto and a classical schedule of the same transfers may differ by the rounding of sums.
ROUNDING = 1e-6
PANELS = ("bcube_4_2", "dcell_4_1", "jellyfish_20x4x2", "torus_4x4", "dgx_2x8", "dumbbell_8_8")


def settings(options: Options) -> dict[str, object]:
    return {
        "sizes": list(SIZES),
        "samples": options.samples,
        "seeds": 1,
        "auto_time_limit_s": AUTO_SECONDS,
        "classical_chunks_per_server": list(CLASSICAL_CHUNKS),
    }


def measure(options: Options, results: Results) -> None:
    networks = options.suite()
    policy = load_policy(shipped("default"))
    labels = ("auto", *CLASSICAL)
    bar = tqdm(total=len(networks) * len(SIZES), desc="sizes", file=sys.stderr)
    for network in networks:
        missing = results.missing(network.name, labels)
        for size in SIZES:
            bar.set_postfix_str(f"{network.name}, {format_size(size)}")
            for label in missing:
                chunks = [None] if label == "auto" else [*CLASSICAL_CHUNKS]
                rows = evaluate([network], [label], chunks, size, options.samples, 1, AUTO_SECONDS, policy)
                best = min(rows, key=lambda row: row.makespan_s)
                results.add(
                    network.name,
                    label,
                    {
                        "message_bytes": size,
                        "chunks_per_server": best.chunks_per_server,
                        "makespan_s": best.makespan_s,
                        "ratio": best.best_ratio,
                        "algbw": algorithm_bandwidth(size, best.makespan_s),
                        "busbw": bus_bandwidth(size, best.makespan_s, len(network.participants)),
                        "plan_s": best.plan_s,
                        "planned_by": best.planned_by,
                    },
                )
            bar.update()
        if missing:
            results.about(network.name, **_bound_lines(network))
            results.save()
    bar.close()


def _bound_lines(network: Topology) -> dict[str, object]:
    """The bound's busbw (bytes/s) at every size."""
    servers = len(network.participants)
    proven = [bounds(network, size, lp_time_limit=0.0).bound_s for size in SIZES]
    return {
        "servers": servers,
        "bound_busbw": [bus_bandwidth(size, bound, servers) for size, bound in zip(SIZES, proven)],
    }


def _best_classical(results: Results, name: str, size: int) -> Row | None:
    rows = [row for label in CLASSICAL for row in results.of(name, label, message_bytes=size)]
    return min(rows, key=lambda row: row["makespan_s"], default=None)


def best_single(results: Results) -> str:
    """The classical algorithm with the least geometric mean makespan over all networks and sizes."""
    return min(
        (label for label in CLASSICAL if results.of(label=label)),
        key=lambda label: geometric_mean([row["makespan_s"] for row in results.of(label=label)]),
    )


def _speed_up(results: Results, rival: str, size: int | None = None) -> float:
    """Geometric mean of the rival's makespan over auto's, at one size or at all."""
    theirs = {(row["topology"], row["message_bytes"]): row["makespan_s"] for row in results.of(label=rival)}
    ours = [row for row in results.of(label="auto") if size in (None, row["message_bytes"])]
    return geometric_mean([theirs[row["topology"], row["message_bytes"]] / row["makespan_s"] for row in ours])


def _smallest(results: Results, size: int) -> tuple[float, str, str]:
    """Least speed-up of auto over the best classical algorithm at a size, that algorithm, the network."""
    found = []
    for row in results.of(label="auto", message_bytes=size):
        best = _best_classical(results, row["topology"], size)
        if best is not None:
            found.append((best["makespan_s"] / row["makespan_s"], best["label"], row["topology"]))
    return min(found)


def _uniform_ratios(results: Results, size: int) -> list[tuple[float, str]]:
    rows = results.of(label="auto", message_bytes=size)
    return [(row["ratio"], row["topology"]) for row in rows if is_uniform(row["topology"])]


def tables(results: Results) -> dict[str, str]:
    single = best_single(results)
    rows = []
    for size in SIZES:
        least, rival, name = _smallest(results, size)
        ratios = [ratio for ratio, _ in _uniform_ratios(results, size)]
        rows.append(
            [
                format_size(size),
                number(_speed_up(results, single, size), 2),
                f"{least:.3f} ({rival} on {name})",
                number(geometric_mean(ratios) if ratios else None),
                number(max(ratios, default=None)),
            ]
        )
    rows.append(["all", number(_speed_up(results, single), 2), "", "", ""])
    columns = [
        "message",
        f"speed-up over {single}",
        "smallest speed-up over the best classical",
        "ratio on uniform networks",
        "largest ratio on uniform networks",
    ]
    figure = "\n\n![busbw by message size](scripts/results/sizes.png)"
    shown = figure if results.path.with_suffix(".png").exists() else ""
    return {"sizes": f"{table(columns, rows)}\n\n{results.made_by()}{shown}"}


def check(results: Results) -> list[str]:
    """Misses of the bars on messages of all sizes."""
    short = []
    for size in SIZES:
        for row in results.of(label="auto", message_bytes=size):
            name, what = row["topology"], format_size(size)
            if row["planned_by"] in CLASSICAL:
                short.append(f"auto on {name}, {what}: returned {row['planned_by']}")
            best = _best_classical(results, name, size)
            if best is not None and row["makespan_s"] > best["makespan_s"] * (1 + ROUNDING):
                slower = row["makespan_s"] / best["makespan_s"]
                short.append(f"auto on {name}, {what}: {slower:.4f} times the time of {best['label']}")
        bar = MOST_AT_1_MIB if size == MEBIBYTE else MOST_FROM_16_MIB if size >= 16 * MEBIBYTE else None
        for ratio, name in _uniform_ratios(results, size):
            if bar is not None and ratio > bar:
                short.append(f"auto on {name}, {format_size(size)}: {ratio:.4f} of the bound, above {bar}")
    single = best_single(results)
    gained = _speed_up(results, single)
    if gained < LEAST_SPEED_UP:
        short.append(f"auto is {gained:.3f} times faster than {single}, less than {LEAST_SPEED_UP}")
    return short


def draw(results: Results, path: Path) -> None:
    """busbw against message size, as nccl-tests is plotted: auto, best classical algorithm, ring, bound."""
    names = [name for name in PANELS if name in results.names()] or results.names()[:6]
    lines = -(-len(names) // 3)
    figure = Figure(figsize=(12, 3.4 * lines + 0.5), dpi=110, layout="constrained")
    panels = figure.subplots(lines, 3, squeeze=False).ravel().tolist()
    for axes, name in zip(panels, names):
        _panel(axes, results, name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[: len(names)][-3:]:
        axes.set_xlabel("message size")
    for axes in panels[::3]:
        axes.set_ylabel("busbw (GB/s)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    write_atomically(path, lambda stream: FigureCanvasAgg(figure).print_png(stream))


def _panel(axes: Axes, results: Results, name: str) -> None:
    best = [row for size in SIZES if (row := _best_classical(results, name, size)) is not None]
    lines = {
        "auto": (results.of(name, "auto"), "#0072b2", "o"),
        "best classical algorithm": (best, "#e69f00", "D"),
        "ring": (results.of(name, "ring"), "#999999", "s"),
    }
    bound = results.networks[name]["bound_busbw"]
    axes.plot(SIZES, [value / 1e9 for value in bound], color="black", lw=1, ls="--", label="bound")
    for label, (rows, colour, marker) in lines.items():
        rows = sorted(rows, key=lambda row: row["message_bytes"])
        sizes, speeds = [row["message_bytes"] for row in rows], [row["busbw"] / 1e9 for row in rows]
        axes.plot(sizes, speeds, color=colour, marker=marker, ms=4, lw=1.5, label=label)
    axes.set_xscale("log", base=2)
    ticks = SIZES[::2]
    axes.set_xticks(ticks, [format_size(size) for size in ticks], fontsize=8)
    axes.set_yscale("log")
    axes.grid(color="#e6e6e6")
    axes.set_title(f"{name}, {results.networks[name]['servers']} servers", fontsize=10)


PART = Part(settings, measure, tables, check, draw)
