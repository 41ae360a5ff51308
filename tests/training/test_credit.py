"""Credit: potentials against plain Python, cuts against max-flows, costs that add up, advantages that average out."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lessons import lesson_of, prior_scores, triangle, two_servers

from gnnsched.collective.decode.decoder import Decoding, Episode, Instance
from gnnsched.collective.decode.state import COMMITTED
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, dgx, dumbbell, leaf_spine, random_heterogeneous
from gnnsched.training.credit import LEAST_SHARE, Cuts, find_cuts, potentials
from gnnsched.training.rollout import advantages, collect, costs_to_go, discounted, explained_variance

# Capacities are counted in 4096ths of the largest bandwidth.
ROUNDING = 1.0 / 4096.0


def recorded(instance: Instance, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    return instance.decode(prior_scores(instance), Decoding(), rng, record=True)


# Discounting


COSTS = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=12)


@given(COSTS)
def test_without_a_horizon_costs_are_summed(costs: list[float]) -> None:
    values = np.array(costs)
    made = discounted(values, np.arange(len(values) + 1.0), np.inf)
    np.testing.assert_allclose(made, [values[i:].sum() for i in range(len(values))], atol=1e-12)


@given(COSTS, st.integers(0, 1000), st.floats(0.05, 5.0))
def test_costs_fade_with_the_time_until_they_come(costs: list[float], seed: int, horizon: float) -> None:
    moments = np.cumsum(np.random.default_rng(seed).exponential(0.3, len(costs) + 1))
    made = discounted(np.array(costs), moments, horizon)
    for i in range(len(costs)):
        expected = sum(costs[j] * np.exp(-(moments[j] - moments[i]) / horizon) for j in range(i, len(costs)))
        assert made[i] == pytest.approx(expected, abs=1e-9)


def test_a_long_horizon_is_none() -> None:
    costs, moments = np.array([1.0, -2.0, 4.0]), np.array([0.0, 1.0, 1.5, 4.0])
    np.testing.assert_allclose(
        discounted(costs, moments, 1e12), discounted(costs, moments, np.inf), rtol=1e-9
    )
    np.testing.assert_allclose(discounted(costs, moments, 1e-3), costs)


# Potentials


def plain_potentials(instance: Instance, cuts: Cuts, episode: Episode) -> list[float]:
    """From the transfers alone: what is missing in a cut, and what is left of the transfers into it."""
    state, paths = episode.state, instance.paths
    transfers = []
    for slot in np.flatnonzero(state.slot_state == COMMITTED).tolist():
        path = int(state.slot_path[slot])
        sent = float(state.slot_start[slot]) + instance.chunk_bytes / float(state.slot_rate[slot])
        transfers.append((int(state.slot_event[slot]), path, int(state.slot_chunk[slot]), slot, sent))
    result = []
    for event, now in enumerate(episode.tape.event_time.tolist()):
        before = [row for row in transfers if row[0] <= event]
        most = 0.0
        for inside, capacity in zip(cuts.inside, cuts.capacity):
            there = {c for c, root in enumerate(instance.roots) if inside[root]}
            there |= {c for _, path, c, _, _ in before if inside[paths.target[path]]}
            if len(there) == len(instance.roots):
                continue
            bytes_left = (len(instance.roots) - len(there)) * instance.chunk_bytes
            for _, path, _, slot, sent in before:
                if inside[paths.target[path]] and not inside[paths.source[path]] and sent > now:
                    bytes_left += float(state.slot_rate[slot]) * (sent - now)
            most = max(most, bytes_left / capacity)
        result.append(now + most)
    return result


@pytest.mark.parametrize("seed", range(12))
def test_potentials_are_those_of_plain_python(seed: int) -> None:
    """On random networks; and no plan ends before a potential, up to the rounding of capacities."""
    topology = random_heterogeneous(seed, 3, 8)
    instance = Instance(topology, 10.0 ** (4 + seed % 5), 1 + seed % 3)
    cuts = find_cuts(topology, instance.paths)
    episode = recorded(instance, seed)
    made, progress = potentials(instance, cuts, episode)
    assert len(made) == episode.events
    np.testing.assert_allclose(made, plain_potentials(instance, cuts, episode), rtol=1e-9)
    slowest = float(topology.bandwidth.min() / topology.bandwidth.max())
    assert made.max() <= episode.makespan * (1.0 + ROUNDING / slowest)
    assert progress[0] == 0.0
    assert (np.diff(progress) >= 0.0).all()
    assert progress[-1] < 1.0
    # part of the transfers decided before each event
    events = episode.state.slot_event[episode.state.slot_state == COMMITTED]
    np.testing.assert_allclose(progress, [(events <= e).mean() for e in range(episode.events)])


@pytest.mark.parametrize("network", [bcube(2, 1), dumbbell(3), dgx(2, 3), leaf_spine(3, 2, 1), two_servers()])
def test_the_first_potential_is_the_largest_bound_of_a_cut(network: Topology) -> None:
    """And what comes on top of it until the end is the makespan."""
    lesson = lesson_of(network)
    episode = recorded(lesson.instance)
    potential, _ = potentials(lesson.instance, lesson.cuts, episode)
    missing = (~lesson.cuts.inside[:, lesson.instance.roots]).sum(1) * lesson.instance.chunk_bytes
    assert potential[0] == pytest.approx((missing / lesson.cuts.capacity).max())
    increments = np.diff(np.append(potential, episode.makespan))
    moments = np.append(episode.tape.event_time, episode.makespan)
    first = discounted(increments, moments, np.inf)[0]
    assert first == pytest.approx(episode.makespan - potential[0])


def scripted(second: list[tuple[int, int, int]]) -> np.ndarray:
    """Potentials at the start and after 1 and 1.5 steps on dumbbell(2) with a chunk per server, whose middle is narrow.

    A step is a chunk's time over the middle. First server 0's and 2's chunks cross, then ``second``: (source,
    target, chunk).
    """
    lesson = lesson_of(dumbbell(2, 12.5e9, 50e9, 0.0), chunks_per_server=1)
    instance, paths = lesson.instance, lesson.instance.paths
    number = {ends: p for p, ends in enumerate(zip(paths.source.tolist(), paths.target.tolist()))}
    step = instance.chunk_bytes / 12.5e9
    rows = [(1, 0, 2, 0), (1, 2, 0, 2), *((2, *move) for move in second)]
    event, source, target, chunk = (np.array(column) for column in zip(*rows))
    path = np.array([number[ends] for ends in zip(source.tolist(), target.tolist())])
    start = (event - 1.0) * step
    episode = recorded(instance)
    state = episode.state._replace(
        slot_state=np.full(len(rows), COMMITTED),
        slot_event=event,
        slot_path=path.astype(np.int32),
        slot_chunk=chunk.astype(np.int32),
        slot_rate=paths.rate[path],
        slot_start=start,
        slot_end=start + instance.chunk_bytes / paths.rate[path],
    )
    tape = episode.tape._replace(event_time=step * np.array([0.0, 1.0, 1.5]))
    made, _ = potentials(instance, lesson.cuts, Episode(2.0 * step, state, tape, 3))
    return made / step


def test_a_second_copy_over_the_middle_raises_the_potential() -> None:
    """Two chunks must cross each way, so two steps are least; what crosses again costs its time, one step."""
    passed_on = [(2, 3, 0), (0, 1, 2)]
    np.testing.assert_allclose(scripted([(1, 3, 1), (3, 1, 3), *passed_on]), [2.0, 2.0, 2.0])
    np.testing.assert_allclose(scripted([(0, 3, 0), (3, 1, 3)]), [2.0, 2.0, 3.0])
    # a middle that idles for half a step costs that
    np.testing.assert_allclose(scripted(passed_on), [2.0, 2.0, 2.5])


# Cuts


def as_sets(cuts: Cuts) -> dict[frozenset[int], float]:
    return {frozenset(np.flatnonzero(i).tolist()): float(c) for i, c in zip(cuts.inside, cuts.capacity)}


def max_flow(topology: Topology, inside: set[int]) -> float:
    """Bytes/s that all servers outside can send into ``inside`` (server numbers), by networkx."""
    graph = nx.DiGraph()
    for s, d, b in zip(topology.link_source.tolist(), topology.link_target.tolist(), topology.bandwidth):
        known = graph.edges[s, d]["capacity"] if graph.has_edge(s, d) else 0.0
        graph.add_edge(s, d, capacity=known + float(b))
    for number, node in enumerate(topology.servers.tolist()):
        if number in inside:
            graph.add_edge(node, "sink")
        else:
            graph.add_edge("source", node)
    return float(nx.maximum_flow_value(graph, "source", "sink"))


@pytest.mark.parametrize(
    "network",
    [triangle(), bcube(2, 1), dumbbell(4), dgx(2, 4), leaf_spine(3, 2, 1)]
    + [random_heterogeneous(seed, 3, 8) for seed in range(8)],
    ids=lambda t: t.name,
)
def test_capacities_are_max_flows(network: Topology) -> None:
    lesson = lesson_of(network)
    np.testing.assert_array_equal(lesson.instance.paths.nodes, network.servers)
    found = as_sets(lesson.cuts)
    assert len(found) >= 1
    unit = float(network.bandwidth.max()) * ROUNDING
    servers = len(network.servers)
    bounds = []
    for inside, capacity in found.items():
        assert 0 < len(inside) < servers
        # each link is rounded to a unit
        assert capacity == pytest.approx(max_flow(network, set(inside)), abs=unit * network.num_links / 2)
        bounds.append((servers - len(inside)) / capacity)
    assert min(bounds) >= LEAST_SHARE * max(bounds) * (1 - 1e-9)


def test_the_narrow_places_are_found() -> None:
    """The nodes of a DGX network, the sides of a dumbbell, and every server where they are as narrow."""
    left, right = frozenset(range(4)), frozenset(range(4, 8))
    network = dgx(2, 4, 300e9, 25e9)
    found = as_sets(lesson_of(network).cuts)
    assert found[left] == pytest.approx(4 * 25e9, rel=1e-3)
    assert found[right] == pytest.approx(4 * 25e9, rel=1e-3)
    network = dumbbell(4, 25e9)
    found = as_sets(lesson_of(network).cuts)
    middle = set(network.link_source.tolist())
    switches = [i for i in middle if network.is_switch[i]]
    between = np.isin(network.link_source, switches) & np.isin(network.link_target, switches)
    assert found[left] == found[right] == network.bandwidth[between][0] == 25e9


def test_relays_alone_are_no_cut() -> None:
    builder = NetworkBuilder("relay", "test")
    ends = [builder.server(i) for i in range(2)]
    relay = builder.server("relay", participant=False)
    for end in ends:
        builder.cable(end, relay, 1e9, 0.0)
    lesson = lesson_of(builder.build())
    participant = lesson.instance.participants
    for inside in lesson.cuts.inside:
        assert participant[inside].any()
        assert participant[~inside].any()


# Advantages


def test_advantages_average_out_at_equal_progress() -> None:
    """As functions of progress, drawn through the events, the rollouts' advantages add up to zero."""
    lesson = lesson_of(dgx(2, 3))
    rng = np.random.default_rng(0)
    rollouts = collect(lesson, prior_scores(lesson.instance), Decoding(), 6, rng, 0.3)
    progress, costs = costs_to_go(lesson, rollouts.episodes, rollouts.ratio, 0.3)
    # the same curves with a point wherever any of them has one
    everywhere = np.unique(np.concatenate(progress))
    curves = [np.interp(everywhere, p, c) for p, c in zip(progress, costs)]
    assert np.std(curves, 0).max() > 0.01
    made = advantages([everywhere] * len(curves), curves)
    np.testing.assert_allclose(np.sum(made, 0), 0.0, atol=1e-9)
    for own, curve, advantage in zip(progress, made, rollouts.advantage):
        np.testing.assert_allclose(curve[np.searchsorted(everywhere, own)], advantage, atol=1e-9)


