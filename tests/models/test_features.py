"""What the policy is told of an instance: no absolute sizes, and in-flight flows as nodes of their own."""

import dataclasses

import numpy as np
import pytest
import torch
from instances import (
    MESSAGE,
    OUTPUTS,
    assert_scores_equal,
    mixed_instances,
    one_flow,
    one_way_ring,
    read_only,
    stirred_policy,
)

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.problem import CHUNK_FEATURES
from gnnsched.collective.decode.problem import PATH_FEATURES as EVENT_FEATURES
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.models.features import EDGE_FEATURES, NODE_FEATURES, graph_of, join
from gnnsched.models.policy import Policy, join_gradients, split_scores
from gnnsched.topology.generators import bcube, random_heterogeneous, star


@pytest.fixture(scope="module")
def policy() -> Policy:
    return stirred_policy()


# No absolute sizes


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**13])
def test_scores_do_not_depend_on_scale(policy: Policy, factor: float) -> None:
    """All bandwidths, the message and the flows' rates times a factor; then all times (a slower clock)."""
    for network in (random_heterogeneous(2, 5, 8), one_way_ring()):
        flows = one_flow(network, 1, 0.5, 1e-3)
        plain = policy.scores(Instance(network, MESSAGE, 2, flows=flows))
        scaled = dataclasses.replace(network, bandwidth=read_only(network.bandwidth * factor))
        more = flows._replace(rate=flows.rate * factor)
        assert_scores_equal(policy.scores(Instance(scaled, MESSAGE * factor, 2, flows=more)), plain, 1e-6)
        slower = dataclasses.replace(
            network,
            bandwidth=read_only(network.bandwidth / factor),
            latency=read_only(network.latency * factor),
        )
        later = flows._replace(rate=flows.rate / factor, until=flows.until * factor)
        assert_scores_equal(policy.scores(Instance(slower, MESSAGE, 2, flows=later)), plain, 1e-6)


def test_features_hold_no_ids_and_no_sizes() -> None:
    """All of them moderate numbers, whatever the units of the network."""
    for instance in mixed_instances():
        graph = graph_of(instance)
        for part in (graph.nodes, graph.edges, graph.paths, graph.pairs):
            assert torch.isfinite(part).all()
            assert part.abs().max() < 20.0


# In-flight flows


def test_a_flow_changes_the_scores(policy: Policy) -> None:
    """More so the more it takes and the longer it lasts, and on links that it does not use as well."""
    network = bcube(3, 1)
    plain = policy.scores(Instance(network, MESSAGE, 2))
    seen = [plain]
    for share, until in ((0.5, 1e-3), (1.0, 1e-3), (1.0, 5e-3)):
        instance = Instance(network, MESSAGE, 2, flows=one_flow(network, 0, share, until))
        scores = policy.scores(instance)
        for other in seen:
            for name, mine, theirs in zip(Scores._fields, scores, other):
                assert np.abs(mine - theirs).max() > 1e-4, name
        seen.append(scores)
        elsewhere = ~np.isin(
            np.arange(instance.paths.num_paths), instance.paths.through_paths[: instance.paths.through[1]]
        )
        assert (np.abs(scores.chunk - plain.chunk)[elsewhere] > 0.0).any()


def test_a_policy_without_flows_does_not_see_them(policy: Policy) -> None:
    """Its outputs stay where the features of flows change; without any flow it is the same policy."""
    blind = Policy(dataclasses.replace(policy.config, flows=False)).eval()
    blind.load_state_dict(policy.state_dict())
    network = bcube(3, 1)
    flying = join(
        [
            graph_of(Instance(network, MESSAGE, 2, flows=one_flow(network, 3, 0.5, 1e-3))),
            graph_of(Instance(star([1e9, 2e9, 1e9]), MESSAGE, 1)),
        ]
    )
    nodes, edges = flying.nodes.clone(), flying.edges.clone()
    nodes[flying.nodes[:, NODE_FEATURES.index("is_flow")] > 0, 9:11] += 1.0
    edges[:, EDGE_FEATURES.index("flow_rate_share")] *= 0.5
    other = dataclasses.replace(flying, nodes=nodes, edges=edges)
    quiet = graph_of(Instance(network, MESSAGE, 2))
    with torch.no_grad():
        for name in OUTPUTS:
            torch.testing.assert_close(getattr(blind(other), name), getattr(blind(flying), name))
            torch.testing.assert_close(getattr(blind(quiet), name), getattr(policy(quiet), name))
            assert (getattr(policy(other), name) - getattr(policy(flying), name)).abs().max() > 1e-4


