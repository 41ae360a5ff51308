"""The bound beside in-flight flows: closed forms, and no plan is faster."""

import numpy as np
import pytest

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.paths import candidate_paths
from gnnsched.collective.decode.presets import greedy_scores, linear_scores
from gnnsched.collective.flows import NO_FLOWS, Flows, on_links
from gnnsched.collective.flows_bound import all_gather_bound_under, entry_bound_under
from gnnsched.envs.flows import draw_flows
from gnnsched.topology.generators import random_heterogeneous, star

MESSAGE = 3e9


def into_server(rate: float, until: float) -> Flows:
    """One flow on the link from the switch to the first server of a star."""
    network = star([1e9] * 3)
    link = np.flatnonzero(network.link_target == network.servers[0])
    return Flows(np.array([0, 1]), link.astype(np.int32), np.array([rate]), np.zeros(1), np.array([until]))


@pytest.mark.parametrize(
    ("rate", "until", "seconds"),
    [
        (0.5e9, 1.0, 2.5),  # 2 s of work, half a second of which the flow takes
        (1e9, 1.0, 3.0),
        (1e9, 1e-3, 2.001),
        (0.5e9, 100.0, 4.0),  # half the rate throughout
    ],
)
def test_one_link_by_hand(rate: float, until: float, seconds: float) -> None:
    found = all_gather_bound_under(star([1e9] * 3), MESSAGE, into_server(rate, until))
    assert found == pytest.approx(seconds, rel=2e-6)


def test_without_flows_and_beside_what_does_not_matter() -> None:
    network = star([1e9, 4e9, 4e9])
    plain = all_gather_bound(network, MESSAGE)
    assert all_gather_bound_under(network, MESSAGE, NO_FLOWS) == plain
    spare = Flows(
        np.array([0, 1]),
        np.flatnonzero(network.link_target == network.servers[1]).astype(np.int32),
        np.array([1e9]),
        np.array([0.0]),
        np.array([1.0]),
    )
    assert all_gather_bound_under(network, MESSAGE, spare) == plain


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=8)
    paths = candidate_paths(network)
    plain = all_gather_bound(network, MESSAGE)
    flows = draw_flows(network, paths, 4, plain, rng)
    bound = all_gather_bound_under(network, MESSAGE, flows)
    # From the last flow's end on, the network is as fast as without flows.
    assert plain * (1 - 1e-9) <= bound <= (plain + flows.until.max(initial=0.0)) * (1 + 1e-6)
    for score in (greedy_scores, linear_scores):
        instance = Instance(network, MESSAGE, 4, 0, paths, flows)
        for sample in range(4):
            episode = instance.decode(score(instance), Decoding(), np.random.default_rng(sample))
            assert episode.makespan >= bound * (1 - 1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_entries_is_below_that_of_all_cuts(seed: int) -> None:
    """And both are infinite where flows leave nothing for ever."""
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=8)
    plain = all_gather_bound(network, MESSAGE)
    flows = draw_flows(network, candidate_paths(network), 4, plain, rng)
    entering = np.zeros(network.num_nodes)
    count = len(network.participants)
    entering[network.participants] = MESSAGE * (count - 1) / count
    found = entry_bound_under(network, entering, flows)
    assert 0.0 < found <= all_gather_bound_under(network, MESSAGE, flows) * (1 + 1e-3)
    into = np.flatnonzero(network.link_target == network.participants[0])
    shut = on_links(into, network.bandwidth[into], np.zeros(len(into)), np.full(len(into), np.inf))
    assert entry_bound_under(network, entering, shut) == np.inf
    assert all_gather_bound_under(network, MESSAGE, shut) == np.inf
