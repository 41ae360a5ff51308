"""A schedule as a picture: how busy links are over time, and where the bottleneck is in the network."""

import os
import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, StepPatch
from numpy.typing import NDArray

from gnnsched.collective.schedule import BROADCAST, PHASES, REDUCE, Schedule
from gnnsched.collective.simulator import SimulationResult, simulate
from gnnsched.report.layout import node_positions
from gnnsched.report.time_shares import equally_busy, link_name
from gnnsched.topology import Topology
from gnnsched.topology.files import write_atomically
from gnnsched.topology.units import format_size, format_time

TRACKS = 24
BINS = 600
PHASE_COLOURS = {REDUCE: "#0072b2", BROADCAST: "#e69f00"}
BOTTLENECK_COLOUR = "#d00000"
# Labels of more nodes than this would lie on each other.
MOST_LABELS = 120


def plot_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Draw a right ``schedule`` to the PNG file ``path``. Raises InputError where it cannot be written."""
    result = simulate(schedule)
    figure = schedule_figure(schedule, result)
    write_atomically(path, lambda stream: FigureCanvasAgg(figure).print_png(stream))


def schedule_figure(schedule: Schedule, result: SimulationResult) -> Figure:
    """The figure that ``plot_schedule`` writes."""
    figure = Figure(figsize=(18, 9), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.0))
    figure.suptitle(
        f"{schedule.topology.name}: AllReduce of {format_size(schedule.message_bytes)} by "
        f"{schedule.planner.get('name', 'unnamed')}, {format_time(result.makespan)}",
        fontsize=14,
    )
    draw_occupancy(left, schedule, result)
    draw_network(right, schedule.topology, result)
    return figure


def link_use(
    schedule: Schedule, result: SimulationResult, link: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share (2, len(edges) - 1) of the link's bandwidth in use between consecutive ``edges`` (s), per phase."""
    t = schedule.transfers
    hops = np.flatnonzero(t.path_links == link)
    owner = np.searchsorted(t.path_start, hops, side="right") - 1
    passed = np.concatenate(([0.0], np.cumsum(schedule.topology.latency[t.path_links])))
    begin = result.start[owner] + passed[hops] - passed[t.path_start[owner]]
    share = t.rate[owner] / schedule.topology.bandwidth[link]
    end = begin + schedule.chunk_bytes / t.rate[owner]
    use = np.zeros((len(PHASES), len(edges) - 1))
    for phase in range(len(PHASES)):
        own = t.phase[owner] == phase
        total = _ramps(begin[own], share[own], edges) - _ramps(end[own], share[own], edges)
        use[phase] = np.diff(total) / np.diff(edges)
    return use