def test_a_policy_without_guidance_does_not_see_the_packed_trees(policy: Policy) -> None:
    """Other trees, the same outputs, and no weight on what an event knows of them."""
    blind = Policy(dataclasses.replace(policy.config, guidance=False)).eval()
    blind.load_state_dict(policy.state_dict())
    network = random_heterogeneous(np.random.default_rng(4))
    one, other = (Instance(network, MESSAGE, 2, seed) for seed in (0, 1))
    assert not np.array_equal(one.problem.tree_path, other.problem.tree_path)
    assert_scores_equal(blind.scores(one), blind.scores(other))
    assert np.abs(policy.scores(one).chunk - policy.scores(other).chunk).max() > 1e-4
    scores = blind.scores(one)
    told = {name: scores.chunk[:, i] for i, name in enumerate(CHUNK_FEATURES)}
    told |= {f"path {name}": scores.path[:, i] for i, name in enumerate(EVENT_FEATURES)}
    told |= {f"slope {name}": scores.chunk_progress[:, i] for i, name in enumerate(CHUNK_FEATURES)}
    of_trees = ["in_packed_tree", "packed_price", "packed_tail"]
    silent = {name for name, column in told.items() if not column.any()}
    assert silent == {*of_trees, *(f"slope {name}" for name in of_trees), "path longest_tail"}


def test_flow_features_and_ties() -> None:
    """A flow over two links: a node tied both ways to the three nodes that it touches."""
    network = star([1e9, 2e9, 4e9])
    up = int(np.flatnonzero(network.link_source == 0)[0])
    down = int(np.flatnonzero(network.link_target == 1)[0])
    flows = Flows(
        np.array([0, 2]), np.array([up, down], np.int32), np.array([0.5e9]), np.zeros(1), np.array([1e-3])
    )
    instance = Instance(network, MESSAGE, 1, flows=flows)
    graph, bare = graph_of(instance), graph_of(Instance(network, MESSAGE, 1))
    nodes, links = network.num_nodes, network.num_links
    assert len(graph.nodes) == nodes + 1
    torch.testing.assert_close(graph.nodes[:nodes], bare.nodes)
    node = dict(zip(NODE_FEATURES, graph.nodes[nodes].tolist()))
    assert (node["is_flow"], node["is_server"], node["is_switch"]) == (1.0, 0.0, 0.0)
    assert node["flow_rate_share"] == pytest.approx(0.5)
    ties = graph.edge_index[:, links:].T.tolist()
    touched = {0, 1, int(network.link_target[up])}
    assert sorted(map(tuple, ties)) == sorted([(nodes, n) for n in touched] + [(n, nodes) for n in touched])
    share = graph.edges[:, EDGE_FEATURES.index("flow_rate_share")]
    expected = torch.zeros(links)
    expected[up], expected[down] = 0.5, 0.25
    torch.testing.assert_close(share[:links], expected)
    torch.testing.assert_close(share[links:], torch.full((6,), 0.5))


def test_flow_inputs_get_gradients_through_the_decoder(policy: Policy) -> None:
    """From an episode's log-probabilities to the features of the flow's node and of its ties."""
    network = bcube(2, 1)
    instance = Instance(network, MESSAGE, 2, flows=one_flow(network, 0, 0.5, 1e-3))
    plain = graph_of(instance)
    batch = dataclasses.replace(plain, nodes=plain.nodes.requires_grad_(), edges=plain.edges.requires_grad_())
    output = policy(batch)
    scores = split_scores(output, batch, [instance])[0]
    episode = instance.decode(scores, Decoding(), np.random.default_rng(0), record=True)
    tape = episode.tape
    tape.setting[:] = [1.0, 1e9, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    instance.replay(scores, Decoding(), tape, episode.state.random)
    own = Scores(tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention)
    torch.autograd.backward(
        [getattr(output, name) for name in OUTPUTS],
        list(join_gradients(output, batch, [instance], [own])),
    )
    assert batch.nodes.grad is not None
    assert batch.edges.grad is not None
    flow = batch.nodes.grad[network.num_nodes]
    for name in ("is_flow", "flow_rate_share", "flow_time_left"):
        assert flow[NODE_FEATURES.index(name)].abs() > 1e-6, name
    assert batch.edges.grad[network.num_links :].abs().max() > 1e-6


def test_no_flows_is_the_same_as_none_given(policy: Policy) -> None:
    network = bcube(2, 1)
    one, two = Instance(network, MESSAGE, 1), Instance(network, MESSAGE, 1, flows=NO_FLOWS)
    assert_scores_equal(policy.scores(one), policy.scores(two), 0.0)
    assert len(graph_of(one).nodes) == network.num_nodes
    assert int((graph_of(one).edges[:, EDGE_FEATURES.index("is_flow_tie")]).sum()) == 0
