"""The policy: any size, any batch, any order; outputs and gradients transpose each other."""

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
    stirred_policy,
    with_isolated_switch,
    with_relay_at_the_end,
)

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.linear import PRIOR_CHUNK, PRIOR_PATH
from gnnsched.collective.decode.presets import linear_scores
from gnnsched.models.features import EDGE_FEATURES, GraphBatch, graph_of, join
from gnnsched.models.policy import Policy, PolicyConfig, PolicyOutput, join_gradients, split_scores
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, dgx, jellyfish, random_heterogeneous, star, torus


@pytest.fixture(scope="module")
def policy() -> Policy:
    return stirred_policy()


def test_one_policy_takes_graphs_of_any_size(policy: Policy) -> None:
    """From two servers to hundreds of nodes: scores in the shapes that the decoder wants, and a plan from them."""
    for network in (star([1e9, 1e9]), bcube(3, 1), dgx(2, 4), jellyfish(30, 4, 4, 1)):
        instance = Instance(network, MESSAGE, 1)
        scores = policy.scores(instance)
        linear = linear_scores(instance)
        for mine, theirs in zip(scores, linear):
            assert mine.shape == theirs.shape
            assert mine.dtype == np.float64
            assert np.isfinite(mine).all()
        if network.num_nodes < 40:
            episode = instance.decode(scores, Decoding(), np.random.default_rng(0))
            assert np.isfinite(episode.makespan)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), [3, 0, 6, 1, 5, 2, 7, 4]])
def test_a_batch_in_any_order_equals_single_runs(policy: Policy, order: slice | list[int]) -> None:
    instances = mixed_instances()
    singles = [policy.scores(instance) for instance in instances]
    numbers = np.arange(len(instances))[order]
    chosen = [instances[i] for i in numbers]
    batch = join([graph_of(instance) for instance in chosen])
    with torch.no_grad():
        output = policy(batch)
    for number, scores in zip(numbers, split_scores(output, batch, chosen)):
        assert_scores_equal(scores, singles[number])


def test_a_lone_node_at_the_end_changes_nothing(policy: Policy) -> None:
    """Neither its features nor its place in the batch reach the others."""
    for network in (bcube(2, 1), star([1e9, 2e9, 1e9])):
        plain = policy.scores(Instance(network, MESSAGE, 2))
        lonely = policy.scores(Instance(with_isolated_switch(network), MESSAGE, 2))
        assert_scores_equal(lonely, plain, 1e-6)


def test_a_server_that_ends_no_path_is_seen_but_gets_no_scores(policy: Policy) -> None:
    network = with_relay_at_the_end()
    instance = Instance(network, MESSAGE, 1)
    assert network.num_nodes - 1 not in instance.paths.nodes
    graph = graph_of(instance)
    assert len(graph.nodes) == network.num_nodes
    scores = policy.scores(instance)
    assert scores.attention.shape[1:] == (3, 3)
    np.testing.assert_allclose(scores.attention.sum(1), 1.0, rtol=1e-6)


def test_attention_columns_sum_to_one(policy: Policy) -> None:
    for instance in mixed_instances():
        scores = policy.scores(instance)
        assert (scores.attention >= 0.0).all()
        np.testing.assert_allclose(scores.attention.sum(1), 1.0, rtol=1e-6)
        # nobody is near to itself
        assert not np.diagonal(scores.attention, axis1=1, axis2=2).any()


def test_outputs_start_near_the_prior() -> None:
    """The bases are its weights; what the heads add at first is small beside them."""
    torch.manual_seed(3)
    policy = Policy()
    split = len(PRIOR_CHUNK) // 2
    scale = max(np.abs(PRIOR_PATH).max(), np.abs(PRIOR_CHUNK).max())
    for instance in mixed_instances():
        scores = policy.scores(instance)
        for made, base in zip(scores, (PRIOR_PATH, PRIOR_CHUNK[:split], PRIOR_CHUNK[split:])):
            difference = np.abs(made - np.array(base))
            assert 0.0 < difference.max() < 0.2 * scale