def test_the_better_plan_has_the_advantage_at_its_first_event() -> None:
    """Without a horizon: the difference of the makespans in their spread."""
    lesson = lesson_of(triangle())
    rng = np.random.default_rng(1)
    rollouts = collect(lesson, prior_scores(lesson.instance), Decoding(), 8, rng, np.inf)
    logs = np.log(rollouts.ratio)
    assert logs.std() > 0.1
    scale = np.exp(logs.mean()) * (logs.std() + 0.02)
    expected = (rollouts.ratio.mean() - rollouts.ratio) / scale
    np.testing.assert_allclose([a[0] for a in rollouts.advantage], expected, atol=1e-9)


@pytest.mark.parametrize("network", [triangle(), dgx(2, 3), bcube(2, 1), two_servers()])
@pytest.mark.parametrize("horizon", [0.3, np.inf])
def test_one_rollout_and_equal_ones_have_no_advantage(network: Topology, horizon: float) -> None:
    """Zero at every event, also where nothing started; finite, though nothing is spread."""
    lesson = lesson_of(network)
    episode = recorded(lesson.instance)
    for count in (1, 4):
        ratio = np.full(count, episode.makespan / lesson.bound)
        progress, costs = costs_to_go(lesson, [episode] * count, ratio, horizon)
        assert all(np.isfinite(cost).all() for cost in costs)
        for advantage in advantages(progress, costs):
            np.testing.assert_allclose(advantage, 0.0, atol=1e-9)


def test_explained_variance() -> None:
    lesson = lesson_of(dgx(2, 3))
    scores = prior_scores(lesson.instance)
    one = collect(lesson, scores, Decoding(), 1, np.random.default_rng(0), 0.3)
    assert explained_variance([one]) == 1.0
    several = collect(lesson, scores, Decoding(), 4, np.random.default_rng(0), 0.3)
    share = explained_variance([several])
    assert 0.0 < share < 1.0
    rest, costs = np.concatenate(several.advantage), np.concatenate(several.cost)
    assert share == pytest.approx(1.0 - rest.var() / costs.var())
