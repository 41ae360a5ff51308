import os
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.planning import schedule_with
from gnnsched.report.layout import node_positions
from gnnsched.report.plots import link_use, plot_schedule, schedule_figure, short_names
from gnnsched.report.time_shares import time_sentence, time_shares
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import (
    bcube,
    dcell,
    dgx,
    fat_tree,
    hub,
    jellyfish,
    leaf_spine,
    star,
    torus,
)

NETWORKS = {
    network.name: network
    for network in (
        bcube(4, 1),
        dcell(4, 1),
        dgx(2, 8),
        fat_tree(4),
        jellyfish(20, 4, 2, 1),
        leaf_spine(4, 4),
        star([10e9, 1e9, 1e9]),
        torus(4, 4),
        hub(4),
        hub(1),
    )
}


def planned(topology: Topology, name: str = "greedy_augmented", chunks: int = 2) -> Schedule:
    return schedule_with(name, topology, 1e8, chunks, 1).schedule


@pytest.mark.parametrize("name", ["greedy_augmented", "ring", "parameter_server"])
@pytest.mark.parametrize("network", ["bcube_4_1", "star_3", "torus_4x4"])
def test_use_of_a_link_over_time_adds_up_to_its_busy_time(network: str, name: str) -> None:
    schedule = planned(NETWORKS[network], name)
    result = simulate(schedule)
    edges = np.linspace(0.0, result.makespan, 78)
    for link in range(0, schedule.topology.num_links, 5):
        use = link_use(schedule, result, link, edges)
        assert (use * np.diff(edges)).sum() == pytest.approx(result.link_busy_s[link], rel=1e-9)
        assert use.min() >= -1e-9
        assert use.sum(0).max() <= 1.0 + 1e-9


def test_use_in_closed_form() -> None:
    """Two servers, a chunk each, no latency: both directions reduce for the first half and broadcast then."""
    schedule = planned(hub(1, 1e9, latency=0.0), "ring", 1)
    result = simulate(schedule)
    assert result.makespan == pytest.approx(0.1)
    use = link_use(schedule, result, 0, np.array([0.0, 0.025, 0.05, 0.075, 0.1]))
    np.testing.assert_allclose(use, [[1, 1, 0, 0], [0, 0, 1, 1]], atol=1e-9)