def _ramps(
    begin: NDArray[np.float64], slope: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum of slope * max(0, at - begin) over all ramps."""
    order = np.argsort(begin)
    slopes = np.concatenate(([0.0], np.cumsum(slope[order])))
    moments = np.concatenate(([0.0], np.cumsum(slope[order] * begin[order])))
    reached = np.searchsorted(begin[order], at)
    return slopes[reached] * at - moments[reached]


def draw_occupancy(axes: Axes, schedule: Schedule, result: SimulationResult) -> None:
    """Tracks of the busiest links over time: height is the share of the bandwidth in use, colour the phase."""
    busiest = np.argsort(-result.link_busy_s, kind="stable")[:TRACKS].tolist()
    scale, unit = _time_unit(result.makespan)
    axes.set_title(f"Use of the {len(busiest)} busiest of {len(result.link_busy_s)} links")
    axes.set_xlabel(f"time ({unit})")
    axes.legend(
        handles=[Patch(color=colour, label=PHASES[phase]) for phase, colour in PHASE_COLOURS.items()],
        loc="lower center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=2,
        frameon=False,
    )
    axes.set_yticks(
        np.arange(len(busiest)) + 0.4, [link_name(schedule, link) for link in busiest], fontsize=9
    )
    axes.set_ylim(max(len(busiest), 1), -0.15)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if result.makespan <= 0:
        return
    axes.set_xlim(0, result.makespan * scale)
    edges = np.linspace(0.0, result.makespan, BINS + 1)
    for track, link in enumerate(busiest):
        use = link_use(schedule, result, link, edges)
        floor = np.full(BINS, track + 0.8)
        axes.axhspan(track, track + 0.8, color="#f2f2f2", lw=0)
        for phase, colour in PHASE_COLOURS.items():
            top = floor - 0.8 * use[phase]
            # Axes.stairs would look for the limits, which are known, in every step: seconds for a whole picture.
            steps = StepPatch(top, edges * scale, baseline=floor, fill=True, color=colour, lw=0)  # type: ignore[arg-type]
            axes.add_artist(steps)
            floor = top
        share = result.link_busy_s[link] / result.makespan
        axes.annotate(
            f"{share:.1%}",
            (1.0, track + 0.4),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=BOTTLENECK_COLOUR if link == result.bottleneck else "black",
            weight="bold" if link == result.bottleneck else "normal",
        )
    if result.bottleneck is not None:
        axes.get_yticklabels()[busiest.index(result.bottleneck)].set(color=BOTTLENECK_COLOUR, weight="bold")


def _ties(result: SimulationResult) -> str:
    others = equally_busy(result) - 1
    return f" (as are {others} other links)" if others > 1 else " (as is another link)" if others else ""


def _time_unit(seconds: float) -> tuple[float, str]:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return factor, unit
    return 1e9, "ns"


def short_names(topology: Topology) -> list[str]:
    """Node ids without what all servers, or all switches, begin with."""
    names = [str(node) for node in topology.node_ids]
    result = list(names)
    for kind in (False, True):
        own = [i for i in range(len(names)) if bool(topology.is_switch[i]) == kind]
        # Whole words only: "gpu-1" and "gpu-12" become "1" and "12", not "" and "2".
        words = [re.split(r"(?<=[-_./: ])", names[i]) for i in own]
        common = 0
        most = min((len(parts) for parts in words), default=1) - 1 if len(own) > 1 else 0
        while common < most and len({parts[common] for parts in words}) == 1:
            common += 1
        for i, parts in zip(own, words):
            result[i] = "".join(parts[common:]) or names[i]
    return result


def draw_network(axes: Axes, topology: Topology, result: SimulationResult) -> None:
    """The network, its cables coloured by their busier direction, the bottleneck link as a red arrow."""
    position = node_positions(topology)
    share = result.link_busy_s / result.makespan if result.makespan > 0 else result.link_busy_s
    busiest: dict[tuple[int, int], float] = {}
    widths: dict[tuple[int, int], float] = {}
    for link, (s, d) in enumerate(zip(topology.link_source.tolist(), topology.link_target.tolist())):
        pair = (min(s, d), max(s, d))
        busiest[pair] = max(busiest.get(pair, 0.0), float(share[link]))
        widths[pair] = max(widths.get(pair, 0.0), float(topology.bandwidth[link]))
    pairs = sorted(busiest, key=lambda pair: busiest[pair])
    colours = ScalarMappable(Normalize(0.0, 1.0), "viridis_r")
    slowest = min(widths.values(), default=1.0)
    axes.add_collection(
        LineCollection(
            [position[list(pair)] for pair in pairs],
            colors=[colours.cmap(busiest[pair]) for pair in pairs],
            linewidths=[1.2 + np.log2(widths[pair] / slowest) for pair in pairs],
            zorder=1,
        )
    )
    bar = axes.figure.colorbar(colours, ax=axes, shrink=0.5, pad=0.01)
    bar.set_label("busy share of the time (busier direction)")
    labelled = topology.num_nodes <= MOST_LABELS
    size = 0.75 if topology.num_nodes <= 30 else 0.55 if topology.num_nodes <= MOST_LABELS else 0.3
    names = short_names(topology)
    ends: tuple[int, ...] = ()
    if result.bottleneck is not None:
        ends = int(topology.link_source[result.bottleneck]), int(topology.link_target[result.bottleneck])
        _draw_bottleneck(axes, position[ends[0]], position[ends[1]])
    for node, (x, y) in enumerate(position.tolist()):
        switch = bool(topology.is_switch[node])
        axes.plot(
            x,
            y,
            marker="s" if switch else "o",
            markersize=30 * size,
            color="#dddddd" if switch else "#cfe5f5" if topology.is_participant[node] else "white",
            markeredgecolor=BOTTLENECK_COLOUR if node in ends else "#555555",
            markeredgewidth=2.5 if node in ends else 0.8,
            zorder=3,
        )
        if labelled:
            inside = len(names[node]) <= 4
            axes.annotate(
                names[node],
                (x, y),
                xytext=(0, 0 if inside else -18 * size - 4),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=13 * size if inside else 8,
                bbox=None
                if inside
                else {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
                zorder=4,
            )
    _explain(axes, topology, result, labelled)


def _draw_bottleneck(axes: Axes, tail: NDArray[np.float64], head: NDArray[np.float64]) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (float(tail[0]), float(tail[1])),
            (float(head[0]), float(head[1])),
            arrowstyle="-|>,head_length=9,head_width=5",
            linewidth=3,
            color=BOTTLENECK_COLOUR,
            shrinkA=10,
            shrinkB=10,
            zorder=2,
        )
    )


def _explain(axes: Axes, topology: Topology, result: SimulationResult, labelled: bool) -> None:
    axes.set_aspect("equal")
    axes.set_xlim(-1.1, 1.1)
    axes.set_ylim(-1.1, 1.1)
    axes.axis("off")
    if result.bottleneck is None:
        axes.set_title("The network: nothing has to be sent")
        return
    ends = (topology.link_source[result.bottleneck], topology.link_target[result.bottleneck])
    name = " -> ".join(str(topology.node_ids[node]) for node in ends)
    share = result.link_busy_s[result.bottleneck] / result.makespan
    axes.set_title(f"Bottleneck {name}, busy {share:.1%} of the time{_ties(result)}", color=BOTTLENECK_COLOUR)
    kinds = "circles: servers" + ("; squares: switches" if topology.is_switch.any() else "")
    if labelled:
        kinds += "; labels without what their ids have in common"
    axes.text(0.5, -0.02, kinds, transform=axes.transAxes, ha="center", fontsize=9, color="#555555")
