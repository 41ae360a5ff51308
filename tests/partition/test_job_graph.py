"""The graph of a training step: mirrored by hand, its orders, its cycles."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import profile, random_profile

from gnnsched.partition.job_graph import mirrored


def test_a_fork_is_mirrored() -> None:
    """Ops 0 -> 1, 0 -> 2, 1 -> 2; the partner of op i is 5 - i, so op 2 stands next to its own."""
    graph = mirrored(
        profile(
            [1.0, 2.0, 4.0],
            [(0, 1), (0, 2), (1, 2)],
            backward=[10.0, 20.0, 40.0],
            activation=[3.0, 5.0, 7.0],
            parameter=[0.5, 0.25, 0.0],
        ),
        steps=3,
    )
    assert graph.compute.tolist() == [1.0, 2.0, 4.0, 40.0, 20.0, 10.0]
    assert graph.memory.tolist() == [3.5, 5.25, 7.0, 7.0, 5.25, 3.5]
    sizes = {tuple(edge): size for edge, size in zip(graph.edges.tolist(), graph.edge_bytes.tolist())}
    # Forward edges carry the activations of their source; so do backward ones, of the source's partner.
    assert sizes == {
        (0, 1): 3.0,
        (0, 2): 3.0,
        (1, 2): 5.0,
        (4, 5): 5.0,
        (3, 5): 7.0,
        (3, 4): 7.0,
        (2, 3): 7.0,
    }
    assert (graph.num_ops, graph.num_forward, graph.name) == (6, 3, "job")
    assert graph.step_time == 77.0
    assert graph.sequential_time == 231.0
    assert graph.total_memory == 31.5
    assert graph.total_edge_bytes == 37.0
    # On the shortest way from op 0, both ends counted: 0 -> 2 -> 3 -> 5.
    assert graph.depth.tolist() == [1, 2, 2, 3, 4, 4]


@given(st.integers(0, 10**6))
def test_backward_is_forward_turned_round(seed: int) -> None:
    job = random_profile(np.random.default_rng(seed), most=10)
    graph = mirrored(job)
    n, m = job.num_ops, len(job.edges)
    assert graph.edges.shape == (2 * m + 1, 2)
    partner = 2 * n - 1 - np.arange(2 * n)
    np.testing.assert_array_equal(graph.memory, graph.memory[partner])
    forward = {tuple(edge) for edge in graph.edges.tolist() if edge[1] < n}
    backward = {tuple(edge) for edge in graph.edges.tolist() if edge[0] >= n}
    assert forward == {tuple(edge) for edge in job.edges.tolist()}
    assert backward == {(int(partner[v]), int(partner[u])) for u, v in forward}
    # The joining edge is the only other one, and the only way across.
    assert [edge for edge in graph.edges.tolist() if edge[0] < n <= edge[1]] == [[n - 1, n]]
    assert nx.is_directed_acyclic_graph(nx.DiGraph(graph.edges.tolist()))


@given(st.integers(0, 10**6))
def test_depth_is_the_shortest_path_from_op_0(seed: int) -> None:
    graph = mirrored(random_profile(np.random.default_rng(seed), most=10))
    plain = nx.DiGraph(graph.edges.tolist())
    plain.add_node(0)
    lengths = nx.single_source_shortest_path_length(plain, 0)
    assert graph.depth.tolist() == [lengths.get(op, -1) + 1 for op in range(graph.num_ops)]


def test_first_in_first_out_order_by_hand() -> None:
    """Not by depth and not by id: 3 is ready before 4 because its parent left the queue first."""
    graph = mirrored(profile([1.0] * 6, [(2, 3), (1, 4), (0, 5), (3, 5)]))
    # 0, 1, 2 wait at the start; 1 frees 4, 2 frees 3, and 3 frees 5.
    assert graph.forward_order.tolist() == [0, 1, 2, 4, 3, 5]


@given(st.integers(0, 10**6))
def test_first_in_first_out_order_is_a_queue(seed: int) -> None:
    job = random_profile(np.random.default_rng(seed), most=10)
    order = mirrored(job).forward_order.tolist()
    parents = {op: {u for u, v in job.edges.tolist() if v == op} for op in range(job.num_ops)}
    place = {op: i for i, op in enumerate(order)}
    # An op enters the queue when its last parent leaves it; those that enter together go by id.
    entered = {op: max((place[u] for u in parents[op]), default=-1) for op in order}
    assert order == sorted(order, key=lambda op: (entered[op], op))
    assert sorted(order) == list(range(job.num_ops))


@pytest.mark.parametrize(
    ("edges", "cyclic"),
    [
        ([], set()),
        ([(0, 1), (1, 2), (0, 2)], set()),
        ([(1, 1)], {(1, 1)}),
        ([(0, 1), (1, 0)], {(0, 1), (1, 0)}),
        # A chain into the cycle and one out of it are no part of it.
        ([(0, 1), (1, 2), (2, 1), (2, 3), (3, 4)], {(1, 2), (2, 1)}),
        ([(0, 1), (1, 2), (2, 3), (3, 1), (1, 3)], {(1, 2), (2, 3), (3, 1), (1, 3)}),
    ],
)
def test_find_cycle(edges: list[tuple[int, int]], cyclic: set[tuple[int, int]]) -> None:
    found = profile([1.0] * 5, edges).find_cycle()
    assert found in cyclic if cyclic else found is None


@given(st.integers(0, 10**6))
def test_find_cycle_agrees_with_networkx(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    edges = {(int(u), int(v)) for u, v in rng.integers(count, size=(int(rng.integers(0, 10)), 2))}
    found = profile([1.0] * count, sorted(edges)).find_cycle()
    plain = nx.DiGraph(list(edges))
    if nx.is_directed_acyclic_graph(plain):
        assert found is None
    else:
        assert found in edges
        assert nx.has_path(plain, found[1], found[0])