def test_use_starts_when_the_transfer_reaches_the_link() -> None:
    """Latency in front of a link delays it there: 1 s on the NIC, then the other NIC."""
    network = star([1e9, 1e9], latency=1.0)
    schedule = planned(network, "ring", 1)
    result = simulate(schedule)
    # 0.05 s of sending; the second link of a path is reached 1 s after the first
    into = int(np.flatnonzero(network.link_target == network.participants[1])[0])
    edges = np.array([0.0, 1.0, 1.05, result.makespan])
    use = link_use(schedule, result, into, edges)[0]
    np.testing.assert_allclose(use, [0.0, 1.0, 0.0], atol=1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_nodes_stand_apart_inside_the_picture(network: str) -> None:
    topology = NETWORKS[network]
    position = node_positions(topology)
    assert position.shape == (topology.num_nodes, 2)
    assert np.abs(position).max() <= 1.0 + 1e-9
    gap = np.hypot(*(position[:, None] - position[None]).transpose(2, 0, 1))
    np.fill_diagonal(gap, np.inf)
    # a marker is about 0.06 wide with many nodes, 0.09 with few
    assert gap.min() > (0.065 if topology.num_nodes > 30 else 0.1)
    np.testing.assert_array_equal(position, node_positions(topology))


def test_labels_are_short_and_different() -> None:
    assert short_names(jellyfish(20, 4, 2, 1))[:3] == ["0", "1", "2"]
    assert short_names(dgx(2, 2)) == [
        "0-0",
        "0-1",
        "1-0",
        "1-1",
        "nvswitch-0",
        "nvswitch-1",
        "rail-0",
        "rail-1",
    ]
    assert short_names(hub(2)) == ["hub", "leaf-0", "leaf-1"]
    assert short_names(hub(0)) == ["hub"]
    alike = Topology.from_arrays("alike", [1, "1"], [False, False], [0, 1], [1, 0], [1e9] * 2, [0.0] * 2)
    assert short_names(alike) == ["1", "1"]


@pytest.mark.parametrize("network", ["jellyfish_20x4x2", "star_3", "hub_1"])
def test_the_figure_names_links_and_bottleneck(network: str) -> None:
    schedule = planned(NETWORKS[network], chunks=1)
    result = simulate(schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # missing glyphs, layouts that do not fit
        figure = schedule_figure(schedule, result)
        figure.canvas.draw()
    said = {text.get_text() for text in figure.findobj(Text)}
    topology = schedule.topology
    assert result.bottleneck is not None
    source, target = (
        str(topology.node_ids[ends[result.bottleneck]])
        for ends in (topology.link_source, topology.link_target)
    )
    assert f"{source} -> {target}" in said
    assert any(text.startswith(f"Bottleneck {source} -> {target}, busy ") for text in said)
    assert {"reduce", "broadcast"} <= said
    assert set(short_names(topology)) <= said
    tracks = figure.axes[0].get_yticklabels()
    assert len(tracks) == min(24, topology.num_links)
    # the tracks' labels do not lie on each other
    boxes = [label.get_window_extent() for label in tracks]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_one_server_has_a_picture(tmp_path: Path) -> None:
    for network in (hub(0), star([1e9])):
        plot_schedule(planned(network), tmp_path / "plan.png")
        assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_is_written_in_full_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = planned(hub(1))
    with pytest.raises(InputError, match="absent"):
        plot_schedule(schedule, tmp_path / "absent" / "plan.png")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("gnnsched.report.plots.FigureCanvasAgg.print_png", broken)
    with pytest.raises(InputError, match="disk full"):
        plot_schedule(schedule, tmp_path / "plan.png")
    assert os.listdir(tmp_path) == []


def test_time_shares_in_closed_form() -> None:
    """Two servers, half a message each way per phase: M/b of sending and twice the latency."""
    schedule = planned(hub(1, 1e9, latency=0.01), "ring", 1)
    shares = time_shares(schedule)
    assert shares.makespan_s == pytest.approx(0.1 + 0.02)
    assert shares.busy_s == pytest.approx(0.1)
    assert shares.latency_s == pytest.approx(0.02)
    assert shares.waiting_s == 0.0
    assert shares.links == 2
    said = time_sentence(schedule, shares)
    assert "mostly bandwidth" in said
    assert "one of 2 equally busy links" in said
    assert (
        "100 ms (83.3%) of 120 ms. Without latency the same order of transfers would end 20 ms (16.7%) earlier"
        in said
    )


def test_latency_on_switches_counts_every_link() -> None:
    """A star, where a ring's steps follow one another: two links of latency per step, 2(N-1) steps."""
    schedule = schedule_with("ring", star([1e9] * 4, latency=0.01), 4e6, 1).schedule
    shares = time_shares(schedule)
    assert shares.latency_s == pytest.approx(6 * 0.02)
    assert shares.busy_s == pytest.approx(6e6 / 1e9)


def test_waiting_is_what_is_left() -> None:
    """A parameter server on a star with one slow NIC, no latency: the rest of the bottleneck's time is waiting."""
    schedule = planned(star([1e9, 1e9, 0.5e9], latency=0.0), "parameter_server", 1)
    shares = time_shares(schedule)
    assert shares.latency_s == 0.0
    assert shares.waiting_s == pytest.approx(shares.makespan_s - shares.busy_s)


def test_latency_is_named_where_it_decides() -> None:
    schedule = schedule_with("ring", hub(1, 1e9, latency=0.5), 1e3, 1).schedule
    assert "mostly latency" in time_sentence(schedule, time_shares(schedule))
    nothing = planned(hub(0))
    assert "nothing has to be sent" in time_sentence(nothing, time_shares(nothing))