def test_rounds_zero_leaves_message_passing_out() -> None:
    """A change at a far link then reaches only paths over it."""
    torch.manual_seed(0)
    deep, shallow = Policy(), Policy(PolicyConfig(rounds=0))
    base, other = (random_tree(6, faster_link=k) for k in (None, 0))
    graphs = [graph_of(Instance(network, MESSAGE, 1)) for network in (base, other)]
    # leave only the change in the edge features of link 0
    edges = graphs[0].edges.clone()
    edges[0] = graphs[1].edges[0] + 1.0
    changed = dataclasses.replace(graphs[0], edges=edges)
    unaffected = torch.ones(len(changed.paths), dtype=torch.bool)
    unaffected[changed.hop_path[changed.hop_edge == 0]] = False
    assert unaffected.any()
    with torch.no_grad():
        for policy, reaches_all in ((shallow, False), (deep, True)):
            before, after = policy(graphs[0]).chunk[unaffected], policy(changed).chunk[unaffected]
            assert (not torch.equal(before, after)) == reaches_all


# Renaming and reordering


def permuted(batch: GraphBatch, rng: np.random.Generator) -> tuple[GraphBatch, dict[str, torch.Tensor]]:
    """The same instance with nodes, edges, paths and pairs in another order; ``order[kind][new] = old``."""
    sizes = {"node": len(batch.nodes), "edge": len(batch.edges), "path": len(batch.paths)}
    order = {kind: torch.from_numpy(rng.permutation(size)) for kind, size in sizes.items()}
    order["pair"] = torch.from_numpy(rng.permutation(len(batch.pairs)))
    new = {kind: torch.argsort(old) for kind, old in order.items()}
    hops = torch.from_numpy(rng.permutation(len(batch.hop_edge)))
    return dataclasses.replace(
        batch,
        nodes=batch.nodes[order["node"]],
        edges=batch.edges[order["edge"]],
        edge_index=new["node"][batch.edge_index[:, order["edge"]]],
        paths=batch.paths[order["path"]],
        path_source=new["node"][batch.path_source[order["path"]]],
        path_target=new["node"][batch.path_target[order["path"]]],
        hop_edge=new["edge"][batch.hop_edge[hops]],
        hop_path=new["path"][batch.hop_path[hops]],
        pairs=batch.pairs[order["pair"]],
        pair_source=new["node"][batch.pair_source[order["pair"]]],
        pair_target=new["node"][batch.pair_target[order["pair"]]],
    ), order


@pytest.mark.parametrize("seed", range(4))
def test_outputs_are_equivariant(policy: Policy, seed: int) -> None:
    """Nodes, links, paths and pairs in another order: the same outputs in that order."""
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(seed, 6, 10)
    flows = one_flow(network, int(rng.integers(network.num_links)), 0.5, 1e-3)
    batch = graph_of(Instance(network, MESSAGE, 2, flows=flows))
    other, order = permuted(batch, rng)
    with torch.no_grad():
        plain, turned = policy(batch), policy(other)
    for name, kind in zip((*OUTPUTS, "nodes"), ("path", "path", "path", "pair", "node")):
        torch.testing.assert_close(
            getattr(turned, name), getattr(plain, name)[order[kind]], rtol=1e-4, atol=1e-5
        )


def random_tree(servers: int, faster_link: int | None = None) -> Topology:
    """Servers linked directly as a random tree: all paths and all flow trees are unique."""
    rng = np.random.default_rng(servers)
    builder = NetworkBuilder("tree", "test")
    nodes = [builder.server(f"server-{i}") for i in range(servers)]
    for i in range(1, servers):
        speed = 1e9 * float(rng.uniform(1.0, 2.0)) * (3.0 if faster_link == i - 1 else 1.0)
        builder.cable(nodes[i], nodes[int(rng.integers(i))], speed, 1e-6)
    return builder.build()


def reordered(topology: Topology, rng: np.random.Generator) -> tuple[Topology, np.ndarray, np.ndarray]:
    """Renamed, with nodes and links in another order; and the new index of each old node and link."""
    nodes, links = rng.permutation(topology.num_nodes), rng.permutation(topology.num_links)
    new_node, new_link = np.argsort(nodes), np.argsort(links)
    return (
        Topology.from_arrays(
            "renamed",
            [f"{97 * i % 101}" for i in range(topology.num_nodes)],
            topology.is_switch[nodes],
            new_node[topology.link_source[links]],
            new_node[topology.link_target[links]],
            topology.bandwidth[links],
            topology.latency[links],
            topology.is_participant[nodes],
        ),
        new_node,
        new_link,
    )


