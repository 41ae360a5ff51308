"""Planning beside in-flight flows and for late servers: right plans, near the bound, and the flows are why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.collective.decode.paths import candidate_paths
from gnnsched.collective.flows import NO_FLOWS, on_links
from gnnsched.collective.flows_bound import rs_ag_bound_under
from gnnsched.collective.verify import verify
from gnnsched.envs.flows import draw_flows
from gnnsched.models.policy import Policy
from gnnsched.planning import SCHEDULERS, schedule_with
from gnnsched.topology import Topology
from gnnsched.topology.generators import bcube, random_heterogeneous, star

MESSAGE = 2.0**26
POLICY = Policy().eval()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SCHEDULERS), st.booleans())
def test_every_scheduler_is_right_beside_flows_and_no_faster_than_the_bound(
    seed: int, name: str, late: bool
) -> None:
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=7)
    plain = rs_ag_bound_under(network, MESSAGE, NO_FLOWS)
    flows = draw_flows(network, candidate_paths(network), 5, plain, rng)
    ready = None
    if late:
        ready = np.where(network.is_switch, 0.0, rng.uniform(0, plain, network.num_nodes))
    made = schedule_with(name, network, MESSAGE, 2, 2, seed % 5, POLICY, flows=flows, ready=ready)
    verdict = verify(made.schedule)
    assert verdict.ok, verdict.fault
    assert made.schedule.flows is flows
    assert made.schedule.makespan == pytest.approx(made.makespans.min())
    # Retiming may let the phases overlap, so that the sum is no bound; each phase's own is one.
    assert made.schedule.makespan >= plain / 2 * (1 - 1e-9)


def one_busy(network: Topology, share: float, seconds: float) -> object:
    link = np.flatnonzero(network.link_target == network.servers[0])[:1]
    return on_links(link, share * network.bandwidth[link], np.zeros(1), np.array([seconds]))


def test_near_the_bound_where_one_nic_is_half_taken() -> None:
    """Half of one of two ports of one server is taken throughout: 2 NIC-times become 1.5."""
    network = bcube(3, 1)
    plain = rs_ag_bound_under(network, MESSAGE, NO_FLOWS)
    flows = one_busy(network, 0.5, 10 * plain)
    bound = rs_ag_bound_under(network, MESSAGE, flows)
    assert bound == pytest.approx(plain / 2 + plain / 2 * 4 / 3, rel=1e-5)
    made = schedule_with("greedy_augmented", network, MESSAGE, 8, 8, flows=flows)
    assert made.schedule.makespan <= 1.06 * bound


def test_a_late_server_costs_what_it_is_late_and_no_more() -> None:
    """All others are done with theirs by then: what it must still send, and the broadcast."""
    network = star([1e9] * 4, latency=0.0)
    plain = rs_ag_bound_under(network, MESSAGE, NO_FLOWS)
    ready = np.zeros(network.num_nodes)
    ready[network.servers[2]] = plain
    bound = rs_ag_bound_under(network, MESSAGE, NO_FLOWS, ready)
    assert bound == pytest.approx(2 * plain)
    made = schedule_with("greedy_augmented", network, MESSAGE, 4, 4, ready=ready)
    assert verify(made.schedule).ok
    assert made.schedule.makespan <= 1.05 * bound


def test_one_seed_gives_one_plan() -> None:
    network = bcube(3, 1)
    flows = one_busy(network, 0.7, 1.0)
    one, other = (
        schedule_with("policy", network, MESSAGE, 2, 4, 3, POLICY, flows=flows).schedule for _ in range(2)
    )
    np.testing.assert_array_equal(one.transfers.start, other.transfers.start)
    np.testing.assert_array_equal(one.transfers.path_links, other.transfers.path_links)