@pytest.mark.parametrize("servers", [3, 5, 8])
def test_scores_do_not_depend_on_names_and_order(policy: Policy, servers: int) -> None:
    """From the network to the decoder's scores, where candidate paths and packed trees leave nothing to order."""
    network = random_tree(servers)
    other, new_node, new_link = reordered(network, np.random.default_rng(servers))
    one, two = (Instance(n, MESSAGE, 2) for n in (network, other))
    mine, theirs = policy.scores(one), policy.scores(two)
    key = {(s, d): p for p, (s, d) in enumerate(zip(two.paths.source.tolist(), two.paths.target.tolist()))}
    place = np.array(
        [key[int(new_node[s]), int(new_node[d])] for s, d in zip(one.paths.source, one.paths.target)]
    )
    assert [int(new_link[e]) for e in one.paths.links] == [
        int(two.paths.links[two.paths.start[p]]) for p in place
    ]
    turned = Scores(
        theirs.path[place],
        theirs.chunk[place],
        theirs.chunk_progress[place],
        theirs.attention[:, new_node][:, :, new_node],
    )
    assert_scores_equal(turned, mine, 1e-4)


def test_new_names_alone_change_nothing(policy: Policy) -> None:
    network = random_heterogeneous(5, 6, 6)
    renamed = dataclasses.replace(network, name="x", node_ids=tuple(range(100, 100 + network.num_nodes)))
    for mine, theirs in zip(*(policy.scores(Instance(n, MESSAGE, 2)) for n in (network, renamed))):
        np.testing.assert_array_equal(mine, theirs)


# Outputs and gradients


def test_join_gradients_is_the_transpose_of_split_scores(policy: Policy) -> None:
    """<split(outputs), gradients> = <outputs, join(gradients)>, over a batch of unequal instances."""
    rng = np.random.default_rng(0)
    instances = mixed_instances()
    batch = join([graph_of(instance) for instance in instances])
    with torch.no_grad():
        made = policy(batch)
    output = PolicyOutput(
        *(torch.from_numpy(rng.normal(size=tuple(getattr(made, name).shape))) for name in OUTPUTS), made.nodes
    )
    scores = split_scores(output, batch, instances)
    gradients = [Scores(*(rng.normal(size=part.shape) for part in own)) for own in scores]
    there = sum(float((a * b).sum()) for own, g in zip(scores, gradients) for a, b in zip(own, g))
    back = join_gradients(output, batch, instances, gradients)
    for name, part in zip(OUTPUTS, back):
        assert part.shape == getattr(output, name).shape
    here = sum(float((getattr(output, name) * part).sum()) for name, part in zip(OUTPUTS, back))
    assert there == pytest.approx(here, rel=1e-12)
    # every output has its place in the scores
    for index, name in enumerate(OUTPUTS):
        total = sum(float(np.square(own[index]).sum()) for own in scores)
        assert total == pytest.approx(float(getattr(output, name).square().sum()), rel=1e-12)


def test_every_weight_gets_a_gradient(policy: Policy) -> None:
    """Nothing is out of reach of learning."""
    batch = join([graph_of(instance) for instance in mixed_instances()])
    output = policy(batch)
    generator = torch.Generator().manual_seed(0)
    loss = sum(
        (getattr(output, name) * torch.rand(getattr(output, name).shape, generator=generator)).sum()
        for name in OUTPUTS
    )
    policy.zero_grad()
    loss.backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0.0, name


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_runs_on_the_device_of_its_weights(device: str) -> None:
    policy = stirred_policy()
    instances = mixed_instances()[:3]
    expected = [policy.scores(instance) for instance in instances]
    moved = stirred_policy().to(device)
    batch = join([graph_of(instance) for instance in instances]).to(device)
    output = moved(batch)
    assert all(getattr(output, name).device.type == device for name in OUTPUTS)
    for scores, plain in zip(split_scores(output, batch, instances), expected):
        assert_scores_equal(scores, plain, 1e-4)
    back = join_gradients(output, batch, instances, expected)
    assert all(part.device.type == device for part in back)
    torch.autograd.backward([getattr(output, name) for name in OUTPUTS], list(back))
    for mine, theirs in zip(moved.scores(instances[0]), expected[0]):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_torus_sees_all_servers_alike(policy: Policy) -> None:
    """On a symmetric network the encoder tells no server from another, up to the packed trees' loads."""
    instance = Instance(torus(4, 4), MESSAGE, 1)
    graph = graph_of(instance)
    packed = EDGE_FEATURES.index("log_packed_load")
    edges = graph.edges.clone()
    edges[:, packed] = 0.0
    # candidate paths are cut to four a pair, which may leave the load a little uneven
    edges[:, EDGE_FEATURES.index("log_load")] = 0.0
    nodes = graph.nodes.clone()
    with torch.no_grad():
        states, _ = policy.encoder(dataclasses.replace(graph, nodes=nodes, edges=edges))
    torch.testing.assert_close(states, states[:1].expand_as(states), rtol=1e-3, atol=1e-4)
